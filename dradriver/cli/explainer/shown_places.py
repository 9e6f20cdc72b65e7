"""What a pod has, is promised or would get, as it is shown."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.allocator.request import Choice, PartChoice, Request, Whole
from dradriver.api.claims import result_annotations as results
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices as slices
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.model import Place
from dradriver.cluster.gpus.remaining import part_on
from dradriver.view.terminal_text import plain


def place_of(choice: Choice | PartChoice, uuids: Mapping[str, tuple[str, ...]]) -> Place:
    """Return a choice as it is shown, with the chosen GPUs' uuids by the claim's requests."""
    every = tuple(plain(uuid) for each in uuids.values() for uuid in each)
    if isinstance(choice, PartChoice):
        parts = [part for some in choice.containers for part in some]
        return Place(
            node=plain(choice.node),
            gpus=choice.gpus,
            uuids=every,
            parts=tuple(plain(results.described(part)) for part in parts),
        )
    return Place(
        node=plain(choice.node),
        gpus=choice.gpus,
        uuids=every,
        level=choice.level.value,
        busbw_gbps=round(choice.busbw_gbps, 2),
        bandwidth_gbps=round(choice.bandwidth_gbps, 2),
        score=choice.score,
        fallback=tuple(word.value for word in choice.fallback),
    )


def given(scene: Scene, key: Key, request: Request) -> Place | None:
    """Return what the scheduler gave a claim that nobody chose for; None where that is nothing, or not known.

    Args:
        scene: The cluster.
        key: The claim.
        request: What its pod asks for.
    """
    inventory = scene.picture.inventory
    nodes = {node for node, _ in inventory.holds.of(key)}
    node = nodes.pop() if len(nodes) == 1 else ""
    known = inventory.uuids(node)
    held = {number: inventory.holders((node, slices.device_name(known[number]))) for number in sorted(known)}
    taken = {number: claims[key] for number, claims in held.items() if key in claims}
    if not taken:
        return None
    uuids = {"": tuple(known[number] for number in taken)}
    group = next((group for group in inventory.fleet.groups if node in group.names), None)
    if isinstance(request, Whole) and len(taken) == request.gpus and group is not None:
        choice = group.describe(group.mask_of(taken.keys()), request)
        return place_of(msgspec.structs.replace(choice, node=node), uuids)
    parts = [part_on(number, part) for number, each in taken.items() for part in each or ()]
    return msgspec.structs.replace(
        place_of(PartChoice(containers=(tuple(parts),), node=node), uuids), gpus=tuple(taken)
    )
