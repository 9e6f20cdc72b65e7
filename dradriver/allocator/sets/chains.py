"""Which sets have room for how many open chains at once: what NCCL's trees are within a machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.ring_capacity import Room
from dradriver.allocator.sets.subsets import Bools, Counts, Ints
from dradriver.topology.machine import PathType


class Paths(NamedTuple):
    """Masks whose GPUs an open path visits, each (2**g,), bool.

    Attributes:
        linked: By number of links c: every step has at least c links.
        any_way: Over links and PCIe.
        inner: The same without leaving a NUMA node over PCIe.
    """

    linked: dict[int, Bools]
    any_way: Bools
    inner: Bools


def fitting(room: Room, paths: Paths, rows: Ints, at: Ints, channels: Counts) -> Bools:
    """Return which sets of GPUs have room for the given number of open chains.

    Each chain goes through all GPUs of the set.

    Within a machine, NCCL's trees are open chains:

    * A chain uses one direction of a link. Two chains in opposite directions need no more than one ring.
    * It needs room twice in each GPU and each place that it passes, and once at each of its two ends.
    * It goes at most once between two GPUs, unless on the way to a third GPU.

    Args:
        room: The channels that the links of each set have room for. ``places`` are the groups of GPUs that chains must
            enter and leave: switches, NUMA nodes, linked pairs.
        paths: The sets that chains can join at all.
        rows: (n,), rows of the wires: speeds at which the same numbers of channels fit share a row.
        at: (n,), numbers of sets; an entry is checked with the row at the same position in ``rows``.
        channels: (n,), the number of chains that each set must have, int16.

    Returns:
        (n,), bool.
    """
    reach, places = room.reach, room.places

    # For each pair of row and set: channels of each GPU over PCIe, and channels out of each place over PCIe.
    lanes, up = room.lanes[:, rows, at], places.up[:, rows, at]
    if not room.wires.amd:
        return _fit(room, rows, at, channels, lanes=lanes, up=up)

    # A set avoids the wires between sockets if a gateway joins its NUMA nodes, or if third GPUs relay over links.
    # Over the wires between AMD's sockets goes one chain again and again, or none (search.cc).
    avoids_sockets = reach.has_gateway[at] | reach.uses_third[at]
    fits = _fit(room, rows, at, channels, lanes=lanes, up=up) & (
        avoids_sockets | (room.wires.sockets[rows] >= channels)
    )

    # A chain that does not fit may still fit if it never leaves its NUMA node over PCIe.
    stays_inside = paths.inner[reach.sets.masks[at]] & ~avoids_sockets & ~fits
    if stays_inside.any():
        same_node = subsets.neighbours(room.wires.hops <= PathType.NODE)[:, None]
        lanes = np.where(reach.over_pcie[:, at] & same_node != 0, lanes, 0)
        up = np.where(places.nodes[:, None], 0, up) if places.count else up
        fits |= stays_inside & _fit(room, rows, at, channels, lanes=lanes, up=up)
    return fits


def _fit(room: Room, rows: Ints, at: Ints, channels: Counts, *, lanes: Counts, up: Counts) -> Bools:
    """Return which sets have room for so many chains over the given PCIe lanes.

    Necessary conditions, the cheapest first, each checked only for sets that passed those before:

    1. At each GPU: chains that its links and lanes cannot pass on must end there, and each chain has two ends.
    2. At each place and gateway: there is room for the chains that pass, given where chains end.
    3. If all chains must end at the same two GPUs: each end is on the right side of each place.

    Args:
        room: The channels that the links of each set have room for.
        rows: (n,), rows of the wires.
        at: (n,), numbers of sets.
        channels: (n,), the number of chains.
        lanes: (g, n), channels of each GPU over PCIe.
        up: (p, n), channels out of each place over PCIe.
    """
    reach, sets, twice = room.reach, room.reach.sets, 2 * channels

    # 1. Chain ends that each GPU must take because its links and lanes do not suffice for passing through.
    ends = twice - 2 * lanes
    if room.wires.widths:
        ends = ends - _once(
            room, rows, at, channels, np.bitwise_count(sets.masks[at] & room.wires.neighbours_by_width[:, :, None])
        )

        # A GPU with one linked neighbour and no other way is a leaf: every chain ends there.
        near = subsets.neighbours(room.wires.links > 0)[rows].T
        has_few_links = np.bitwise_count(sets.masks[at] & near) < 2
        is_leaf = has_few_links & (lanes == 0) & (reach.reached_via_third[:, at] == 0) & (sets.size[at] > 2)
        ends = np.maximum(ends, np.where(is_leaf, channels, 0))

    # Negative: the GPU has room to spare. All chains together have two ends each.
    uses_all = sets.member[:, at] & (ends >= 0)
    ends = np.where(uses_all, ends, 0)
    fits: Bools = ends.sum(axis=0) <= twice

    # 2. The places and gateways must have room for the chains that pass them, given where chains end.
    if room.places.count and fits.any():
        fits[fits] = _through_places(room, rows[fits], at[fits], channels[fits], ends=ends[:, fits], up=up[:, fits])
    if reach.has_gateway.any() and fits.any():
        fits[fits] = _through_gates(room, at[fits], channels[fits], ends=ends[:, fits], lanes=lanes[:, fits])
    if room.wires.widths and room.places.count:
        # 3. In some sets all chains must end at the same two GPUs. There the side of each end can be checked, too.
        is_gate = sets.masks[at] & subsets.neighbours(reach.gateways)[:, None] != 0
        has_gateway = (sets.member[:, at] & is_gate).any(axis=0)
        ends_are_known = fits & (ends.sum(axis=0) == twice) & (channels > 0) & ~reach.uses_third[at] & ~has_gateway
        ends_are_known &= ((ends == 0) | (ends == channels)).all(axis=0)
        if ends_are_known.any():
            fits[ends_are_known] = _end_on_right_sides(
                room, rows[ends_are_known], at[ends_are_known], channels[ends_are_known],
                full=uses_all[:, ends_are_known], ended=ends[:, ends_are_known] > 0, up=up[:, ends_are_known],
            )  # fmt: skip
    return fits


def _through_gates(room: Room, at: Ints, channels: Counts, *, ends: Counts, lanes: Counts) -> Bools:
    """Which sets' gateways let chains pass between NUMA nodes: (n,), bool.

    To reach the others of its node a chain takes the PCIe link of a gate there, once where it ends beyond the border,
    twice where it comes back.
    """
    reach, member = room.reach, room.reach.sets.member[:, at]
    ok = np.ones(len(at), dtype=np.bool_)
    masks = reach.sets.masks[at]
    gates = subsets.neighbours(reach.gateways)[:, None]
    partner = member & (masks & gates != 0)
    others = member & ~partner
    for node in room.wires.nodes:
        here = (node >> np.arange(len(member)) & 1 != 0)[:, None]
        inner, outer = (np.where(others & side, ends, 0).sum(axis=0) for side in (here, ~here))
        across = reach.has_gateway[at] & (others & here).any(axis=0) & (others & ~here).any(axis=0)
        capacity = 2 * np.where(partner & here, lanes, 0).sum(axis=0)
        ok &= ~across | (capacity >= np.maximum(channels, np.maximum(inner, outer)))
    return ok


def _end_on_right_sides(
    room: Room, rows: Ints, at: Ints, channels: Counts, *, full: Bools, ended: Bools, up: Counts
) -> Bools:
    """Return which sets' chains can end on the right side of each place: (n,), bool.

    For sets where all chains end at the same two GPUs. A chain that takes every link over a place's border ends on the
    side where it began if the number of links is even, on the other side if it is odd.

    Args:
        room: The channels that the links of each set have room for.
        rows: (n,), rows of the wires.
        at: (n,), numbers of sets.
        channels: (n,), the number of chains.
        full: (g, n), GPUs whose links are all needed by chains.
        ended: (g, n), the GPUs where chains end.
        up: (p, n), channels out of each place over PCIe.
    """
    wires, places, member = room.wires, room.places, room.reach.sets.member[:, at]
    # By place: how many of the two ends are inside, and how many links over its border the chains must take.
    ends_inside = np.array([ended[holds].sum(axis=0) for holds in places.holds])
    links_taken = np.zeros(ends_inside.shape, dtype=np.int16)
    for a, b in np.argwhere(np.triu(wires.adjacent)).tolist():
        carries = wires.carries[wires.widths.index(wires.counts[a, b])][rows]
        is_taken = member[a] & member[b] & (full[a] | full[b]) & (2 * carries >= channels)
        links_taken[places.holds[:, a] != places.holds[:, b]] += is_taken
    is_certain = places.active[:, at] & (up == 0) & (links_taken == places.pairs[:, :, at].sum(axis=0))
    are_right: Bools = (~is_certain | (links_taken % 2 == ends_inside % 2)).all(axis=0)
    return are_right


def _once(room: Room, rows: Ints, at: Ints, channels: Counts, pairs: Ints) -> Counts:
    """Channels both ways over links between pairs that a chain joins at most once: ``pairs`` is (w, ..., n)."""
    out = np.zeros(pairs.shape[1:], dtype=np.int16)
    for number, carried in zip(pairs, room.wires.carries, strict=True):
        both = 2 * carried[rows]
        out += number.astype(np.int16) * np.where(room.reach.uses_third[at], both, np.minimum(both, channels))
    return out


def _through_places(room: Room, rows: Ints, at: Ints, channels: Counts, *, ends: Counts, up: Counts) -> Bools:
    """Which sets' places have room for the chains: ``ends`` is (g, n), how many must end at each GPU."""
    places, twice = room.places, 2 * channels
    active, both = places.active[:, at], 2 * up
    if room.wires.widths:
        both += _once(room, rows, at, channels, places.pairs[:, :, at])
    inner = np.array([ends[holds].sum(axis=0, dtype=np.int16) for holds in places.holds])
    # A chain that begins and ends on one side of the border passes it twice.
    one_side = np.maximum(inner, ends.sum(axis=0, dtype=np.int16) - inner)
    passing = np.maximum(channels, one_side)
    ok: Bools = (~active | (both >= passing)).all(axis=0)
    lacking = np.where(active, np.maximum(0, twice - both), 0)
    for kind in places.kinds:
        ok &= lacking[kind].sum(axis=0) <= twice
    return ok
