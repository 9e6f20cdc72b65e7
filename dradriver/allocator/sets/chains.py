"""Which sets have room for how many open chains at once: what NCCL's trees are within a machine."""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.room import Room
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.allocator.sets.wires import Counts
from dradriver.topology.machine import PathType


def fitting(room: Room, row: int, sets: Ints, channels: Counts, paths: Bools) -> Ints:
    """Positions in ``sets`` of those with room for so many chains through all their GPUs: int64.

    A chain uses one direction of a wire, so that two that run opposite ways need no more than one ring. It needs room
    twice in each GPU and each place that it passes, once where it ends, and it has two ends.

    Args:
        room: What the wires of each set have room for.
        row: A row of the wires.
        sets: Masks.
        channels: How many chains each of them must have, int16.
        paths: (2**g,), masks with an open path over links that carry a channel, or over links and PCIe.
    """
    wires, reach = room.wires, room.reach
    wide = wires.links[row] > 0
    at = np.flatnonzero(2 * room.weakest[row, sets] >= channels)
    ok = paths[sets[at]]
    if reach.through.any():
        ok = ok | reach.through[sets[at]] & (subsets.part_of_lowest(wide, sets[at]) == sets[at])
    at = at[ok]
    sets, twice = sets[at], 2 * channels[at]
    member = (sets >> np.arange(len(wide))[:, None] & 1) != 0
    lanes = room.lanes[:, row, sets]
    both = 2 * (room.degree[:, row, sets] + lanes)
    few = np.bitwise_count(sets & subsets.neighbours(wide)[:, None]) < 2
    leaf = few & (lanes == 0) & (reach.second[:, sets] == 0) & (np.bitwise_count(sets) > 2)
    ends = np.maximum(twice - both, np.where(leaf, twice // 2, 0))
    ends = np.where(member, np.maximum(ends, 0), 0).astype(np.int16)
    ok = ends.sum(axis=0) <= twice
    if room.places.count and ok.any():
        ok[ok] = _through_places(room, row, sets[ok], twice[ok], ends[:, ok])
    out: Ints = at[ok]
    return out


def _through_places(room: Room, row: int, sets: Ints, twice: Counts, ends: Counts) -> Bools:
    """Which sets' places have room for the chains: ``ends`` is (g, sets), how many must end at each GPU."""
    places = room.places
    active, both = places.active[:, sets], 2 * places.out[:, row, sets]
    inner = np.array([ends[holds].sum(axis=0) for holds in places.holds], dtype=np.int16)
    # A chain that begins and ends on one side of the border passes it twice.
    one_side = np.maximum(inner, ends.sum(axis=0, dtype=np.int16) - inner)
    passing = np.maximum(twice // 2, one_side)
    ok: Bools = (~active | (both >= passing)).all(axis=0)
    lacking = np.where(active, np.maximum(0, twice - both), 0)
    for kind in places.kinds:
        ok &= lacking[kind].sum(axis=0) <= twice
    if room.wires.amd:  # between AMD's sockets all chains are the same one
        across = places.nodes[:, None] & active & (room.reach.worst[sets] == PathType.SYS)
        if across.any():
            one = places.one[:, row, sets]
            ok &= (~across | (np.maximum(2 * one, both - 2 * one) >= twice)).all(axis=0)
    return ok
