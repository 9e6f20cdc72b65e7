"""Ranking of nodes for a request for parts, and why none has a place for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.fleet.part_nodes import Nodes, one_part
from dradriver.allocator.fleet.part_sets import several_parts
from dradriver.allocator.parts import part_phrases
from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.parts.gpu_shares import Shares, largest_share
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.mig_slices import Slices
from dradriver.allocator.parts.part_requests import Ask
from dradriver.allocator.request import Amount, Mig, NoPlaceError, PartChoice, Share
from dradriver.allocator.sets.masks import mask_of, positions_of
from dradriver.allocator.sets.subsets import Bools
from dradriver.counted import counted
from dradriver.reason import Cause


def rank(
    eligible: Mapping[NodeGroup, Bools | None], request: Share | Mig, *, limit: int, explain: bool, tenant: int
) -> list[PartChoice]:
    """Return the best nodes for a request for fractions, each with its best place.

    Args:
        eligible: The nodes that may be taken, by machine shape.
        request: The request for shares or MIG slices.
        limit: Most choices to return.
        explain: Whether a refusal says what is nearest.
        tenant: The tenant's number. A GPU that is another tenant's alone has nothing free for it.

    Raises:
        NoPlaceError: No node has room.
    """
    ask = _ask(request)
    if not ask.wanted or (isinstance(request, Share) and Amount() in request.amounts):
        raise NoPlaceError("a part of no size, or none at all: ask for at least one, of 1 % or 1 MiB at least")
    nodes_by_group = [
        _nodes(ask, group, group.rooms.seen_by(tenant), is_eligible)
        for group, is_eligible in eligible.items()
        if group.rooms is not None
    ]
    # A single fraction needs no search for combinations.
    place_parts = one_part if sum(ask.wanted) == 1 else several_parts
    places = place_parts(ask, nodes_by_group, limit)
    if not places:
        raise _refusal(ask, nodes_by_group, tenant, explain=explain)
    return [place.choice(ask) for place in places]


def _ask(request: Share | Mig) -> Ask:
    if isinstance(request, Share):
        return Shares(request)
    return Slices(request)


def _nodes(ask: Ask, group: NodeGroup, rooms: Rooms, eligible: Bools | None) -> Nodes:
    most = sum((ask.most_empty(rooms, kind) for kind in range(len(ask.wanted))), start=np.int64(0))
    suitable = group.suitable(ask.request)
    return Nodes(group, rooms, eligible, suitable, mask_of(tuple(np.flatnonzero(most).tolist())) & suitable)


def _refusal(ask: Ask, every: Sequence[Nodes], tenant: int, *, explain: bool) -> NoPlaceError:
    """Why there is no place; the message names the nearest thing that is possible, where that is wanted."""
    what = part_phrases.wanted(ask.request)
    word = "MIG slices" if ask.sliced else "shares"
    # ``openable``: GPUs that have room for the request when they are empty.
    offering = [nodes for nodes in every if nodes.rooms.offered(sliced=ask.sliced)]
    if not offering:
        stable = f"no node offers GPUs in {word}"
    elif not any(nodes.openable & nodes.rooms.offered(sliced=ask.sliced) for nodes in offering):
        stable = f"no GPU of this cluster that is offered in {word} has room for that even when it is empty"
        return NoPlaceError(f"{what}: no; {stable}{_instead(ask, offering)}", cause=Cause.NEVER)
    elif not any(_ever(ask, nodes) for nodes in offering):
        return NoPlaceError(
            f"{what}: no; no node of this cluster has room for so much, even when nothing is on it", cause=Cause.NEVER
        )
    else:
        stable = "no eligible node has room for that"
    reason = f"{what}: no; {stable}"

    # Free capacity that only another tenant may use.
    kept = _kept_from(ask, offering, tenant)
    stable = reason if kept is None else f"{reason}; another namespace uses fractions of GPUs with room for it"
    cause = Cause.NEVER if not offering else Cause.GPUS if kept is None else Cause.RESERVED
    return NoPlaceError(f"{reason}{_nearest(ask, offering, kept)}" if explain else stable, stable=stable, cause=cause)


def _ever(ask: Ask, nodes: Nodes) -> bool:
    """Whether such a node with all its GPUs empty has room for the parts of each kind alone."""
    offered = list(positions_of(nodes.rooms.offered(sliced=ask.sliced) & nodes.suitable))
    most = (int(ask.most_empty(nodes.rooms, kind)[offered].sum()) for kind in range(len(ask.wanted)))
    return all(map(int.__ge__, most, ask.wanted))


def _instead(ask: Ask, offering: Sequence[Nodes]) -> str:
    """What to say of what nodes offer: the MIG profiles there are, or the most that one share can have."""
    if not ask.sliced:
        most = [
            largest_share(int(nodes.rooms.memory_mib[position]), nodes.rooms.equal[position])
            for nodes in offering
            for position in positions_of(nodes.rooms.offered(sliced=False) & nodes.suitable)
        ]
        largest = max(most, key=lambda share: (share.cores, share.memory_mib), default=None)
        return "" if largest is None else f"; the most that one share can have is {part_phrases.amount(largest)}"
    layouts = {layout for nodes in offering for layout in nodes.rooms.layouts if layout is not None}
    known = sorted({profile.name for layout in layouts for profile in layout.profiles})
    return f"; there are {', '.join(known) or 'no profiles'}"


class _KeptFrom(NamedTuple):
    """GPUs that have room for a part that is wanted, and are another namespace's while that has parts of them.

    Attributes:
        gpus: How many there are.
        most: The most that is left of one of them.
    """

    gpus: int
    most: _Most


class _Most(NamedTuple):
    """The most that is left of one GPU. The smallest of several has the most.

    Attributes:
        room: How much that is, as a negative number.
        node: The name of the GPU's node.
        left: How much that is, in words.
    """

    room: int
    node: str
    left: str


def _kept_from(ask: Ask, offering: Sequence[Nodes], tenant: int) -> _KeptFrom | None:
    """The GPUs that only ``exclusiveTo: namespace`` keeps from a tenant; None if there are none."""
    gpus, most = 0, list[_Most]()
    for nodes in offering:
        assert nodes.group.rooms is not None, "its nodes offer parts"
        rooms = nodes.group.rooms
        has_room = rooms.is_kept_from(tenant)
        if not has_room.any():
            continue
        fits = [ask.costs(rooms, kind) < NONE for kind in range(len(ask.wanted))]
        has_room &= _suitable(nodes) & np.logical_or.reduce(fits)
        slots = nodes.able(np.logical_or.reduce(has_room))
        gpus += int(has_room[:, slots].sum())
        most += _most_left(ask, nodes, rooms, has_room)
    return _KeptFrom(gpus, min(most)) if most else None


def _suitable(nodes: Nodes) -> Bools:
    """Which positions have GPUs of the kind that is wanted: (g, 1)."""
    return np.array([[bool(nodes.suitable >> position & 1)] for position in range(len(nodes.rooms.memory_mib))])


def _most_left(ask: Ask, nodes: Nodes, rooms: Rooms, among: Bools) -> list[_Most]:
    """The most that eligible nodes of one kind have left of one of these GPUs; empty if nothing is left of any."""
    room = np.where(among, ask.room(rooms), 0)
    slots = nodes.able(room.max(axis=0, initial=0) > 0)
    if not len(slots):
        return []
    slot = int(slots[room[:, slots].max(axis=0).argmax()])
    position = int(room[:, slot].argmax())
    left = ask.said(ask.left(rooms, position, slot))
    return [_Most(-int(room[position, slot]), nodes.group.names[slot], left)]


def _nearest(ask: Ask, offering: Sequence[Nodes], kept: _KeptFrom | None) -> str:
    """What to say of the GPUs in use by parts: which has the most left, and which are another namespace's."""
    open_to = [most for nodes in offering for most in _most_left(ask, nodes, nodes.rooms, _suitable(nodes))]
    reason = f"; {min(open_to).node} has {min(open_to).left} left" if open_to else ""
    if kept is not None:
        gpus = counted(kept.gpus, "GPU")
        reason += (
            f"; another namespace uses fractions of {gpus} with room for it (exclusiveTo: namespace), the most is left "
            f"on {kept.most.node}: {kept.most.left}"
        )
    return reason or "; no GPU in use by fractions has anything left for it"
