"""Ranks nodes for a request for shares or MIG slices, or says why none fits.

``Fleet.rank`` calls it. ``Ask`` is the request for fractions. Equal fractions of a request are of one *kind*. ``Rooms``
has the free capacity of GPUs for fractions.
"""

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
from dradriver.reason import Cause, sentences


def rank(
    eligible: Mapping[NodeGroup, Bools | None], request: Share | Mig, *, limit: int, explain: bool, tenant: int
) -> list[PartChoice]:
    """Return the best nodes for a request for fractions, each with its best place.

    Args:
        eligible: The nodes that may be taken, by node group.
        request: The request for shares or MIG slices.
        limit: The largest number of choices to return.
        explain: Whether a refusal names the nearest thing that is possible.
        tenant: The tenant's number. GPUs that only another tenant may use have no free capacity for it.

    Raises:
        NoPlaceError: No node has room, or a requested fraction has the size 0.
    """
    ask = _ask(request)
    if not ask.wanted or (isinstance(request, Share) and Amount() in request.amounts):
        raise NoPlaceError(
            "The request has no share or MIG slice, or one of size 0. Request at least one, of at least 1 % or 1 MiB"
        )
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
    """Return the error that says why no node has a place for these fractions.

    ``ask`` is the request. If ``explain`` is set, the error also names the nearest thing that is possible. ``every``
    are the nodes, ``tenant`` is the number of the tenant that requests.
    """
    what = part_phrases.wanted(ask.request)
    word = "MIG slices" if ask.sliced else "shares"
    # ``openable``: GPUs that have room for the request when they are empty.
    offering = [nodes for nodes in every if nodes.rooms.offered(sliced=ask.sliced)]
    if not offering:
        why = f"no node offers GPUs as {word}"
    elif not any(nodes.openable & nodes.rooms.offered(sliced=ask.sliced) for nodes in offering):
        why = f"no GPU that nodes offer as {word} has room for it, even if the GPU is empty"
        return NoPlaceError(sentences(why, _instead(ask, offering)), request=what, cause=Cause.NEVER)
    elif not any(_ever(ask, nodes) for nodes in offering):
        why = "no node of this cluster has room for all of it, even if the node is empty"
        return NoPlaceError(why, request=what, cause=Cause.NEVER)
    else:
        why = "no eligible node has room for it"

    # Free capacity that only another tenant may use.
    kept = _kept_from(ask, offering, tenant)
    if kept is not None:
        why = sentences(why, "Another namespace uses fractions of GPUs with room for it (exclusiveTo: namespace)")
    cause = Cause.NEVER if not offering else Cause.GPUS if kept is None else Cause.RESERVED
    nearest = _nearest(ask, offering, kept) if explain and offering else ""
    return NoPlaceError(why, request=what, nearest=nearest, cause=cause)


def _ever(ask: Ask, nodes: Nodes) -> bool:
    """Return whether a node has room for the requested fractions if all its GPUs are empty.

    ``ask`` is the request. Each kind of fraction is checked by itself. So the answer can be True although not all kinds
    fit together.
    """
    offered = list(positions_of(nodes.rooms.offered(sliced=ask.sliced) & nodes.suitable))
    most = (int(ask.most_empty(nodes.rooms, kind)[offered].sum()) for kind in range(len(ask.wanted)))
    return all(map(int.__ge__, most, ask.wanted))


def _instead(ask: Ask, offering: Sequence[Nodes]) -> str:
    """Return as text which fractions the nodes offer: names of MIG profiles, or the largest possible share.

    ``offering`` are these nodes, ``ask`` is the request. The text is empty if shares are requested and the nodes offer
    none.
    """
    if not ask.sliced:
        most = [
            largest_share(int(nodes.rooms.memory_mib[position]), nodes.rooms.equal[position])
            for nodes in offering
            for position in positions_of(nodes.rooms.offered(sliced=False) & nodes.suitable)
        ]
        largest = max(most, key=lambda share: (share.cores, share.memory_mib), default=None)
        return "" if largest is None else f"The largest possible share is {part_phrases.amount(largest)}"
    layouts = {layout for nodes in offering for layout in nodes.rooms.layouts if layout is not None}
    known = sorted({profile.name for layout in layouts for profile in layout.profiles})
    return f"The GPUs have the MIG profiles {', '.join(known)}" if known else "The GPUs have no MIG profiles"


class _KeptFrom(NamedTuple):
    """GPUs that have room for a requested fraction, but that only another namespace may use.

    The other namespace has fractions of these GPUs already, and the policy is ``exclusiveTo: namespace``.

    Attributes:
        gpus: The number of these GPUs.
        most: The largest free capacity on one of them.
    """

    gpus: int
    most: _Most


class _Most(NamedTuple):
    """The largest free capacity on one GPU.

    The attribute ``room`` is negative, so the smallest object has the largest capacity.

    Attributes:
        room: The free capacity as a negative number.
        node: The name of the GPU's node.
        left: The free capacity as text.
    """

    room: int
    node: str
    left: str


def _kept_from(ask: Ask, offering: Sequence[Nodes], tenant: int) -> _KeptFrom | None:
    """Return the GPUs with room for the request that only another namespace may use.

    ``ask`` is the request. The result is None if there are no such GPUs. The policy ``exclusiveTo: namespace`` keeps
    them from this tenant. ``offering`` are the nodes that offer fractions.
    """
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
    """Return for each GPU position of these nodes whether the request can use GPUs there.

    The result is an array of bools, one row for each position and one column: (GPUs, 1).
    """
    return np.array([[bool(nodes.suitable >> position & 1)] for position in range(len(nodes.rooms.memory_mib))])


def _most_left(ask: Ask, nodes: Nodes, rooms: Rooms, among: Bools) -> list[_Most]:
    """Return the largest free capacity on one of these GPUs, as a list with one entry.

    ``ask`` is the request, ``rooms`` has the free capacity. Only eligible nodes count. ``among`` says which GPUs count.
    The list is empty if none of them has free capacity, so that lists of several groups can be joined.
    """
    room = np.where(among, ask.room(rooms), 0)
    slots = nodes.able(room.max(axis=0, initial=0) > 0)
    if not len(slots):
        return []
    slot = int(slots[room[:, slots].max(axis=0).argmax()])
    position = int(room[:, slot].argmax())
    left = ask.said(ask.left(rooms, position, slot))
    return [_Most(-int(room[position, slot]), nodes.group.names[slot], left)]


def _nearest(ask: Ask, offering: Sequence[Nodes], kept: _KeptFrom | None) -> str:
    """Return a text about the GPUs with fractions that come nearest to the request.

    ``ask`` is the request. The text names the GPU with the most room, and the GPUs that only another namespace may use
    (``kept``). ``offering`` are the nodes that offer fractions.
    """
    open_to = [most for nodes in offering for most in _most_left(ask, nodes, nodes.rooms, _suitable(nodes))]
    texts = [f"Most room on one GPU: {min(open_to).left}, on {min(open_to).node}"] if open_to else []
    if kept is not None:
        gpus = counted(kept.gpus, "such GPU")
        texts.append(f"The other namespace uses {gpus}, with room for {kept.most.left} on {kept.most.node}")
    return sentences(*texts) or "No GPU in use by fractions has any room for it"
