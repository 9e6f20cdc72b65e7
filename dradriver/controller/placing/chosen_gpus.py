"""Lists the GPUs that the allocator chose, for each request of the pod's claim.

``decide``, ``gang_placements`` and ``nic_places`` call this module.

A *choice* is the GPUs, or fractions of GPUs, of one node that the allocator chose for a pod.
"""

from __future__ import annotations

from dradriver.allocator.request import Choice, PartChoice
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.queue.placement_request import PlacementRequest


def uuids(picture: Picture, wish: PlacementRequest, choice: Choice | PartChoice) -> dict[str, tuple[str, ...]]:
    """Return the uuids of the GPUs in ``choice``, by the names of the claim's requests."""
    node_uuids = picture.inventory.uuids(choice.node)
    return {
        name: tuple(node_uuids[number] for number in gpus)
        for name, gpus in zip(wish.requests, numbers(choice), strict=True)
    }


def numbers(choice: Choice | PartChoice) -> list[tuple[int, ...]]:
    """Return the GPUs of a choice, by their numbers on the node.

    There is one tuple for each request of the claim. For MIG slices and shares, each tuple has only the GPU of the
    fraction.
    """
    if isinstance(choice, Choice):
        return list(choice.containers)
    return [(part.gpu,) for parts in choice.containers for part in parts]
