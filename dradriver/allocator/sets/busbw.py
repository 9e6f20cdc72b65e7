"""Predicts the all-reduce bus bandwidth that NCCL will reach, for all sets at once.

It follows NCCL's graph search and NCCL's choice between algorithms. ``Facts`` calls it. NCCL splits traffic into
*channels*, which are parallel rings or trees. A *step* of a ring is the connection between two GPUs that are neighbours
in it. ``link_channels`` counts how many fit into the links. ``reach`` finds the paths between a set's GPUs, and
``ring_capacity`` bounds how many rings fit. ``nccl_search`` finds the rings that NCCL finds, and ``chains`` the trees.
This module takes the fastest of ring, tree and NVLS. NVLS means that NVLink switches add up the data (from compute
capability 9.0). Sources: NCCL's topo.h, paths.cc, search.cc and tuning.cc (2.19 to 2.30), and NCCL's own result for
every subset of forty machines, with which tests compare this module.

Four things depend on the machine's NCCL version (``Shape.nccl``). NCCL knows split domains (``split``) and newer Intel
CPUs from 2.26 on. NVLS has a measured efficiency from 2.28 on. Gateways are treated differently from 2.23 on
(``reach``).
"""

from __future__ import annotations

import msgspec
import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.chains import Paths
from dradriver.allocator.sets.link_channels import Wires
from dradriver.allocator.sets.masks import sets_of
from dradriver.allocator.sets.nccl_search import limits_of, of_generation, reached, rings, speeds, trees
from dradriver.allocator.sets.reach import Reach
from dradriver.allocator.sets.ring_capacity import Room
from dradriver.allocator.sets.shape import NVLS_MEASURED, SPLITS, Shape
from dradriver.allocator.sets.subsets import Bools, Floats
from dradriver.allocator.sets.symmetries import representative_masks
from dradriver.topology.machine import PathType

_TREE_EFFICIENCY = 0.92  # tuning.cc, as are the next three
_TREE_CHANNEL_GBPS = {100: 70.0, 90: 38.7, 80: 24.0, 0: 26.5}  # most that one tree channel carries
_NVLS_EFFICIENCY = {100: 0.74, 90: 0.85}
_NVLS_EFFICIENCY_BEFORE = 5 / 6
_ROUNDING = 1e-3  # as search.cc rounds what is left of a wire
_SKYLAKE_GBPS = 10.0  # between sockets (topo.h), up to 2.25 also for what NCCL has told from Skylake since:
_AFTER_SKYLAKE_GBPS = (22.0, 40.0)  # Sapphire Rapids and Emerald Rapids

_BLOCK = 1 << 13  # sets at once, so that their figures stay in a processor's cache
_WIDTHS = 16  # of links, for each of which there are such figures; fewer sets at once where there are more


def predict(
    shape: Shape,
    *,
    linked: dict[int, Bools],
    linked_paths: dict[int, Bools],
    near: dict[PathType, Bools],
    near_paths: dict[PathType, Bools],
) -> tuple[Floats, Floats]:
    """Predict the all-reduce bus bandwidth (busbw) of every subset of a machine's GPUs.

    NCCL splits traffic into *channels*: it searches for a ring or tree for each, and their bandwidths add up. Sets that
    are equal by symmetry are computed once. Sets are computed in groups that fit into a processor's cache.

    Args:
        shape: The machine without its names: links, PCIe paths, bandwidths, and the NCCL version of its jobs.
        linked: By number of links c: whether each set has a ring whose every step has at least c links (bool, (2**g,)
            for g GPUs).
        linked_paths: The same for open paths.
        near: By PCIe path: whether each set has a ring whose every step is linked or at most that far.
        near_paths: The same for open paths.

    Returns:
        Two arrays of shape (2**g,), float32, GB/s; 0 below two GPUs. The first is the bandwidth if NCCL may use a
        single channel, the second if it uses at least two. ``split`` says which one is right for a set. If no set can
        need the second, it is the same array as the first.
    """
    # NCCL before 2.26 does not know the newer Intel CPUs and takes them for Skylake.
    if shape.nccl < SPLITS and shape.socket_gbps in _AFTER_SKYLAKE_GBPS:
        shape = msgspec.structs.replace(shape, socket_gbps=_SKYLAKE_GBPS)
    g = shape.size
    masks = np.arange(1 << g)
    count = np.bitwise_count(masks).astype(np.float32)
    busbw = np.zeros((2, len(masks)), dtype=np.float32)

    # Behind NVLink switches a formula gives the bandwidth: no search is needed.
    is_switched = np.zeros(len(masks), dtype=np.bool_)
    if shape.switched and linked:
        is_switched = linked[min(linked)] & (count > 1)
        busbw[:, is_switched] = _over_switch(shape, count)[is_switched]
    if (is_switched | (count < 2)).all():
        return busbw[0], busbw[0]

    # ``representative``: by mask, the symmetric mask that is computed for it. ``representatives``: the masks to
    # compute.
    representative = representative_masks(shape)
    representatives = np.flatnonzero((representative == masks) & (count > 1) & ~is_switched)

    # How many channels of each speed fit into each link. NCCL tries other speeds on each generation of GPUs.
    wires = Wires(shape, speeds(shape.capability))
    no_masks = np.zeros(len(masks), dtype=np.bool_)

    # Masks that an open path can visit: over anything, and without leaving a NUMA node over PCIe.
    any_path = np.logical_or.reduce([no_masks, *near_paths.values()])
    path_within_numa_node = np.logical_or.reduce(
        [no_masks, *(has_path for path, has_path in near_paths.items() if path < PathType.SYS)]
    )
    paths = Paths(linked_paths, any_path, path_within_numa_node)

    # Fewer sets at once if links have many different widths, because there are figures for each width.
    block_size = _BLOCK * _WIDTHS // max(_WIDTHS, len(wires.widths))
    for start in range(0, len(representatives), block_size):
        sets = sets_of(representatives[start : start + block_size], g)
        reach = Reach(shape, wires, sets, near)  # over what the GPUs of each set reach each other
        busbw[:, sets.masks] = _of_sets(shape, Room(wires, reach, linked), paths)
    busbw = np.where(is_switched, busbw, busbw[:, representative])

    # Without direct links there are no NVLink domains that NCCL could split: the second array is the first.
    return (busbw[0], busbw[1]) if wires.widths else (busbw[0], busbw[0])


