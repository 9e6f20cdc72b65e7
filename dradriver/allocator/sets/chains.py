"""Computes how many open chains fit into the wires of each set.

Within a machine, NCCL's trees are open chains. ``nccl_search`` calls it. A chain is a path that visits all GPUs of a
set once. NCCL splits traffic into *channels*, each with one chain and one speed. A *row* has all channel speeds at
which the same number of channels fits into each wire (``link_channels``). A *place* is a group of GPUs that each chain
must enter and leave (``ring_bottlenecks``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.ring_capacity import Room
from dradriver.allocator.sets.subsets import Bools, Counts, Ints
from dradriver.topology.machine import PathType


class Paths(NamedTuple):
    """Whether an open path can visit all GPUs of each set: arrays over bit masks of sets, (2**g,) for g GPUs, bool.

    Attributes:
        linked: By number of links c: every step of the path has at least c links.
        any_way: The path uses links and PCIe.
        inner: The path uses links and PCIe, and does not leave a NUMA node over PCIe.
    """

    linked: dict[int, Bools]
    any_way: Bools
    inner: Bools


def fitting(room: Room, paths: Paths, rows: Ints, at: Ints, channels: Counts) -> Bools:
    """Return whether sets of GPUs have room for the given numbers of open chains.

    Entry ``i`` of the result is about one set (``at[i]``), one group of channel speeds (``rows[i]``) and one number of
    chains (``channels[i]``). Each chain goes through all GPUs of the set. Within a machine, NCCL's trees are open
    chains:

    * A chain uses one direction of a link. Two chains in opposite directions need no more than one ring.
    * In a GPU or place that it passes, a chain needs room twice. In the GPUs at its two ends it needs room once.
    * It goes at most once between two GPUs, unless on the way to a third GPU.

    Args:
        room: The channels that the links of each set have room for. ``places`` are the groups of GPUs that chains must
            enter and leave: switches, NUMA nodes, linked pairs.
        paths: The sets that chains can join at all.
        rows: (n,), rows of the wires. Speeds at which the same numbers of channels fit share a row.
        at: (n,), indices of sets.
        channels: (n,), the number of chains that the set must have, int16.

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
    """Return whether each set has room for its number of chains over links and PCIe.

    These are necessary conditions, the cheapest first. Each is checked only for sets that passed the conditions before:

    1. At each GPU: some chains must end there, because its links and PCIe lanes have no room to lead them on. The
       number of all these ends must be at most two for each chain.
    2. At each place (a group of GPUs below a switch or CPU) and each gateway GPU: there is room for the chains that
       pass.
    3. If all chains must end at the same two GPUs: the links over each place's border lead to these ends.

    Args:
        room: The channels that the links of each set have room for.
        rows: (n,), row (of channel speeds) of each entry.
        at: (n,), index of each entry's set.
        channels: (n,), the number of chains.
        lanes: (GPUs, n), channels of each GPU over PCIe.
        up: (places, n), channels out of each place over PCIe.
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
    """Return whether each set's gateways let the chains pass between NUMA nodes: (n,), bool.

    A gateway is a linked pair of GPUs on two NUMA nodes whose link carries the traffic between the nodes. To reach the
    other GPUs of its node, a chain uses the PCIe link of a gateway GPU there. It uses that link once if it ends on the
    other node, twice if it returns. ``ends`` is how many chains end at each GPU, ``lanes`` the channels of each GPU
    over PCIe. ``room`` has the sets and their paths, ``channels`` the number of chains of each.
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
    """Return whether all chains of each set can end where they must: (n,), bool.

    In these sets all chains end at the same two GPUs. Each end is inside or outside of each place (a group of GPUs
    below a switch or CPU). If a chain takes every link over a place's border, the number of these links decides where
    it ends. It ends on the side where it began if the number is even, and on the other side if it is odd.

    Args:
        room: The channels that the links of each set have room for.
        rows: (n,), row (of channel speeds) of each entry.
        at: (n,), index of each entry's set.
        channels: (n,), the number of chains.
        full: (GPUs, n), GPUs whose links are all needed by chains.
        ended: (GPUs, n), the GPUs where chains end.
        up: (places, n), channels out of each place over PCIe.
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
    """Return how many chains the links carry; each chain joins a pair at most once.

    The number is an upper bound; both directions of the links are added up. In a set whose chains pass third GPUs, a
    chain may join a pair more often. ``pairs`` is the number of pairs of GPUs by width (number of links); its last axis
    is sets: (widths, ..., n). ``rows``, ``at`` and ``channels`` are the channel speed, the set and the number of chains
    of each of the n entries. The result has the shape of ``pairs`` without the first axis.
    """
    out = np.zeros(pairs.shape[1:], dtype=np.int16)
    for number, carried in zip(pairs, room.wires.carries, strict=True):
        both = 2 * carried[rows]
        out += number.astype(np.int16) * np.where(room.reach.uses_third[at], both, np.minimum(both, channels))
    return out


def _through_places(room: Room, rows: Ints, at: Ints, channels: Counts, *, ends: Counts, up: Counts) -> Bools:
    """Return whether all places have room for the chains of each set: (n,), bool.

    A place is a group of GPUs that each chain must enter and leave. ``ends`` is how many chains end at each GPU: (GPUs,
    n). ``up`` is the channels out of each place over PCIe: (places, n). ``rows``, ``at`` and ``channels`` are the
    channel speed, the set and the number of chains of each entry.
    """
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
