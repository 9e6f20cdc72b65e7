"""Finds the paths between the GPUs of each set, as NCCL chooses them.

``busbw`` makes one ``Reach`` for a shape (a machine without names). A *step* of a ring is the connection between two
GPUs that are neighbours in the ring. NCCL gives each pair one path:

1. its direct links
2. else the widest path over the links of a third GPU of the set (NVB), unless a PCIe switch above both GPUs is faster
3. else PCIe

A *gateway* is a linked pair of GPUs on different NUMA nodes that are both attached to their CPUs without a switch. NCCL
counts the hops from a GPU to the CPUs. Over the link of a gateway, the other GPU's CPU is as few hops away as over the
wires between the sockets. Traffic between sockets then uses the link and the other GPU's PCIe (paths.cc). This happens
only if the GPUs communicate through their CPUs. With AMD CPUs, GPUs do this from NCCL 2.23 on; before, they communicate
directly.
"""

from __future__ import annotations

import itertools

import numpy as np

from dradriver.allocator.sets import cycles, subsets
from dradriver.allocator.sets.link_channels import Wires
from dradriver.allocator.sets.masks import Sets
from dradriver.allocator.sets.shape import BY_CPU, Shape
from dradriver.allocator.sets.subsets import Bools, Counts, Ints
from dradriver.topology.machine import PathType

NOWHERE = int(PathType.SYS) + 1  # no PCIe path joins the set


class Reach:
    """The paths between the GPUs of every set.

    ``g`` is the number of GPUs, ``m`` of sets, ``r`` of rows (``link_channels``: speeds of which
    equally many channels fit into each link). GPUs are given as bit masks.

    Attributes:
        sets: The m sets.
        reached_via_third: (g, m) int64, for each GPU the members that it reaches only through a third GPU.
        uses_third: (m,) bool, sets with two members that reach each other only through a third GPU.
        ring_via_third: (r, m) bool, sets with a ring over links that may use third GPUs.
        worst_path: (m,) int64, the farthest PCIe path that a ring must take, a ``PathType``, or ``NOWHERE``.
        gateways: (g, g) bool, linked pairs that are gateways between their NUMA nodes.
        has_gateway: (m,) bool, sets whose NUMA nodes are joined by gateways.
        over_pcie: (g, m) int64, for each GPU the members that it reaches over PCIe in a ring with ``worst_path``.
        other_numa_nodes: (m,) int16, the number of NUMA nodes of each set, minus one.
    """

    def __init__(self, shape: Shape, wires: Wires, sets: Sets, near: dict[PathType, Bools]) -> None:
        """Compute the path between each GPU of a set and the others: links, a third GPU, PCIe, or a gateway.

        Args:
            shape: The machine.
            wires: Its links, counted in channels. ``counts`` and ``hops`` are links and PCIe paths by pair; ``detour``
                is the fewest links with which a path through a third GPU is faster than PCIe.
            sets: The m sets.
            near: By PCIe path: whether each set has a ring whose every step is linked or at most that far: (2**g,) for
                g GPUs.
        """
        self.sets = sets
        masks = sets.masks
        self._links, self._detour = wires.counts.tolist(), wires.detour.tolist()

        # All masks by GPU: itself, its linked GPUs, and what it reaches over the links of a member next to it.
        self_mask = subsets.bits(shape.size)[:, None]
        linked = subsets.neighbours(wires.adjacent)[:, None]
        over_links = _around(wires.adjacent, masks) if wires.widths else np.int64(0)

        # Members that a GPU reaches over the links of a third GPU, but not over its own.
        self.reached_via_third: Ints = over_links & masks & ~(linked | self_mask)
        self.uses_third: Bools = (sets.member & (self.reached_via_third != 0)).any(axis=0)
        self.ring_via_third: Bools = np.zeros((len(wires.speeds), len(masks)), dtype=np.bool_)

        # ``near`` is cut to the sets in question, nearest path first.
        near = {path: near[path][masks] for path in sorted(near)}
        if self.uses_third.any() and shape.size <= cycles.MOST:
            # Fills ``ring_via_third``, and lets rings in ``near`` take steps over third GPUs.
            self._with_third_gpus(shape, wires, near)

        # By set, from far to near: the nearest path type with which the set has a ring (``worst_path``; ``NOWHERE`` if
        # no PCIe path joins it), and the nearest path type between two members.
        worst_path = np.full(len(masks), NOWHERE)
        nearest_path = np.zeros_like(worst_path)
        for path, has_ring in reversed(near.items()):
            worst_path[has_ring] = path
            joined = subsets.neighbours(wires.hops == path)[:, None]
            nearest_path[(sets.member & (masks & joined != 0)).any(axis=0)] = path

        # NCCL also searches a ring that needs no PCIe with the nearest PCIe path that the set has.
        worst_path = np.where(worst_path < NOWHERE, np.maximum(worst_path, nearest_path), worst_path)
        self.gateways, self.has_gateway = _gateways(shape, wires, masks, worst_path)
        one_switch = subsets.neighbours(wires.hops == PathType.PIX)[:, None]
        is_fast = wires.counts >= wires.detour.max()

        # Two GPUs behind one PCIe switch use a detour over links only if each step of it is faster than PCIe.
        if one_switch.any() and (is_fast != wires.adjacent).any():
            over_links = (over_links & ~one_switch) | (_around(is_fast, masks) & one_switch)

        # A GPU uses PCIe to the members that it does not reach over links, if they are no farther than ``worst_path``.
        is_allowed = _within(wires.hops)[:, worst_path]
        self.over_pcie: Ints = masks & ~(linked | over_links | self_mask) & is_allowed
        self.other_numa_nodes: Counts = (masks & np.array(wires.nodes)[:, None] != 0).sum(
            axis=0, dtype=np.int16
        ) - np.int16(1)

        # Traffic through a gateway does not cross the sockets, so its farthest path stays within a NUMA node.
        self.worst_path: Ints = np.where(self.has_gateway, int(PathType.NODE), worst_path)

    def thirds(self, at: int) -> dict[tuple[int, int], int]:
        """Return the third GPU between each pair of a set that has no direct links.

        All GPUs are given by their place in the set, from 0. ``at`` is the index of the set. Among third GPUs with the
        widest path, NCCL takes the one with the most links to the end of the path (paths.cc). If several have equally
        many, it takes the first in its own numbering. NCCL's numbering is not known here, so the GPU with the lowest
        place in the set is taken.
        """
        gpus = np.flatnonzero(self.sets.member[:, at]).tolist()
        links = [[row[gpu] for gpu in gpus] for row in (self._links[gpu] for gpu in gpus)]
        out = {}
        for a, b in itertools.permutations(range(len(gpus)), 2):
            if not links[a][b]:
                ways = [(min(ours, theirs), theirs) for ours, theirs in zip(links[a], links[b], strict=True)]
                widest = max(ways)
                if widest[0] >= self._detour[gpus[a]][gpus[b]]:
                    out[a, b] = ways.index(widest)
        return out

    def _with_third_gpus(self, shape: Shape, wires: Wires, near: dict[PathType, Bools]) -> None:
        """Compute which sets have a ring that passes through third GPUs (``ring_via_third``).

        It also updates ``near`` in place for these rings. A third GPU joins two GPUs that have no direct links.
        ``near`` says by PCIe path which sets have a ring whose every step is linked or at most that far.
        """
        # Links of pairs by their number, PCIe paths, and the rows of the wires for which some pair has links enough.
        widths, paths = np.array(wires.widths)[:, None, None], np.array(list(near))[:, None, None]
        rows = np.flatnonzero(np.array([width is not None for width in wires.needed_width]))
        width_of = np.array(
            [wires.widths.index(width) for width in wires.needed_width if width is not None], dtype=np.int64
        )
        for size in range(3, shape.size + 1):
            sets = np.flatnonzero(self.uses_third & (self.sets.size == size))
            if not sets.size:
                continue

            # Of each set of k GPUs: its members, the links and paths of its pairs, and the widest way over a third GPU.
            members = np.nonzero(self.sets.member[:, sets].T)[1].reshape(-1, size)
            a, b = cycles.pairs(size)
            links = wires.counts[members[:, :, None], members[:, None, :]]
            hops = wires.hops[members[:, a], members[:, b]]
            via_third = np.minimum(links[:, :, None, :], links[:, None, :, :]).max(axis=3)[:, a, b]
            direct = links[:, a, b]
            any_way = np.where(
                (direct > 0) | (via_third < wires.detour[members[:, a], members[:, b]]), direct, via_third
            )

            # Which sets have a ring: over ways of each width, then over ways or PCIe paths of each kind.
            has_rings = cycles.have_ring(np.concatenate((any_way >= widths, (any_way > 0) | (hops <= paths))), size)
            self.ring_via_third[rows[:, None], sets] = has_rings[width_of]
            for path, has_ring in zip(near, has_rings[len(widths) :], strict=True):
                near[path][sets] = has_ring


