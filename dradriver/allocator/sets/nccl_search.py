"""NCCL's graph search for all sets at once: how many channels of which speed its rings and its trees have.

``busbw`` calls it. The search goes down a list of channel speeds. At each speed it allows ever farther steps until it
finds channels. The search stops when the next speed is below 0.49 times the speed of the best channels so far. It also
stops when the channels carry all bandwidth that a GPU has. Then it may split fast channels in two. Trees get exactly as
many channels as rings. Source: NCCL's search.cc and topo.h, 2.26 to 2.30.

A *third GPU* relays between two GPUs of a set that have no direct links. Shapes below: ``r`` is the number of rows
(``link_channels``: speeds of which equally many channels fit into each link), ``n`` the number of sets to evaluate.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from dradriver.allocator.sets import chains, cycles, subsets
from dradriver.allocator.sets.link_channels import Wires
from dradriver.allocator.sets.masks import Sets
from dradriver.allocator.sets.ring_capacity import Room
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Counts, Floats, Ints
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
_LINKS, _THROUGH, _PCIE = np.array((1, 2, 3), dtype=np.int16)  # over what the best rings go


class Rings(NamedTuple):
    """The rings that NCCL's search finds: arrays with one entry for each set of GPUs.

    Attributes:
        channels: int16, the number of channels; 0 if no ring joins the set.
        gbps: float32, bandwidth of one channel, GB/s.
    """

    channels: Counts
    gbps: Floats


class Limits(NamedTuple):
    """The bandwidths at which NCCL's search for rings begins and ends.

    Both are arrays with one entry for each set of GPUs, float32, GB/s.

    Attributes:
        fastest: The bandwidth of the fastest path between two GPUs of the set.
        total: The highest total bandwidth of one GPU of the set.
    """

    fastest: Floats
    total: Floats


def of_generation(table: dict[int, _T], capability: int) -> _T:
    """Return the entry of a table for a compute capability (times ten).

    The table has entries for some capabilities. The entry for the highest one that is not above ``capability`` is used,
    as in NCCL.
    """
    return table[max(least for least in table if least <= capability)]


def speeds(capability: int) -> tuple[int, ...]:
    """Return the channel speeds that NCCL's search tries, GB/s, fastest first.

    ``capability`` is the compute capability times ten.
    """
    return of_generation(_SPEEDS, capability)


def rings(shape: Shape, room: Room, limits: Limits, at: Ints, least: Counts) -> Rings:
    """Return the rings that NCCL's search finds for each set with at least ``least`` channels.

    NCCL tries channel speeds from fast to slow, and keeps the rings with the most bandwidth of all channels together.

    Args:
        shape: The machine.
        room: How many channels of each speed its links have room for. It is an upper bound; ``room.packed`` counts
            exactly.
        limits: The fastest path between two GPUs, at which the search begins, and the highest total bandwidth of one
            GPU. The search ends when all channels together carry that total.
        at: (n,), indices of the sets to evaluate.
        least: (n,), the fewest channels.
    """
    fastest, total = limits.fastest[at], limits.total[at] - _TINY

    # 1. The best rings of each set so far, each (n,): the number of channels, GB/s of one channel, GB/s of all of them,
    #    and what they go over: 0 before any rings are found, then from near to far ``_LINKS``, ``_THROUGH`` (a third
    #    GPU) or ``_PCIE``.
    channels, best_goes_over = np.zeros((2, len(at)), dtype=np.int16)
    gbps, best_total = np.zeros((2, len(at)), dtype=np.float32)

    # 2. What can replace them, each (4, rows, n), by ``best_goes_over``, row and set. The speeds at which equally many
    #    channels fit share a row (``Wires.row_of``). ``options``: how many channels fit. ``over_what``: what these go
    #    over. ``doubtful``: whether the number is only an upper bound.
    options, over_what = _options(room, at, least)
    doubtful = _doubtful(room, at, options, over_what)

    # 3. Which sets may try which speed: (speeds, n). The fastest way between two GPUs must reach the speed, and one GPU
    #    must have the bandwidth for ``least`` channels of it.
    tried = np.array(speeds(shape.capability), dtype=np.float32)
    may_try = (tried[:, None] <= fastest + _TINY) & (tried[:, None] * least <= total + 2 * _TINY)
    may_try[-1] = True  # the slowest speed is always tried

    # 4. From the fastest speed to the slowest. NCCL ends the search of a set when the next speed is at most 0.49 times
    #    the speed of its best rings, or when its best rings carry all that a GPU has (search.cc).
    for speed, is_tried, row in zip(tried, may_try, room.wires.row_of, strict=True):
        candidates = np.flatnonzero(is_tried & (speed > _WORSE * gbps) & (best_total < total))
        if not candidates.size:
            continue
        # 4a. More channels fit at a slower speed. They are better if all of them together carry more.
        fitting_channels = options[best_goes_over[candidates], row, candidates]
        is_better = fitting_channels * speed > best_total[candidates] + _TINY
        candidates, fitting_channels = candidates[is_better], fitting_channels[is_better]
        goes_over = over_what[best_goes_over[candidates], row, candidates]

        # 4b. Count the rings of the doubtful sets exactly, and compare again.
        doubts = doubtful[best_goes_over[candidates], row, candidates].nonzero()[0]
        if doubts.size:
            for index in doubts.tolist():
                through = bool(goes_over[index] == _THROUGH)
                fitting_channels[index] = room.packed(
                    row, int(at[candidates[index]]), int(fitting_channels[index]), through=through
                )
            is_better = (fitting_channels >= least[candidates]) & (
                fitting_channels * speed > best_total[candidates] + _TINY
            )
            candidates, fitting_channels, goes_over = (
                candidates[is_better],
                fitting_channels[is_better],
                goes_over[is_better],
            )

        # 4c. Replace the best rings. Once NCCL has rings, it accepts only rings that go no farther (search.cc), so what
        #     these go over selects the options of the slower speeds.
        best_goes_over[candidates] = goes_over
        channels[candidates] = fitting_channels
        gbps[candidates] = speed
        best_total[candidates] = fitting_channels * speed

    # 5. NCCL cuts fast channels in two. Above compute capability 8.0 they must be very fast, or at most four.
    halved = (gbps >= _HALVED_GBPS) & (channels < _MOST_CHANNELS)
    if shape.capability > 80:
        halved &= (gbps >= _HALVED_FROM_HOPPER_GBPS) | (channels <= 4)
    twice = np.minimum(2 * channels, _MOST_CHANNELS)
    return Rings(np.where(halved, twice, channels), np.where(halved, gbps / 2, gbps).astype(np.float32))


def trees(
    shape: Shape,
    room: Room,
    limits: Limits,
    at: Ints,
    channels: Counts,
    *,
    least: Floats,
    paths: chains.Paths,
) -> Floats:
    """Return the bandwidth of one channel of the trees that NCCL's search finds.

    There are as many tree channels as ring channels.

    Args:
        shape: The machine.
        room: How many channels of each speed its links have room for.
        limits: The fastest path between two GPUs, and the most bandwidth that one GPU has.
        at: (n,), indices of the sets to evaluate.
        channels: (n,), channels of the rings.
        least: (n,), GB/s. A tree channel is useful only if it has more bandwidth.
        paths: The sets that open chains can join at all.

    Returns:
        (n,), float32, GB/s; 0 if there are no such trees.
    """
    # A tree of n GPUs has n - 1 steps, a ring n: NCCL raises the limit on the sum by that (search.cc).
    sets, wires = room.reach.sets, room.wires
    count = sets.size[at]
    fastest, total = limits.fastest[at], limits.total[at] * count / (count - 1.0)
    tried = np.array(speeds(shape.capability), dtype=np.float32)[:, None]
    is_tried: Bools = (tried <= fastest + _TINY) & (tried * channels <= total + _TINY)

    # NCCL begins with the fastest speed that may be tried, and takes the first that fits. It raises that to the next
    # faster speed, and so on, as long as it has not doubled.
    fastest_to_try = np.where(is_tried, tried, 0).max(axis=0)
    slower = np.append(tried[1:], 0).astype(np.float32)[:, None]
    is_open = (tried > least) & (is_tried | (slower < 2 * fastest_to_try))

    # Cheap conditions before ``chains.fitting``: each GPU has room for the end of every chain, some path joins the set.
    is_open &= (2 * room.weakest[:, at] >= channels)[wires.row_of] & _joined(room, at, paths)[wires.row_of]
    speed, set_of = np.nonzero(is_open)
    rows = np.array(wires.row_of)[speed]
    is_open[speed, set_of] = chains.fitting(room, paths, rows, at[set_of], channels[set_of])
    best_speed: Floats = np.where(is_open & is_tried, tried, 0).max(axis=0, initial=0)

    # Faster speeds count only if every speed between them and the first one fits, too.
    is_raised = (best_speed == fastest_to_try) | (fastest_to_try <= least)
    for faster, fits in zip(tried[::-1, 0], is_open[::-1], strict=True):
        is_raised &= fits | (faster <= fastest_to_try) | (faster <= least)
        best_speed = np.where(is_raised & fits & (faster > fastest_to_try), faster, best_speed)
    return best_speed


def _joined(room: Room, at: Ints, paths: chains.Paths) -> Bools:
    """Return whether each set has an open path whose every step carries a channel.

    A step is the connection between two GPUs. The shape is (r, n). The axes are the r rows (channel speeds) of
    ``room``, and the n sets of ``at``.
    """
    reach, wires, masks = room.reach, room.wires, room.reach.sets.masks[at]
    out: Bools = (room.lanes.max(axis=0)[:, at] > 0) & paths.any_way[masks]
    for width in wires.widths:
        joined = paths.linked[width][masks]
        if reach.uses_third.any():
            whole = subsets.part_of_lowest(wires.counts >= width, masks) == masks
            joined = joined | reach.uses_third[at] & whole
        out[[row for row, needed in enumerate(wires.needed_width) if needed == width]] |= joined
    return out


def reached(capacity: Floats, capability: int) -> Floats:
    """Return the total bandwidth of the equal channels that NCCL fits into a bandwidth.

    ``capacity`` is the available bandwidth. It and the result are float32, GB/s. ``capability``, the compute capability
    times ten, decides which channel speeds exist. Examples: 24 GB/s become two channels of 12, 16 become one of 15,
    370.8 on Hopper become 360.
    """
    total, best = np.zeros_like(capacity), np.zeros_like(capacity)
    for speed in speeds(capability):
        gbps = np.minimum(np.floor(capacity / speed + _TINY), _MOST_CHANNELS) * speed
        better = (gbps > total) & (speed > _WORSE * best)
        total = np.where(better, gbps, total).astype(np.float32)
        best = np.where(better, speed, best)
    return total


def _options(room: Room, at: Ints, least: Counts) -> tuple[Counts, Counts]:
    """Return the most channels that fit at each row (channel speed), and their paths.

    Both are arrays of shape (4, r, n) for r rows and n sets. The first axis has one case for each kind of path that the
    rings found so far take: no rings found, links, links through third GPUs, PCIe. The cases differ because NCCL then
    accepts only rings whose paths are not farther. It prefers nearer paths. ``least`` is the fewest channels that a set
    must have; a smaller number counts as 0.
    """
    links, through, pcie = (
        np.where(bound[:, at] >= least, bound[:, at], 0) for bound in (room.links, room.through, room.pcie)
    )
    near, near_how = np.where(links > 0, links, through), np.where(links > 0, _LINKS, _THROUGH)
    far, turned = pcie > near, through > links
    channels = (np.where(near > 0, near, pcie), links, np.where(turned, through, links), np.where(far, pcie, near))
    how = (
        np.where(near > 0, near_how, _PCIE),
        np.full_like(near_how, _LINKS),
        np.where(turned, _THROUGH, _LINKS),
        np.where(far, _PCIE, near_how),
    )
    return np.minimum(np.stack(channels), _MOST_CHANNELS), np.stack(how)


def _doubtful(room: Room, at: Ints, channels: Counts, over_what: Counts) -> Bools:
    """Return where ``channels`` may be too many, so that rings must be counted exactly.

    The result has the shape of ``channels``. ``channels`` and ``over_what``, the paths, are the result of ``_options``.
    The numbers of small sets, and of machines with more than eight GPUs, are never doubtful. For larger sets, two
    numbers of rings are not doubtful:

    * over direct links: up to the rings in both directions over the widest links, which exist for certain
    * through third GPUs: up to the copies of one ring that the narrowest usable link carries
    """
    if len(room.degree) > cycles.MOST or not room.wires.widths:
        return np.zeros(channels.shape, dtype=np.bool_)
    size = room.reach.sets.size[at]
    out: Bools = (over_what == _LINKS) & (size > 4) & (channels > room.sure[:, at])
    out |= (over_what == _THROUGH) & (size > 3) & (channels > room.wires.carried[:, None])
    return out


def limits_of(shape: Shape, wires: Wires, sets: Sets) -> Limits:
    """Return the bandwidths at which NCCL's search begins and ends, for every set.

    ``shape`` is the machine, ``wires`` its links, counted in channels. The search begins at the fastest path of two
    members. It ends when all channels together carry the total bandwidth of one GPU.
    """
    near = subsets.neighbours(wires.hops < PathType.SYS)[:, None]
    pcie = np.array(shape.pcie_gbps, dtype=np.float32)[:, None]
    way = np.where(sets.masks & near != 0, pcie, np.minimum(pcie, np.float32(shape.socket_gbps)))
    links = np.zeros_like(way)
    for width, gpus in zip(wires.widths, wires.neighbours_by_width, strict=True):
        count = np.bitwise_count(sets.masks & gpus[:, None])
        links += count * np.float32(width * shape.link_gbps)
        way = np.where(count > 0, np.maximum(way, np.float32(width * shape.link_gbps)), way)
    fastest, total = (np.where(sets.member, each, 0).max(axis=0) for each in (way, np.maximum(pcie, links)))
    return Limits(fastest, total)
