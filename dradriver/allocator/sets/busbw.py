"""What all-reduce bus bandwidth NCCL will reach on a set of GPUs: a small model of its graph search and its tuning.

NCCL packs rings into the links of a set. Each link carries traffic both ways at once, so a set's rings are directed
Hamiltonian cycles, and their total bandwidth is bounded at every GPU. Where no ring over links exists a step may go
through a third GPU (NVB) or over PCIe, whose narrowest step then decides. On machines with switches all that counts
is each GPU's own links, and from compute capability 9.0 the switches add up (NVLS). Sources: NCCL's topo.h,
search.cc and tuning.cc (2.27 to 2.30), and its own verdict for every subset of two machines and for means over three
others, against which tests compare this. Known to be off: two bridged pairs of A40 on AMD reach 16 GB/s, not 20.7.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from dradriver.allocator.sets import subsets
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
_MAX_CHANNELS = 16
_TREE_EFFICIENCY = 0.92
_TREE_CHANNEL_GBPS = {90: 38.7, 80: 24.0, 0: 26.5}  # most that one tree channel carries
_NVLS_EFFICIENCY = {100: 0.74, 90: 0.85}
_NVLS_CHANNELS_PER_GPU = 2
_AMD_SOCKET_GBPS = 16.0
_INTEL_HOST_BRIDGE = 5 / 6  # share of PCIe bandwidth that peer traffic keeps through an Intel host bridge


def predict(
    shape: Shape, *, rings: dict[int, Bools], paths: dict[int, Bools], cuts: Ints, steps: dict[PathType, Bools]
) -> Floats:
    """Predicted all-reduce bus bandwidth of every subset: shape (2**g,), float32, GB/s; 0 below two GPUs.

    Args:
        shape: The machine.
        rings: By number of links c: masks with a ring whose every step has at least c links (bool, (2**g,)).
        paths: The same for open paths.
        cuts: What ``cuts`` gives.
        steps: By PCIe path type: masks with a ring whose every step is linked or at most that far.
    """
    count = np.bitwise_count(np.arange(1 << shape.size)).astype(np.float32)
    linked = rings[min(rings)] if rings else np.zeros(1 << shape.size, dtype=np.bool_)
    pcie = _over_pcie(shape, count, steps)
    if shape.switched:
        links = _over_switch(shape, count)
        out = np.where(linked, np.maximum(links, pcie), pcie)
    elif linked.any():
        joined = _over_links(shape, count, rings, paths, cuts=cuts)
        out = np.where(joined > 0, joined, pcie)
    else:
        out = pcie
    out[count < 2] = 0
    return out.astype(np.float32)


def second_tree(shape: Shape, one_ring: Bools) -> Bools:
    """Masks on which NCCL uses a second tree that ``predict`` leaves out: shape (2**g,). For breaking ties only.

    Where one pair joins the two halves of a set that has rings for one link, NCCL 2.27 finds either one full ring or
    two half ones; both carry the same, but two bring a second tree along, 1.4 times faster. Which it finds hangs on
    the GPUs' numbers alone (its search meets the halves in PCI order: two, unless the far half's lowest GPU holds
    the link), and ``predict`` does not depend on numbers. Found in its verdict for all subsets of DGX-1, and true
    for each of them.

    Args:
        shape: The machine in its own numbering.
        one_ring: Masks whose halves one single link joins (bool, (2**g,)).
    """
    out = np.zeros(1 << shape.size, dtype=np.bool_)
    masks = np.flatnonzero(one_ring)
    if not len(masks):
        return out
    adjacent = _adjacent(shape)
    for a, b in np.argwhere(np.triu(adjacent)).tolist():
        joined = masks[(masks >> a & 1 != 0) & (masks >> b & 1 != 0)]
        without = adjacent.copy()
        without[a, b] = without[b, a] = False
        near = subsets.part_of_lowest(without, joined)
        far = joined ^ near
        end = np.where(far >> a & 1, 1 << a, 1 << b)
        halves = (np.bitwise_count(near) > 1) & (np.bitwise_count(far) > 1)
        out[joined[halves & ((far & -far) != end)]] = True
    return out


def reached(capacity: Floats, capability: int) -> Floats:
    """Total bandwidth of equal channels that NCCL's search finds within ``capacity``: same shape, float32, GB/s.

    A channel has one of a few speeds. The search takes the fastest that fits, then looks for more in total down to
    about half of that speed: 24 GB/s become two channels of 12, 16 become one of 15, 370.8 on Hopper become 360.
    """
    total = np.zeros_like(capacity)
    speed_of_best = np.zeros_like(capacity)
    for speed in _of_generation(_SPEEDS, capability):
        channels = np.minimum(np.floor(capacity / speed + 1e-4), _MAX_CHANNELS)
        found = channels * speed
        better = (found > total) & ((speed_of_best == 0) | (speed > 0.49 * speed_of_best))
        total = np.where(better, found, total).astype(np.float32)
        speed_of_best = np.where(better, speed, speed_of_best)
    return total


def cuts(shape: Shape, *, rings: dict[int, Bools], paths: dict[int, Bools]) -> Ints:
    """Fewest links that part each mask into two, 0 where that decides nothing: shape (2**g,), int64."""
    out = np.zeros(1 << shape.size, dtype=np.int64)
    if not shape.switched and rings:
        masks = np.arange(1 << shape.size)
        joined = subsets.part_of_lowest(_adjacent(shape)) == masks
        wanted = masks[joined & (masks & (masks - 1) != 0) & _prefers_through(rings, paths)]
        out[wanted] = subsets.min_cuts(shape.links, wanted)
    return out


def _prefers_through(rings: dict[int, Bools], paths: dict[int, Bools]) -> Bools:
    """Masks whose rings may go through third GPUs.

    NCCL's search begins with fast channels: four GPUs in a wide chain get NVB rings although a narrow plain ring
    exists. With five and more its paths through third GPUs take the narrow way and it ends with the plain ring.
    """
    linked = rings[min(rings)]
    four = np.bitwise_count(np.arange(len(linked))) == 4
    out: Bools = ~linked | (four & (_widest(paths) > _widest(rings)))
    return out


def _widest(graphs: dict[int, Bools]) -> Ints:
    out: Ints = np.max([np.where(has, width, 0) for width, has in graphs.items()], axis=0)
    return out


def _over_links(shape: Shape, count: Floats, rings: dict[int, Bools], paths: dict[int, Bools], *, cuts: Ints) -> Floats:
    """Rings over direct links, through third GPUs of the set where there is none; 0 where links do not join the set."""
    linked = rings[min(rings)]
    ring = np.where(linked, reached(_visits(shape) * np.float32(shape.link_gbps), shape.capability), 0)
    # A closed walk crosses every cut both ways; through third GPUs nothing else binds it.
    through = reached((cuts * np.float32(shape.link_gbps)).astype(np.float32), shape.capability)
    prefers_through = _prefers_through(rings, paths)
    ring = np.where(prefers_through, np.maximum(ring, through), ring)
    # Trees get as many channels as rings. Two can run a wide chain in both directions and then beat the rings.
    fastest = _widest(paths) * np.float32(shape.link_gbps)
    two_channels = np.isclose(ring, 2 * shape.link_gbps)
    return np.where(two_channels, np.maximum(ring, _tree(fastest, count, shape.capability)), ring).astype(np.float32)


def _visits(shape: Shape) -> Floats:
    """Links' worth of rings that can pass the tightest GPU of each mask: shape (2**g,), float32.

    A ring enters a GPU from one neighbour and leaves to another. With ``d`` links to the set, ``m`` of them to one
    neighbour, at most ``min(d, 2 * (d - m))`` rings pass (one per link and direction, none turns back); two GPUs
    alone use all links.
    """
    masks = np.arange(1 << shape.size)
    pairs = np.bitwise_count(masks) == 2
    tightest = np.full(1 << shape.size, np.inf, dtype=np.float32)
    for position, row in enumerate(shape.links):
        degree = subsets.sums(row)
        passing = np.where(pairs, degree, np.minimum(degree, 2 * (degree - subsets.maxima(row))))
        member = (masks >> position & 1) != 0
        tightest = np.where(member, np.minimum(tightest, passing), tightest)
    tightest[0] = 0
    return tightest


def _tree(channel: Floats, count: Floats, capability: int) -> Floats:
    """Bus bandwidth of a tree of two channels: 0.92 of their total, capped per channel, halved by going up and down."""
    most = 2 * _of_generation(_TREE_CHANNEL_GBPS, capability)
    moved = np.minimum(_TREE_EFFICIENCY * 2 * channel, most)
    out: Floats = (moved * (count - 1) / np.maximum(count, 1)).astype(np.float32)
    return out


def _over_switch(shape: Shape, count: Floats) -> Floats:
    """Rings over switches: as fast as the GPU with the fewest links, or NVLS for larger sets."""
    own = subsets.minima([links * shape.link_gbps for links in shape.switch_links])
    own[0] = 0
    ring = reached(own, shape.capability)
    if shape.capability < min(_NVLS_EFFICIENCY):
        return ring
    efficiency = _of_generation(_NVLS_EFFICIENCY, shape.capability)
    carried = np.minimum(_NVLS_CHANNELS_PER_GPU * count * np.floor(shape.link_gbps), ring)
    nvls = 2 * efficiency * carried * (count - 1) / np.maximum(count, 1)
    out: Floats = np.maximum(ring, nvls).astype(np.float32)
    return out


def _over_pcie(shape: Shape, count: Floats, steps: dict[PathType, Bools]) -> Floats:
    """Rings with PCIe steps: as fast as the narrowest kind of step that cannot be avoided."""
    pcie = subsets.minima(shape.pcie_gbps)
    pcie[0] = 0
    bridge = 1.0 if shape.socket_gbps == _AMD_SOCKET_GBPS else _INTEL_HOST_BRIDGE
    limit = np.zeros_like(pcie)
    socket = np.zeros(limit.shape, dtype=np.bool_)
    for path in sorted(steps, reverse=True):  # nearer kinds overwrite farther ones
        across = path is PathType.SYS
        share = bridge if path in (PathType.PHB, PathType.NODE) else 1.0
        limit = np.where(steps[path], pcie * share, limit)
        socket = np.where(steps[path], across, socket)
    adjacent = _adjacent(shape)
    near = subsets.neighbours(adjacent).tolist()
    masks = np.arange(1 << shape.size)
    alone = np.zeros(limit.shape, dtype=np.bool_)
    for position, mask in enumerate(near):
        alone |= ((masks >> position & 1) != 0) & (masks & mask == 0)
    # Where every GPU has a linked partner each ring enters a partnership by one GPU and leaves by the other, so that
    # a second ring the other way round finds the PCIe links' other direction free. Between sockets both share the
    # same wires.
    limit = np.where(alone, limit, 2 * limit)
    limit = np.where(socket, np.minimum(limit, shape.socket_gbps), limit).astype(np.float32)
    ring = reached(limit, shape.capability)
    # Between sockets NCCL finds two slow rings rather than a fast one, which bring two fast trees along, for two parts
    # that links hold together, and for six GPUs of which two pairs are linked (its verdict on DGX-1, on bridge pairs).
    parts = _parts(adjacent)
    by_tree = socket & ((~alone & (parts == 2)) | (alone & (parts == 4) & (count == 6)))
    return np.where(by_tree, np.maximum(ring, _tree(ring, count, shape.capability)), ring)


def _parts(adjacent: Bools) -> Ints:
    """Into how many parts links join the members of each mask: shape (2**g,), int64."""
    part = subsets.part_of_lowest(adjacent)
    out = np.zeros(len(part), dtype=np.int64)
    rest = np.arange(len(part))
    while rest.any():
        out += rest != 0
        rest = rest ^ part[rest]
    return out


def _adjacent(shape: Shape) -> Bools:
    return np.array(shape.links, dtype=np.int64).reshape(shape.size, shape.size) > 0


def _of_generation(table: dict[int, _T], capability: int) -> _T:
    return table[max(least for least in table if least <= capability)]
