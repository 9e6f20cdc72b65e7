"""Nodes ranked for a request of parts, and why none has a place for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dradriver.allocator.fleet.node_group import NodeGroup
from dradriver.allocator.fleet.part_nodes import Nodes, one_part
from dradriver.allocator.fleet.part_sets import several_parts
from dradriver.allocator.parts import phrases
from dradriver.allocator.parts.asks import Ask
from dradriver.allocator.parts.rooms import Rooms, largest_share
from dradriver.allocator.parts.shares import Shares
from dradriver.allocator.parts.slices import Slices
from dradriver.allocator.request import Amount, Mig, NoPlaceError, PartChoice, Share
from dradriver.allocator.sets import rings
from dradriver.allocator.sets.subsets import Bools


def rank(
    eligible: Mapping[NodeGroup, Bools | None], request: Share | Mig, *, limit: int, explain: bool, tenant: int
) -> list[PartChoice]:
    """The best place on each of the best nodes, best first; one a node, at most ``limit``.

    Args:
        eligible: The nodes that may be taken, by kind.
        request: What is wanted.
        limit: Most choices to return.
        explain: Whether a refusal says what is nearest.
        tenant: Who wants it: of GPUs that are another's nothing is left.

    Raises:
        NoPlaceError: There is none.
    """
    ask = _ask(request)
    if not ask.wanted or (isinstance(request, Share) and Amount() in request.amounts):
        raise NoPlaceError("a part of no size, or none at all: ask for at least one, of 1 % or 1 MiB at least")
    every = [
        _nodes(ask, group, group.rooms.seen_by(tenant), own)
        for group, own in eligible.items()
        if group.rooms is not None
    ]
    places = (one_part if sum(ask.wanted) == 1 else several_parts)(ask, every, limit)
    if not places:
        raise _refusal(ask, every, explain=explain)
    return [place.choice(ask) for place in places]


def _ask(request: Share | Mig) -> Ask:
    if isinstance(request, Share):
        return Shares(request)
    return Slices(request)


def _nodes(ask: Ask, group: NodeGroup, rooms: Rooms, eligible: Bools | None) -> Nodes:
    most = sum((ask.most_empty(rooms, kind) for kind in range(len(ask.wanted))), start=np.int64(0))
    suitable = group.suitable(ask.request)
    return Nodes(group, rooms, eligible, suitable, rings.mask_of(tuple(np.flatnonzero(most).tolist())) & suitable)


def _refusal(ask: Ask, every: Sequence[Nodes], *, explain: bool) -> NoPlaceError:
    """Why there is no place; the message names the nearest thing that is possible, where that is wanted."""
    what = phrases.wanted(ask.request)
    word = "MIG slices" if ask.sliced else "shares"
    offering = [nodes for nodes in every if nodes.rooms.offered(sliced=ask.sliced)]
    if not offering:
        stable = f"no node offers GPUs in {word}"
    elif not any(nodes.openable & nodes.rooms.offered(sliced=ask.sliced) for nodes in offering):
        stable = f"no GPU of this cluster that is offered in {word} has room for that even when it is empty"
        return NoPlaceError(f"{what}: no; {stable}{_instead(ask, offering)}")
    elif not any(_ever(ask, nodes) for nodes in offering):
        return NoPlaceError(f"{what}: no; no node of this cluster has room for so much, even when nothing is on it")
    else:
        stable = "no eligible node has room for that"
    stable = f"{what}: no; {stable}"
    return NoPlaceError(f"{stable}{_nearest(ask, offering)}" if explain else stable, stable=stable)


def _ever(ask: Ask, nodes: Nodes) -> bool:
    """Whether such a node with all its GPUs empty has room for the parts of each kind alone."""
    offered = list(rings.positions(nodes.rooms.offered(sliced=ask.sliced) & nodes.suitable))
    most = (int(ask.most_empty(nodes.rooms, kind)[offered].sum()) for kind in range(len(ask.wanted)))
    return all(map(int.__ge__, most, ask.wanted))


def _instead(ask: Ask, offering: Sequence[Nodes]) -> str:
    """What to say of what nodes offer: the MIG profiles there are, or the most that one share can have."""
    if not ask.sliced:
        most = [
            largest_share(int(nodes.rooms.memory_mib[position]), nodes.rooms.equal[position])
            for nodes in offering
            for position in rings.positions(nodes.rooms.offered(sliced=False) & nodes.suitable)
        ]
        largest = max(most, key=lambda share: (share.cores, share.memory_mib), default=None)
        return "" if largest is None else f"; the most that one share can have is {phrases.amount(largest)}"
    layouts = {layout for nodes in offering for layout in nodes.rooms.layouts if layout is not None}
    known = sorted({profile.name for layout in layouts for profile in layout.profiles})
    return f"; there are {', '.join(known) or 'no profiles'}"


def _nearest(ask: Ask, offering: Sequence[Nodes]) -> str:
    """What to say of the node that has the most left of one GPU that is in use by parts."""
    best: tuple[int, str, str] | None = None
    for nodes in offering:
        rooms = nodes.rooms
        room = ask.room(rooms)
        slots = nodes.able(room.max(axis=0, initial=0) > 0)
        if not len(slots):
            continue
        slot = int(slots[room[:, slots].max(axis=0).argmax()])
        position = int(room[:, slot].argmax())
        candidate = (-int(room[position, slot]), nodes.group.names[slot], ask.said(ask.left(rooms, position, slot)))
        best = candidate if best is None else min(best, candidate)
    return "; nothing is left of any GPU that is in use by parts" if best is None else f"; {best[1]} has {best[2]} left"
