"""Which sets of GPUs are free for a pod, and which would be if others ended.

Only sets of whole GPUs are looked at all at once, as arrays; for parts of GPUs the claims are taken away one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.request import Choice, Constraint, Level, NoPlaceError, Whole
from dradriver.allocator.sets import rank_order
from dradriver.allocator.sets.subsets import Ints
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gpu_holders
from dradriver.cli.explainer.model import Free, Help, Room
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.controller.placing.plan import plan
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

SHOWN: Final = 5
_LOOKED_AT: Final = 32  # nodes whose holders are looked at
_TRIED: Final = 256  # claims that are taken away to see
_AT_ONCE: Final = 1 << 22  # sets of nodes that are compared at a time


def free(scene: Scene, request: Whole, fit: Bools, namespace: str) -> Free:
    """Return what is free for a namespace's request of whole GPUs on the nodes that would take the pod."""
    rooms: list[Room] = []
    gpus = eligible = nodes = 0
    criteria = fallback_criteria.required(request)
    for group in scene.picture.fleets.of(namespace).groups:
        nodes += len(group.names)
        slots = np.flatnonzero(group.at_rows(fit))
        eligible += len(slots)
        masks = group.free_masks()[slots].astype(np.int64) & group.suitable(request)
        gpus += int(np.bitwise_count(masks).sum())
        largest = np.zeros(len(masks), np.int64)
        for count in range(1, min(request.gpus, group.tables.size) + 1):
            largest[group.tables.has(count, masks, criteria)] = count
        best = np.lexsort((-np.bitwise_count(masks).astype(np.int64), -largest))[:_LOOKED_AT]
        rooms += [
            _room(group, group.names[int(slots[at])], int(masks[at]), int(largest[at]))
            for at in best.tolist()
            if masks[at]
        ]
    rooms.sort(key=lambda room: (-room.largest, -len(room.free), natural(room.node)))
    return Free(nodes=nodes, eligible=eligible, gpus=gpus, best=tuple(rooms[:SHOWN]))


def _room(group: NodeGroup, node: str, mask: int, largest: int) -> Room:
    machine = group.machine
    return Room(
        node=plain(node), product=plain(machine.product), gpus=len(machine.gpus), free=_numbers(group, mask),
        largest=largest,
    )  # fmt: skip


def helps(scene: Scene, wish: PlacementRequest, request: Whole, fit: Bools) -> list[Help]:
    """Return on each of some nodes the set that the fewest GPUs' release would make, fewest first.

    A set that is free is among them, with nobody who would have to end.

    Args:
        scene: The cluster.
        wish: What is wanted; what its own claim holds counts as free.
        request: What the set must be, in the place of the wish's own request.
        fit: The nodes that are looked at, by row.
    """
    nearest: list[tuple[int, str, NodeGroup, Ints, int]] = []
    for group in Snapshot(scene.picture, wish.claim[0]).without([wish.claim], own=True).fleet.groups:
        nearest += _nearest(scene, group, request, fit, wish.claim[0])
    nearest.sort(key=lambda found: (found[0], natural(found[1])))
    found = [_help(scene, wish.claim, *each[1:]) for each in nearest[:_LOOKED_AT]]
    found.sort(key=lambda one: (sum(len(o.gpus) for o in one.owners), len(one.owners), natural(one.node)))
    return found


def left_out(scene: Scene, wish: PlacementRequest, request: Whole, fit: Bools) -> list[Help]:
    """Return the sets that are free, or would be, on nodes that are left out, with the causes of that."""
    nodes, channels, domain = scene.picture.nodes, scene.picture.channels, scene.picture.channels.domain_of(wish.pod)

    def causes(node: str) -> list[str]:
        only = nodes.named([node])
        return [
            *nodes.causes(wish.ask, only=only),
            *(channels.causes(domain, wish.pod, only) if domain is not None else ()),
        ]

    every = nodes.named(scene.picture.fleets.of(wish.claim[0]).nodes)
    return [
        msgspec.structs.replace(
            option,
            causes=tuple(map(plain, causes(option.node))),
        )
        for option in helps(scene, wish, request, every & ~fit)
        if not option.owners
    ]


