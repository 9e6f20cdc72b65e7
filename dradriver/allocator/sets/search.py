"""NCCL's graph search over all sets at once: how many channels of which speed its rings have, and its trees.

The search goes down a list of speeds. At each it allows ever farther steps until it finds channels; it stops when the
next speed is below 0.49 of the best one's, or when the channels carry all that a GPU has. Then it may cut fast channels
in two, and trees get exactly the rings' number of channels. Source: NCCL's search.cc and topo.h, 2.26 to 2.30.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from dradriver.allocator.sets import chains, subsets
from dradriver.allocator.sets.room import Room
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Floats, Ints
from dradriver.topology.machine import PathType

_T = TypeVar("_T")

# The channel speeds that NCCL's search tries within a node, by least compute capability (search.cc), GB/s.
_SPEEDS = {
    100: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    90: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    0: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
}
_MOST_CHANNELS = 32
_WORSE = 0.49  # of the best channels' speed: the search goes no lower
_HALVED_GBPS = 25.0  # channels as fast as this are cut in two
_HALVED_FROM_HOPPER_GBPS = 50.0  # above compute capability 8.0, of more than four channels
_TINY = 1e-3
_LINKS, _THROUGH, _PCIE = 1, 2, 3  # over what the best rings go


class Rings(NamedTuple):
    """What the search found of every set: each (2**g,).

    Attributes:
        channels: int64, 0 where nothing joins the set.
        gbps: float32, bandwidth of one channel.
    """

    channels: Ints
    gbps: Floats


class Limits(NamedTuple):
    """Where the search begins and ends: each (2**g,), float32, GB/s.

    Attributes:
        fastest: The fastest way between two members.
        total: The most that any one member has in all.
    """

    fastest: Floats
    total: Floats


def of_generation(table: dict[int, _T], capability: int) -> _T:
    """The entry of the highest compute capability that is not above ``capability``."""
    return table[max(least for least in table if least <= capability)]


def speeds(capability: int) -> tuple[int, ...]:
    """The channel speeds that NCCL tries for a compute capability times ten, fastest first."""
    return of_generation(_SPEEDS, capability)


def rings(shape: Shape, room: Room, limits: Limits, *, least: int) -> Rings:
    """The rings that NCCL finds if it must have at least so many channels."""
    fastest, total = limits
    size = len(total)
    channels = np.zeros(size, dtype=np.int64)
    gbps, over = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.int8)
    tried = speeds(shape.capability)
    for speed, row in zip(tried, room.wires.row_of, strict=True):
        usable = (speed <= fastest + _TINY) & (speed * least <= total + _TINY) | (speed == tried[-1])
        usable &= (speed > _WORSE * gbps) & (channels * gbps < total - _TINY)
        found, how = _at_speed(room, int(row), least=least, over=over)
        better = usable & (np.minimum(found, _MOST_CHANNELS) * speed > channels * gbps + _TINY)
        channels = np.where(better, np.minimum(found, _MOST_CHANNELS), channels)
        gbps = np.where(better, np.float32(speed), gbps)
        over = np.where(better, how, over)
    halved = gbps >= _HALVED_GBPS
    if shape.capability > 80:
        halved &= (gbps >= _HALVED_FROM_HOPPER_GBPS) | (channels <= 4)
    twice = np.minimum(2 * channels, _MOST_CHANNELS)
    return Rings(np.where(halved, twice, channels), np.where(halved, gbps / 2, gbps).astype(np.float32))


def trees(
    shape: Shape,
    room: Room,
    limits: Limits,
    channels: Ints,
    sets: Ints,
    *,
    least: Floats,
    paths: dict[int, Bools],
    any_path: Bools,
) -> Floats:
    """Bandwidth of one channel of the trees that go with so many channels of rings.

    Args:
        shape: The machine.
        room: What its wires have room for.
        limits: Where the search begins and ends.
        channels: Of the rings, by set.
        sets: Masks to look at.
        least: By set, what a channel must carry to be of use.
        paths: By number of links c: masks with an open path whose every step has at least c links.
        any_path: Masks with an open path over links and PCIe.

    Returns:
        Shape of ``sets``, float32, GB/s; 0 where there are no such trees.
    """
    count = np.bitwise_count(sets)
    fastest, total = limits.fastest[sets], limits.total[sets] * count / (count - 1.0)
    wanted = channels.astype(np.int16)
    out = np.zeros(len(sets), dtype=np.float32)
    for speed, row in zip(speeds(shape.capability), room.wires.row_of, strict=True):
        open_ = (out == 0) & (speed > least) & (speed <= fastest + _TINY) & (speed * channels <= total + _TINY)
        at = np.flatnonzero(open_)
        if not at.size:
            continue
        width = room.wires.width[row]
        able = any_path & (room.lanes[:, row] > 0).any(axis=0)
        if width is not None:
            able = able | paths[width]
        out[at[chains.fitting(room, int(row), sets[at], wanted[at], able)]] = speed
    return out


def reached(capacity: Floats, capability: int) -> Floats:
    """Total bandwidth of equal channels that the search finds within ``capacity``: same shape, float32, GB/s.

    24 GB/s become two channels of 12, 16 become one of 15, 370.8 on Hopper become 360.
    """
    total, best = np.zeros_like(capacity), np.zeros_like(capacity)
    for speed in speeds(capability):
        found = np.minimum(np.floor(capacity / speed + _TINY), _MOST_CHANNELS) * speed
        better = (found > total) & (speed > _WORSE * best)
        total = np.where(better, found, total).astype(np.float32)
        best = np.where(better, speed, best)
    return total


def _at_speed(room: Room, row: int, *, least: int, over: subsets.Array) -> tuple[Ints, subsets.Array]:
    """The most channels of one speed, and over what: nearer ways first, and never farther than the best rings yet."""
    links, through, pcie = (
        np.where(bound[row] >= least, bound[row], 0).astype(np.int64) for bound in (room.links, room.through, room.pcie)
    )
    any_way = over == 0
    found, how = links, np.where(links > 0, _LINKS, 0)
    third = (through > 0) & (any_way & (found == 0) | (over == _THROUGH) & (through > found))
    third |= (through > 0) & (over == _PCIE) & (found == 0)
    found, how = np.where(third, through, found), np.where(third, _THROUGH, how)
    far = (pcie > 0) & (any_way & (found == 0) | (over == _PCIE) & (pcie > found))
    return np.where(far, pcie, found), np.where(far, _PCIE, how).astype(np.int8)


def limits_of(shape: Shape) -> Limits:
    """The limits of every set."""
    size = 1 << shape.size
    masks = np.arange(size)
    fastest, total = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    for gpu, row in enumerate(shape.links):
        member = (masks >> gpu & 1) != 0
        near = sum(1 << other for other, path in enumerate(shape.paths[gpu]) if other != gpu and path < PathType.SYS)
        pcie = shape.pcie_gbps[gpu]
        links = [count * shape.link_gbps for count in row]
        way = np.where(masks & near != 0, pcie, min(pcie, shape.socket_gbps))
        fastest = np.where(member, np.maximum(fastest, np.maximum(way, subsets.maxima(links))), fastest)
        total = np.where(member, np.maximum(total, np.maximum(pcie, subsets.sums(links))), total)
    return Limits(fastest, total)
