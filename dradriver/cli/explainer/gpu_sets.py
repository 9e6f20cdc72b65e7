"""Sets of GPUs for ``gputopo explain``: sets that are free for a pod, and sets that would be if other pods ended.

For whole GPUs all sets of a node are compared at once, as arrays of bit masks. A mask of nodes has a bool for each row
of the cluster cache's node table. For fractions of GPUs the claims are removed one by one, and the pod is planned
without each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria, phrases
from dradriver.allocator.fleet.fleet_refusals import could_have
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import Choice, Constraint, Level, NoPlaceError, Whole
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Ints
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gpu_holders
from dradriver.cli.explainer.model import Free, Help, Room
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing import node_limits, ranking
from dradriver.controller.placing.plan import plan
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

SHOWN: Final = 5
_BETTER: Final = 1.01  # times the bandwidth that a pod has
_LOOKED_AT: Final = 32  # nodes whose claims are looked at
_TRIED: Final = 256  # claims that are taken away one by one, or sets of which the claims are compared
_AT_ONCE: Final = 1 << 22  # pairs of a node and a set that are compared at a time


def free(scene: Scene, request: Whole, fit: Bools, namespace: str) -> Free:
    """Return the number of free GPUs for the request, and the nodes with the largest free sets.

    ``scene`` is the listed cluster, ``namespace`` the pod's, and ``fit`` the mask of these nodes, (rows,).
    """
    # A room: a node with its free GPUs. Nodes with machines that are alike are a group, compared as arrays.
    rooms: list[Room] = []
    gpus = eligible = able = nodes = 0
    criteria = fallback_criteria.required(request)
    for group in scene.picture.fleets.of(namespace).groups:
        nodes += len(group.names)
        slots = np.flatnonzero(group.at_rows(fit))
        eligible += len(slots)
        able += len(slots) if could_have(group, request) else 0
        masks = group.free_masks()[slots].astype(np.int64) & group.suitable(request)
        gpus += int(np.bitwise_count(masks).sum())
        # The size of the largest free set that meets the request, by node.
        largest = np.zeros(len(masks), np.int64)
        for count in range(1, min(request.gpus, group.tables.size) + 1):
            largest[group.tables.has(count, masks, criteria)] = count
        # The nodes with the largest sets first, then with the most free GPUs.
        best = np.lexsort((-np.bitwise_count(masks).astype(np.int64), -largest))[:_LOOKED_AT]
        rooms += [
            _room(group, group.names[int(slots[index])], int(masks[index]), int(largest[index]))
            for index in best.tolist()
            if masks[index]
        ]
    rooms.sort(key=lambda room: (-room.largest, -len(room.free), natural(room.node)))
    return Free(
        nodes=nodes, eligible=eligible, could_have=able, requested_set=plain(phrases.wanted(request)), gpus=gpus,
        best=tuple(rooms[:SHOWN]),
    )  # fmt: skip


def _room(group: NodeGroup, node: str, mask: int, largest: int) -> Room:
    machine = group.machine
    return Room(
        node=plain(node), product=plain(machine.product), gpus=len(machine.gpus), free=_numbers(group, mask),
        largest=largest,
    )  # fmt: skip


def helps(scene: Scene, wish: PlacementRequest, request: Whole, fit: Bools) -> list[Help]:
    """Return a suitable set of GPUs for each node, with the claims that must end.

    For each node, this is the set for which the fewest GPUs must become free. The sets that need fewest come first.
    Sets that are free already are included, with no owners. At most ``_LOOKED_AT`` nodes have a set in the result.

    Args:
        scene: The cluster.
        wish: The placement request of the pod; the GPUs of its own claim count as free.
        request: The requirements on the set, which replace those of ``wish``.
        fit: The nodes to look at, by row.
    """
    nearest: list[tuple[int, str, NodeGroup, Ints, int]] = []
    for group in Snapshot(scene.picture, wish.claim[0]).without([wish.claim], are_own=True).fleet.groups:
        nearest += _sets_lacking_fewest(scene, group, request, fit, wish.claim[0])
    nearest.sort(key=lambda found: (found[0], natural(found[1])))
    found = [_help(scene, wish, *each[1:]) for each in nearest[:_LOOKED_AT]]
    found.sort(key=lambda one: (sum(len(o.gpus) for o in one.owners), len(one.owners), natural(one.node)))
    return found


def left_out(scene: Scene, wish: PlacementRequest, request: Whole, fit: Bools) -> list[Help]:
    """Return free sets of GPUs on nodes that the explained pod cannot use, with the causes.

    ``scene`` is the cluster, and ``wish`` the placement request of the pod. ``request`` has the requirements on the
    set, which replace those of ``wish``. ``fit`` is the mask of the nodes that the pod can use, (rows,).
    """
    nodes, snapshot = scene.picture.nodes, Snapshot(scene.picture, wish.claim[0])
    limits = node_limits.concerning(wish)
    all_nodes = nodes.named(snapshot.fleet.nodes)
    return [
        msgspec.structs.replace(
            option,
            causes=(
                *option.causes,
                *map(plain, ranking.causes(snapshot, wish, limits, only=nodes.named([option.node]))),
            ),
        )
        for option in helps(scene, wish, request, all_nodes & ~fit)
        if not option.owners
    ]


def _sets_lacking_fewest(
    scene: Scene, group: NodeGroup, request: Whole, fit: Bools, namespace: str
) -> Iterator[tuple[int, str, NodeGroup, Ints, int]]:
    """Yield for each node of a group the sets with the fewest GPUs that are not free now.

    Args:
        scene: The cluster.
        group: Nodes with equal machines.
        request: The request.
        fit: The nodes to look at, by row: (rows,).
        namespace: The namespace of the pod.

    Yields:
        The number of GPUs that are not free, the node's name, its group, these sets as bit masks, and the mask of the
        GPUs that are free now.
    """
    # ``tables``: all sets of a machine as bit masks, one bit for each GPU. ``suitable``: the mask of GPUs that the
    # request accepts. ``include``: the mask of GPUs that must be in the set; None if this group lacks one.
    tables, suitable = group.tables, group.suitable(request)
    include = group.include(request)
    if request.gpus > tables.size or include is None:
        return

    # 1. The sets that the request allows, and the nodes. A slot is the position of a node in the group.
    #    ``members`` returns the masks of all sets of a size, ``allowed`` a boolean for each mask.
    sets_of_size = tables.members(request.gpus)
    is_allowed = tables.allowed(fallback_criteria.required(request, include=include))[sets_of_size]
    is_suitable = sets_of_size & ~suitable == 0
    sets = sets_of_size[is_allowed & is_suitable]
    slots = np.flatnonzero(group.at_rows(fit))
    if not len(sets) or not len(slots):
        return

    # 2. How many GPUs each set lacks on each node: (nodes, sets). A set with a GPU that cannot become free lacks more
    #    than there are. Some nodes at a time, to bound the memory.
    free_now = group.free_masks()[slots].astype(np.int64)
    can_be_free = free_now | np.array(
        [_can_be_free(scene, group, slot, namespace) for slot in slots.tolist()], np.int64
    )
    nodes_at_a_time = max(1, _AT_ONCE // len(sets))
    for start in range(0, len(slots), nodes_at_a_time):
        nodes = slice(start, start + nodes_at_a_time)
        lacking_gpus = np.bitwise_count(sets[None, :] & ~free_now[nodes, None]).astype(np.int64)
        lacking_gpus[(sets[None, :] & ~can_be_free[nodes, None]) != 0] = tables.size + 1
        fewest_lacking = lacking_gpus.min(axis=1)
        for index, count in enumerate(fewest_lacking.tolist()):
            if count <= tables.size:
                name = group.names[int(slots[start + index])]
                yield count, name, group, sets[lacking_gpus[index] == count], int(free_now[start + index])


def _can_be_free(scene: Scene, group: NodeGroup, slot: int, namespace: str) -> int:
    """Return a node's GPUs that a namespace could get if no pod used them.

    The result is a bit mask. ``slot`` is the node's position in ``group``.
    """
    inventory, node = scene.picture.inventory, group.names[slot]
    own = scene.picture.fleets.open_to(namespace, node)
    never = group.offer_and_parts(slot)[0].parts_only
    listed = {
        number
        for number, uuid in inventory.uuids(node).items()
        if inventory.usable((node, resource_slices.device_name(uuid)), None)
    }
    return group.mask_of((listed if own is None else listed & own) - never)


def _help(scene: Scene, wish: PlacementRequest, node: str, group: NodeGroup, sets: Ints, now: int) -> Help:
    """Return the set of a node for which the fewest other claims must end; among equals the fastest set.

    Only the first ``_TRIED`` of ``sets`` are compared.

    Args:
        scene: The cluster.
        wish: The placement request of the pod, whose own claim is not counted.
        node: The node.
        group: The group of equal machines that has the node.
        sets: The sets to choose from, as bit masks.
        now: The bit mask of the GPUs that are free now.
    """
    held = {
        number: tuple(key for key in keys if key != wish.claim)
        for number, keys in gpu_holders.holders(scene, node).items()
    }

    def cost(mask: int) -> tuple[int, float]:
        claims: set[Key] = {key for number in _numbers(group, mask & ~now) for key in held.get(number, ())}
        return len(claims), -float(group.tables.busbw[mask])

    chosen = min(sets.tolist()[:_TRIED], key=cost)
    missing = _numbers(group, chosen & ~now)
    return Help(
        node=plain(node),
        gpus=_numbers(group, chosen),
        owners=gpu_holders.owners(scene, held, missing),
        causes=gpu_holders.reservations(scene, node, missing, pod=wish.pod),
        busbw_gbps=group.tables.busbw_gbps(chosen),
    )


def parts_helps(scene: Scene, member: Member, fit: Bools) -> list[Help]:
    """Return claims whose end would make room for a pod that requests fractions of GPUs.

    The end of one of these claims is enough. At most ``SHOWN`` claims are returned, of the first ``_TRIED`` claims by
    node name. ``member`` is the pod. ``fit`` is a mask of the nodes that can take the pod, (rows,).
    """
    picture, namespace = scene.picture, member.key[0]
    rows = {node: picture.nodes.find(node) for node in picture.fleets.of(namespace).nodes}
    nodes = {node for node, row in rows.items() if row is not None and row < len(fit) and fit[row]}
    tried_claims: set[Key] = set()
    found: list[Help] = []
    for node in sorted(nodes, key=natural):
        held = gpu_holders.holders(scene, node)
        for key in dict.fromkeys(key for keys in held.values() for key in keys):
            if key in tried_claims or len(tried_claims) >= _TRIED or len(found) >= SHOWN:
                continue
            tried_claims.add(key)
            # The controller's own plan on this node alone, as if the claim had ended.
            try:
                snapshot = Snapshot(picture, namespace).without([key], are_own=True)
                place = plan(snapshot.among(_only(fit, rows[node]), is_few=True), [member], most=1)[member]
            except NoPlaceError:
                continue
            held_by_claim = {number: (key,) for number, keys in held.items() if key in keys}
            found.append(
                Help(node=plain(place.node), owners=gpu_holders.owners(scene, held_by_claim, tuple(held_by_claim)))
            )
    return found


def _only(fit: Bools, row: int | None) -> Bools:
    only = np.zeros_like(fit)
    assert row is not None
    only[row] = True
    return only


def better(scene: Scene, wish: PlacementRequest, choice: Choice, fit: Bools) -> list[Help]:
    """Return the sets of GPUs that are better than a pod's set, each with the pods that would have to end.

    The search asks for more than the pod has: a preference that was not met, or 1 % more bandwidth. For a pod with the
    best set of its machine (score 100), only sets of better machines that are free now are returned. The list is empty
    if no better set is possible.

    Args:
        scene: The cluster.
        wish: The placement request of the pod; the GPUs of its own claim count as free.
        choice: The set that the pod has.
        fit: The nodes to look at, by row: (rows,).
    """
    request = wish.request
    assert isinstance(request, Whole)
    # ``fallback``: preferences that the set does not have, the most wanted first. ``score``: of 100, against the best
    # set that such a machine can have.
    if choice.fallback:
        better_request = msgspec.structs.replace(request, required=(*request.required, choice.fallback[0]))
    elif choice.busbw_gbps:
        least = max(choice.busbw_gbps * _BETTER, request.min_busbw_gbps)
        better_request = msgspec.structs.replace(request, min_busbw_gbps=least)
    # Without a predicted bandwidth the links decide, and then the line rate.
    elif choice.level is not Level.NVLINK:
        better_request = msgspec.structs.replace(request, required=(*request.required, Constraint.NVLINK))
    elif choice.bandwidth_gbps:
        least = max(choice.bandwidth_gbps * _BETTER, request.min_bandwidth_gbps)
        better_request = msgspec.structs.replace(request, min_bandwidth_gbps=least)
    else:
        return []
    options = helps(scene, wish, better_request, fit)
    is_best_of_machine = choice.score == 100 and not choice.fallback
    return [option for option in options if not (option.owners or option.causes)] if is_best_of_machine else options


def _numbers(group: NodeGroup, mask: int) -> tuple[int, ...]:
    return tuple(sorted(group.machine.gpus[position].index for position in positions_of(mask)))