def _nearest(
    scene: Scene, group: NodeGroup, request: Whole, fit: Bools, namespace: str
) -> Iterator[tuple[int, str, NodeGroup, Ints, int]]:
    """Yield of each node how many GPUs its nearest sets lack, its name, and these sets with what is free there."""
    tables, suitable = group.tables, group.suitable(request)
    include = group.include(request)
    if request.gpus > tables.size or include is None:
        return
    members = tables.members(request.gpus)
    sets = members[
        tables.allowed(fallback_criteria.required(request, include=include))[members] & (members & ~suitable == 0)
    ]
    slots = np.flatnonzero(group.at_rows(fit))
    if not len(sets) or not len(slots):
        return
    can = np.array([_can_be_free(scene, group, slot, namespace) for slot in slots.tolist()], np.int64)
    now = group.free_masks()[slots].astype(np.int64)
    step = max(1, _AT_ONCE // len(sets))
    for start in range(0, len(slots), step):
        some = slice(start, start + step)
        missing = np.bitwise_count(sets[None, :] & ~now[some, None]).astype(np.int64)
        missing[(sets[None, :] & ~(can | now)[some, None]) != 0] = tables.size + 1
        least = missing.min(axis=1)
        for at, count in enumerate(least.tolist()):
            if count <= tables.size:
                name = group.names[int(slots[start + at])]
                yield count, name, group, sets[missing[at] == count], int(now[start + at])


def _can_be_free(scene: Scene, group: NodeGroup, slot: int, namespace: str) -> int:
    """Return the mask of a node's GPUs that would be free for a namespace if nobody held them."""
    inventory, node = scene.picture.inventory, group.names[slot]
    own = scene.picture.fleets.open_to(namespace, node)
    never = group.offer_and_parts(slot)[0].parts_only
    listed = {
        number
        for number, uuid in inventory.uuids(node).items()
        if inventory.usable((node, resource_slices.device_name(uuid)), None)
    }
    return group.mask_of((listed if own is None else listed & own) - never)


def _help(scene: Scene, own: Key, node: str, group: NodeGroup, sets: Ints, now: int) -> Help:
    """Return the set of a node for which the fewest claims but one's own would have to end, the best of these."""
    held = {
        number: tuple(key for key in keys if key != own) for number, keys in gpu_holders.holders(scene, node).items()
    }

    def cost(mask: int) -> tuple[int, float]:
        claims: set[Key] = {key for number in _numbers(group, mask & ~now) for key in held.get(number, ())}
        return len(claims), -float(group.tables.busbw[mask])

    chosen = min(sets.tolist()[:_TRIED], key=cost)
    return Help(
        node=plain(node),
        gpus=_numbers(group, chosen),
        owners=gpu_holders.owners(scene, held, _numbers(group, chosen & ~now)),
        busbw_gbps=group.tables.busbw_gbps(chosen),
    )


def parts_helps(scene: Scene, member: Member, fit: Bools) -> list[Help]:
    """Return claims of which the end of any one would make a place for a pod that asks for fractions of GPUs."""
    picture, namespace = scene.picture, member.key[0]
    rows = {node: picture.nodes.find(node) for node in picture.fleets.of(namespace).nodes}
    nodes = {node for node, row in rows.items() if row is not None and row < len(fit) and fit[row]}
    tried: set[Key] = set()
    found: list[Help] = []
    for node in sorted(nodes, key=natural):
        held = gpu_holders.holders(scene, node)
        for key in dict.fromkeys(key for keys in held.values() for key in keys):
            if key in tried or len(tried) >= _TRIED or len(found) >= SHOWN:
                continue
            tried.add(key)
            try:
                snapshot = Snapshot(picture, namespace).without([key], own=True)
                place = plan(snapshot.among(_only(fit, rows[node]), is_few=True), [member], most=1)[member]
            except NoPlaceError:
                continue
            mine = {number: (key,) for number, keys in held.items() if key in keys}
            found.append(Help(node=plain(place.node), owners=gpu_holders.owners(scene, mine, tuple(mine))))
    return found


def _only(fit: Bools, row: int | None) -> Bools:
    only = np.zeros_like(fit)
    assert row is not None
    only[row] = True
    return only


def better(scene: Scene, wish: PlacementRequest, choice: Choice, fit: Bools) -> list[Help]:
    """Return the sets that would be better than what a pod has: of a higher rung, or of more bandwidth.

    Args:
        scene: The cluster.
        wish: The pod's; what its own claim holds counts as free.
        choice: What it has.
        fit: The nodes that are looked at, by row.
    """
    request = wish.request
    assert isinstance(request, Whole)
    if choice.fallback:
        request = msgspec.structs.replace(request, required=(*request.required, choice.fallback[0]))
    elif choice.score == 100:
        return []
    elif choice.busbw_gbps:
        request = msgspec.structs.replace(request, min_busbw_gbps=max(choice.busbw_gbps * 1.01, request.min_busbw_gbps))
    elif choice.level is not Level.NVLINK:  # no bandwidth can be predicted, so links alone compare
        request = msgspec.structs.replace(request, required=(*request.required, Constraint.NVLINK))
    elif choice.bandwidth_gbps:
        least = max(choice.bandwidth_gbps * 1.01, request.min_bandwidth_gbps)
        request = msgspec.structs.replace(request, min_bandwidth_gbps=least)
    else:
        return []
    return helps(scene, wish, request, fit)


def _numbers(group: NodeGroup, mask: int) -> tuple[int, ...]:
    return tuple(sorted(group.machine.gpus[position].index for position in rank_order.positions(mask)))
