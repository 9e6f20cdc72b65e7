"""What all-reduce bus bandwidth NCCL will reach: its graph search and its tuning, for all sets of GPUs at once.

``wires`` counts the wires in channels, ``reach`` says over what a set's GPUs talk, ``room`` how many rings fit,
``search`` which of them NCCL finds and ``chains`` which trees. Here the faster of ring, tree and, over switches from
compute capability 9.0, NVLS is taken. Sources: NCCL's topo.h, paths.cc, search.cc and tuning.cc (2.19 to 2.30), and its
own verdict for every subset of forty machines, against which tests compare this.

Of a machine's NCCL (``Shape.nccl``) three things depend here, and gateways in ``reach``: split domains and newer Intel
CPUs are known from 2.26 on, and NVLS has a measured efficiency from 2.28 on.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.reach import Reach
from dradriver.allocator.sets.room import Room
from dradriver.allocator.sets.search import limits_of, of_generation, reached, rings, speeds, trees
from dradriver.allocator.sets.shape import NVLS_MEASURED, SPLITS, Shape
from dradriver.allocator.sets.subsets import Bools, Floats
from dradriver.allocator.sets.wires import Wires
from dradriver.topology.machine import PathType

_TREE_EFFICIENCY = 0.92  # tuning.cc, as are the next three
_TREE_CHANNEL_GBPS = {100: 70.0, 90: 38.7, 80: 24.0, 0: 26.5}  # most that one tree channel carries
_NVLS_EFFICIENCY = {100: 0.74, 90: 0.85}
_NVLS_EFFICIENCY_BEFORE = 5 / 6
_ROUNDING = 1e-3  # as search.cc rounds what is left of a wire
_SKYLAKE_GBPS = 10.0  # between sockets (topo.h), up to 2.25 also for what NCCL has told from Skylake since:
_AFTER_SKYLAKE_GBPS = (22.0, 40.0)  # Sapphire Rapids and Emerald Rapids


def predict(
    shape: Shape,
    *,
    linked: dict[int, Bools],
    linked_paths: dict[int, Bools],
    near: dict[PathType, Bools],
    near_paths: dict[PathType, Bools],
) -> tuple[Floats, Floats]:
    """Predicted all-reduce bus bandwidth of every subset, and the same where NCCL takes two channels at least.

    Both of shape (2**g,), float32, GB/s; 0 below two GPUs. Which of the two holds ``split`` says.

    Args:
        shape: The machine.
        linked: By number of links c: masks with a ring whose every step has at least c links (bool, (2**g,)).
        linked_paths: The same for open paths.
        near: By PCIe path: masks with a ring whose every step is linked or at most that far.
        near_paths: The same for open paths.
    """
    if shape.nccl < SPLITS and shape.socket_gbps in _AFTER_SKYLAKE_GBPS:
        shape = msgspec.structs.replace(shape, socket_gbps=_SKYLAKE_GBPS)
    count = np.bitwise_count(np.arange(1 << shape.size)).astype(np.float32)
    switched = shape.switched and linked[min(linked)] & (count > 1) if linked else np.zeros(len(count), dtype=np.bool_)
    over_switch = _over_switch(shape, count) if shape.switched else np.zeros(len(count), dtype=np.float32)
    if (switched | (count < 2)).all():
        over_switch[count < 2] = 0
        return over_switch, over_switch
    wires = Wires(shape, speeds(shape.capability))
    room = Room(wires, Reach(shape, wires, near), linked)
    limits = limits_of(shape)
    any_path = np.logical_or.reduce([np.zeros(len(count), dtype=np.bool_), *near_paths.values()])
    several = np.flatnonzero(count > 1)
    one = rings(shape, room, limits, least=1)
    two = rings(shape, room, limits, least=2) if wires.adjacent.any() else one
    other = several[(one.channels != two.channels)[several] | (one.gbps != two.gbps)[several]]
    out = []
    busbw = np.where(switched, over_switch, 0).astype(np.float32)
    most = of_generation(_TREE_CHANNEL_GBPS, shape.capability)
    for found, sets in ((one, several), (two, other)):
        channels, gbps = found.channels[sets], found.gbps[sets]
        share = (count[sets] - 1) / count[sets]
        useful = most * share > gbps  # no speed makes up for it where a channel may not carry enough
        tree = np.zeros(len(sets), dtype=np.float32)
        least = (gbps / share / _TREE_EFFICIENCY).astype(np.float32)[useful]
        tree[useful] = trees(
            shape, room, limits, channels[useful], sets[useful], least=least, paths=linked_paths, any_path=any_path
        )
        busbw = busbw.copy()
        busbw[sets] = channels * np.maximum(gbps, share * np.minimum(_TREE_EFFICIENCY * tree, most))
        busbw = np.where(switched, over_switch, busbw)
        out.append(busbw)
    return out[0], out[1]


def split(shape: Shape) -> Bools:
    """Masks whose rings NCCL gives two channels at least, from 2.26 on: (2**g,), bool.

    It does where it sees exactly two NVLink domains of more than one GPU. It labels domains in one pass over the GPUs
    in their order, each giving its label to all linked ones after it, so that a GPU that is linked to two may tear one
    part in two: whether a set is split can hang on the GPUs' numbers (paths.cc, ``ncclTopoSplitNvLink``).
    """
    g = shape.size
    masks = np.arange(1 << g)
    if shape.switched or shape.nccl < SPLITS:
        return np.zeros(1 << g, dtype=np.bool_)
    member = [(masks >> gpu & 1) != 0 for gpu in range(g)]
    label = [np.full(1 << g, gpu, dtype=np.int8) for gpu in range(g)]
    for a in range(g):
        for b in range(a + 1, g):
            if shape.links[a][b]:
                label[b] = np.where(member[a] & member[b], label[a], label[b])
    domains = np.zeros(1 << g, dtype=np.int8)
    for domain in range(g):
        size = np.sum([own & (of == domain) for own, of in zip(member, label, strict=True)], axis=0)
        domains += size > 1
    out: Bools = domains == 2
    return out


def _over_switch(shape: Shape, count: Floats) -> Floats:
    """Rings over switches: as fast as the GPU with the fewest links, or NVLS for larger sets.

    NVLS has a channel for each GPU, which passes all GPUs' links once and those of its own twice. Up to 2.27 it is
    taken to reach 5/6 of them. From 2.28 on it has a measured efficiency, and its speed between nodes, which the search
    raises up to twice the speed within, is a bound on a single node, too.
    """
    own = subsets.minima([links * shape.link_gbps for links in shape.switch_links])
    own[0] = 0
    ring = reached(own, shape.capability)
    if shape.capability < min(_NVLS_EFFICIENCY):
        return ring
    tried = speeds(shape.capability)
    within = np.max([np.where(speed * (count + 1) <= own + _ROUNDING, speed, 0) for speed in tried], axis=0)
    both_ways = 2 * within * (count - 1) / np.maximum(count, 1)
    if shape.nccl < NVLS_MEASURED:
        channel = _NVLS_EFFICIENCY_BEFORE * both_ways
    else:
        between = np.min([np.where(speed >= 2 * within, speed, tried[0]) for speed in tried], axis=0)
        channel = np.minimum(of_generation(_NVLS_EFFICIENCY, shape.capability) * both_ways, between)
    nvls = count * channel
    out: Floats = np.maximum(ring, nvls).astype(np.float32)
    return out
