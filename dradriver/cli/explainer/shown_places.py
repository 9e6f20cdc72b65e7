"""The place of a pod as ``gputopo explain`` shows it: the GPUs that it has, is about to get, or would get."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.allocator.request import Choice, PartChoice, Request, Whole
from dradriver.api.claims import result_annotations
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.model import Place
from dradriver.cluster.gpus.remaining import part_on
from dradriver.view.terminal_text import plain


def place_of(choice: Choice | PartChoice, uuids: Mapping[str, tuple[str, ...]]) -> Place:
    """Return a choice of GPUs as a place to show; ``uuids`` has the GPUs of each request of the claim."""
    all_uuids = tuple(plain(uuid) for of_request in uuids.values() for uuid in of_request)
    if isinstance(choice, PartChoice):  # fractions of GPUs have no links
        parts = [part for container in choice.containers for part in container]
        return Place(
            node=plain(choice.node),
            gpus=choice.gpus,
            uuids=all_uuids,
            parts=tuple(plain(result_annotations.described(part)) for part in parts),
        )
    return Place(
        node=plain(choice.node),
        gpus=choice.gpus,
        uuids=all_uuids,
        level=choice.level.value,
        busbw_gbps=round(choice.busbw_gbps, 2),
        bandwidth_gbps=round(choice.bandwidth_gbps, 2),
        score=choice.score,
        fallback=tuple(word.value for word in choice.fallback),
    )


def place_by_scheduler(scene: Scene, key: Key, request: Request) -> Place | None:
    """Return the place to show for a claim whose GPUs the scheduler chose, not the controller.

    Args:
        scene: The cluster; ``scene.picture`` is the cluster cache, as the controller has it.
        key: The claim.
        request: The request of its pod.

    Returns:
        None if the claim has no GPUs, or GPUs that the cluster cache does not know.
    """
    # The inventory knows the devices of each claim (``holds``), and for each device what claims have of it
    # (``holders``). A device is a pair of pool and name; a pool is named by its node.
    inventory = scene.picture.inventory
    nodes = {node for node, _ in inventory.holds.of(key)}
    node = nodes.pop() if len(nodes) == 1 else ""
    uuid_of = inventory.uuids(node)  # by the GPU's index on the machine
    allocations = {
        number: inventory.holders((node, resource_slices.device_name(uuid_of[number]))) for number in sorted(uuid_of)
    }
    usage_of = {number: by_claim[key] for number, by_claim in allocations.items() if key in by_claim}
    if not usage_of:
        return None
    uuids = {"": tuple(uuid_of[number] for number in usage_of)}

    group = next((group for group in inventory.fleet.groups if node in group.names), None)
    if isinstance(request, Whole) and len(usage_of) == request.gpus and group is not None:
        choice = group.describe(group.mask_of(usage_of.keys()), request)
        return place_of(msgspec.structs.replace(choice, node=node), uuids)

    # Fractions, or whole GPUs of which the links are not known: these have no parts, so their numbers are set here.
    parts = [part_on(number, part) for number, usage in usage_of.items() for part in usage or ()]
    place = place_of(PartChoice(containers=(tuple(parts),), node=node), uuids)
    return msgspec.structs.replace(place, gpus=tuple(usage_of))


def with_unhealthy(scene: Scene, place: Place) -> Place:
    """Return a place to show, with its faulty GPUs in the listed cluster added (``unhealthy``)."""
    inventory = scene.picture.inventory
    pool, uuids = inventory.pool(place.node), inventory.uuids(place.node)
    if pool is None:
        return place
    faulty = pool.numbers(pool.ill)
    lost = set(place.gpus) - uuids.keys()
    return msgspec.structs.replace(place, unhealthy=tuple(gpu for gpu in place.gpus if gpu in faulty | lost))
