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
    """Return which sets of GPUs have room for so many open chains through all their GPUs: (n,), bool.

    A chain uses one direction of a wire, so that two that run opposite ways need no more than one ring. It needs room
    twice in each GPU and each place that it passes, once where it ends, and it has two ends. Between two GPUs it goes
    once at most, unless on the way to a third.

    Args:
        room: What the wires of each set have room for.
        paths: Which sets chains can join at all.
        rows: (n,), rows of the wires.
        at: (n,), numbers of sets.
        channels: (n,), how many chains each of them must have, int16.
    """
    reach, places = room.reach, room.places
    lanes, up = room.lanes[:, rows, at], places.up[:, rows, at]
    if not room.wires.amd:
        return _fit(room, rows, at, channels, lanes=lanes, up=up)
    # Over the wires between AMD's sockets goes one chain again and again, or none (search.cc).
    free = reach.gated[at] | reach.through[at]
    ok = _fit(room, rows, at, channels, lanes=lanes, up=up) & (free | (room.wires.sockets[rows] >= channels))
    within = paths.inner[reach.sets.masks[at]] & ~free & ~ok
    if within.any():
        home = subsets.neighbours(room.wires.hops <= PathType.NODE)[:, None]
        lanes = np.where(reach.over_pcie[:, at] & home != 0, lanes, 0)
        up = np.where(places.nodes[:, None], 0, up) if places.count else up
        ok |= within & _fit(room, rows, at, channels, lanes=lanes, up=up)
    return ok


def _fit(room: Room, rows: Ints, at: Ints, channels: Counts, *, lanes: Counts, up: Counts) -> Bools:
    """Whether so many chains fit, over PCIe ``lanes`` and ``up`` out of places: (g, n) and (p, n) channels each."""
    reach, sets, twice = room.reach, room.reach.sets, 2 * channels
    ends = twice - 2 * lanes
    if room.wires.widths:
        ends = ends - _once(room, rows, at, channels, np.bitwise_count(sets.masks[at] & room.wires.exactly[:, :, None]))
        near = subsets.neighbours(room.wires.links > 0)[rows].T
        few = np.bitwise_count(sets.masks[at] & near) < 2
        leaf = few & (lanes == 0) & (reach.second[:, at] == 0) & (sets.size[at] > 2)
        ends = np.maximum(ends, np.where(leaf, channels, 0))
    full = sets.member[:, at] & (ends >= 0)
    ends = np.where(full, ends, 0)
    ok: Bools = ends.sum(axis=0) <= twice
    if room.places.count and ok.any():
        ok[ok] = _through_places(room, rows[ok], at[ok], channels[ok], ends=ends[:, ok], up=up[:, ok])
    if reach.gated.any() and ok.any():
        ok[ok] = _through_gates(room, at[ok], channels[ok], ends=ends[:, ok], lanes=lanes[:, ok])
    if room.wires.widths and room.places.count:
        gate = (sets.member[:, at] & (sets.masks[at] & subsets.neighbours(reach.gates)[:, None] != 0)).any(axis=0)
        settled = ok & (ends.sum(axis=0) == twice) & (channels > 0) & ~reach.through[at] & ~gate
        settled &= ((ends == 0) | (ends == channels)).all(axis=0)
        if settled.any():
            ok[settled] = _end_on_right_sides(
                room, rows[settled], at[settled], channels[settled],
                full=full[:, settled], ended=ends[:, settled] > 0, up=up[:, settled],
            )  # fmt: skip
    return ok


def _through_gates(room: Room, at: Ints, channels: Counts, *, ends: Counts, lanes: Counts) -> Bools:
    """Which sets' gateways let chains pass between NUMA nodes: (n,), bool.

    To reach the others of its node a chain takes the PCIe link of a gate there, once where it ends beyond the border,
    twice where it comes back.
    """
    reach, member = room.reach, room.reach.sets.member[:, at]
    ok = np.ones(len(at), dtype=np.bool_)
    masks = reach.sets.masks[at]
    gates = subsets.neighbours(reach.gates)[:, None]
    partner = member & (masks & gates != 0)
    others = member & ~partner
    for node in room.wires.nodes:
        here = (node >> np.arange(len(member)) & 1 != 0)[:, None]
        inner, outer = (np.where(others & side, ends, 0).sum(axis=0) for side in (here, ~here))
        across = reach.gated[at] & (others & here).any(axis=0) & (others & ~here).any(axis=0)
        capacity = 2 * np.where(partner & here, lanes, 0).sum(axis=0)
        ok &= ~across | (capacity >= np.maximum(channels, np.maximum(inner, outer)))
    return ok


def _end_on_right_sides(
    room: Room, rows: Ints, at: Ints, channels: Counts, *, full: Bools, ended: Bools, up: Counts
) -> Bools:
    """Which sets' chains end on the right side of each place: (n,), bool.

    All chains of each set end at the same two GPUs. One that takes every link over a border ends on the side where it
    began if they are even in number.

    Args:
        room: What the wires of each set have room for.
        rows: (n,), rows of the wires.
        at: (n,), numbers of sets.
        channels: (n,), chains.
        full: (g, n), GPUs of whose wires chains need all.
        ended: (g, n), the GPUs where chains end.
        up: (p, n), channels out of each place over PCIe.
    """
    wires, places, member = room.wires, room.places, room.reach.sets.member[:, at]
    inner = np.array([ended[holds].sum(axis=0) for holds in places.holds])
    taken = np.zeros(inner.shape, dtype=np.int16)
    for a, b in np.argwhere(np.triu(wires.adjacent)).tolist():
        carried = wires.carries[wires.widths.index(wires.counts[a, b])][rows]
        always = member[a] & member[b] & (full[a] | full[b]) & (2 * carried >= channels)
        taken[places.holds[:, a] != places.holds[:, b]] += always
    settled = places.active[:, at] & (up == 0) & (taken == places.pairs[:, :, at].sum(axis=0))
    out: Bools = (~settled | (taken % 2 == inner % 2)).all(axis=0)
    return out


def _once(room: Room, rows: Ints, at: Ints, channels: Counts, pairs: Ints) -> Counts:
    """Channels both ways over links between pairs that a chain joins at most once: ``pairs`` is (w, ..., n)."""
    out = np.zeros(pairs.shape[1:], dtype=np.int16)
    for number, carried in zip(pairs, room.wires.carries, strict=True):
        both = 2 * carried[rows]
        out += number.astype(np.int16) * np.where(room.reach.through[at], both, np.minimum(both, channels))
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