def _around(adjacent: Bools, masks: Ints) -> Ints:
    """Return the GPUs that each GPU reaches over the links of a third one.

    The third GPU is in the same set. The result is bit masks by GPU and set: (g, m), int64. ``adjacent`` says which
    GPUs are linked, ``masks`` are the sets.
    """
    linked = subsets.neighbours(adjacent)
    out: Ints = subsets.unions(linked.tolist())[masks & linked[:, None]]
    return out


def _within(hops: Ints) -> Ints:
    """Return as a bit mask the GPUs within each PCIe distance of each GPU.

    The shape is (g, NOWHERE + 1) for g GPUs, int64. The second index is the farthest allowed PCIe path, a ``PathType``;
    ``NOWHERE`` allows all. ``hops`` are the PCIe paths of all pairs.
    """
    near = (hops > 0) & (hops <= np.arange(NOWHERE + 1)[:, None, None])
    out: Ints = (near * subsets.bits(len(hops))).sum(axis=-1).T
    return out


def _gateways(shape: Shape, wires: Wires, masks: Ints, worst: Ints) -> tuple[Bools, Bools]:
    """Return which pairs of GPUs are gateways, and in which sets gateways join the NUMA nodes.

    A gateway is a linked pair of GPUs on two NUMA nodes whose link carries the traffic between the nodes. The shapes
    are (g, g) for g GPUs and (m,) for m sets, both bool. ``masks`` are the sets. ``worst`` is the farthest PCIe path
    that each set's rings must take.
    """
    direct = np.array(shape.direct, dtype=np.bool_)
    pcie = np.array(shape.pcie_gbps)
    gbps = wires.counts * shape.link_gbps
    faster = np.minimum(gbps, np.minimum(pcie[:, None], pcie[None, :])) > shape.socket_gbps
    gates: Bools = wires.adjacent & (wires.hops == PathType.SYS) & direct[:, None] & direct[None, :] & faster
    if wires.amd and shape.nccl < BY_CPU:
        gates[:] = False
    if not gates.any():
        return gates, np.zeros(len(masks), dtype=np.bool_)
    joined = subsets.part_of_lowest((wires.hops <= PathType.NODE) | gates, masks) == masks
    return gates, joined & (worst == PathType.SYS)