def _of_sets(shape: Shape, room: Room, paths: Paths) -> Floats:
    """Return the bandwidth of some sets over rings or trees, whichever is faster.

    The shape is (2, m) for m sets. The first row is the bandwidth if NCCL may use a single channel, the second if it
    uses at least two. ``room`` has the sets, and says how many rings can fit into their links at most. ``paths`` says
    which sets open paths can join.
    """
    sets = room.reach.sets
    limits = limits_of(shape, room.wires, sets)
    some = np.flatnonzero((sets.size > 3) & (room.degree > 0).any(axis=(0, 1)))  # two domains are four GPUs
    at = np.concatenate((np.arange(len(sets.masks)), some))
    channels, gbps = rings(shape, room, limits, at, np.where(np.arange(len(at)) < len(sets.masks), 1, 2))
    share = ((sets.size - 1) / sets.size)[at].astype(np.float32)
    most = of_generation(_TREE_CHANNEL_GBPS, shape.capability)
    useful = np.flatnonzero(most * share > gbps)  # no speed makes up for it where a channel may not carry enough
    least = (gbps / share / _TREE_EFFICIENCY)[useful]
    tree = np.zeros(len(at), dtype=np.float32)
    tree[useful] = trees(shape, room, limits, at[useful], channels[useful], least=least, paths=paths)
    busbw = channels * np.maximum(gbps, share * np.minimum(_TREE_EFFICIENCY * tree, most))
    out = np.tile(busbw[: len(sets.masks)], (2, 1))
    out[1, some] = busbw[len(sets.masks) :]
    return out


def split(shape: Shape) -> Bools:
    """Return for each set of GPUs whether NCCL uses at least two channels for it.

    The shape is (2**g,) for g GPUs, bool; the index is the set's bit mask. A channel is one of NCCL's parallel rings or
    trees. From version 2.26 on, NCCL uses at least two if it sees exactly two NVLink domains of more than one GPU. NCCL
    labels domains in one pass over the GPUs in their order: each GPU gives its label to all linked GPUs after it. So a
    GPU that is linked to two others can divide one domain in two. And it can depend on the GPUs' numbers whether a set
    is split (paths.cc, ``ncclTopoSplitNvLink``).
    """
    g = shape.size
    masks = np.arange(1 << g)
    if shape.switched or shape.nccl < SPLITS or not any(map(any, shape.links)):
        return np.zeros(1 << g, dtype=np.bool_)
    label = (masks & subsets.bits(g)[:, None]).astype(np.uint16)  # a bit by its first GPU; 0 of GPUs that are not there
    member = label != 0
    for a, b in np.argwhere(np.triu(shape.links)).tolist():
        np.copyto(label[b], label[a], where=member[a] & member[b])

    # Labels that at least two GPUs of a set have are domains of more than one GPU.
    before, several = np.zeros((2, 1 << g), dtype=np.uint16)
    for gpu_label in label:
        several |= before & gpu_label
        before |= gpu_label
    out: Bools = np.bitwise_count(several) == 2
    return out


def _over_switch(shape: Shape, count: Floats) -> Floats:
    """Return the bandwidth of each set over NVLink switches, by rings or by NVLS.

    The bandwidth of the faster one is returned. ``count`` is the number of GPUs of each set. A ring is limited by the
    GPU with the fewest links. In NVLS, which is for larger sets, the switches add up the data. NVLS has one channel for
    each GPU. A channel uses the links of all GPUs once, and the links of its own GPU twice. Up to NCCL 2.27, NVLS
    counts as reaching 5/6 of the links' bandwidth. From 2.28 on it has a measured efficiency. NCCL also computes a
    speed between nodes, which its search raises up to twice the speed within a node. This speed is then a limit on a
    single node, too.
    """
    # By mask: what the GPU with the fewest links has, GB/s.
    fewest_links_gbps = subsets.minima([links * shape.link_gbps for links in shape.switch_links])
    fewest_links_gbps[0] = 0
    ring = reached(fewest_links_gbps, shape.capability)
    if shape.capability < min(_NVLS_EFFICIENCY):
        return ring
    tried = speeds(shape.capability)
    within = np.max(
        [np.where(speed * (count + 1) <= fewest_links_gbps + _ROUNDING, speed, 0) for speed in tried], axis=0
    )

    # ``within``: the fastest speed of NVLS channels that fits; ``both_ways``: what one of them carries.
    both_ways = 2 * within * (count - 1) / np.maximum(count, 1)
    if shape.nccl < NVLS_MEASURED:
        channel = _NVLS_EFFICIENCY_BEFORE * both_ways
    else:
        between = np.min([np.where(speed >= 2 * within, speed, tried[0]) for speed in tried], axis=0)
        channel = np.minimum(of_generation(_NVLS_EFFICIENCY, shape.capability) * both_ways, between)
    nvls = count * channel
    best: Floats = np.maximum(ring, nvls).astype(np.float32)
    return best
