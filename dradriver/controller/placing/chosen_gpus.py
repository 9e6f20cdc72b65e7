"""The GPUs of a choice by the requests of the claim that is made from it.

``decide``, ``gang_placements`` and ``nic_places`` call this module.
"""

from __future__ import annotations

from dradriver.allocator.request import Choice, PartChoice
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.queue.placement_request import PlacementRequest


def uuids(picture: Picture, wish: PlacementRequest, choice: Choice | PartChoice) -> dict[str, tuple[str, ...]]:
    """Return the uuids of chosen GPUs, by the claim's requests."""
    node_uuids = picture.inventory.uuids(choice.node)
    return {
        name: tuple(node_uuids[number] for number in gpus)
        for name, gpus in zip(wish.requests, numbers(choice), strict=True)
    }


def numbers(choice: Choice | PartChoice) -> list[tuple[int, ...]]:
    """Return the numbers of the chosen GPUs, in the order of the claim's requests."""
    if isinstance(choice, Choice):
        return list(choice.containers)
    return [(part.gpu,) for parts in choice.containers for part in parts]
