"""Over what the GPUs of each set reach each other: links, a third GPU's links (NVB), PCIe, and which ways NCCL takes.

NCCL gives each pair one way: its direct links; else, where the set has one, the widest way over a third GPU's links,
unless a PCIe switch that both hang below is faster; else PCIe. A GPU that hangs below its CPU without a switch is, to
NCCL's breadth-first search, as near to that CPU for its linked partner as the partner's own socket: traffic between
sockets then takes the link and the partner's PCIe (a *gateway*), not the wires between the sockets (paths.cc). That is
where GPUs talk by way of their CPUs, on AMD's from 2.23 on; before, they do it directly.
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets import cycles, subsets
from dradriver.allocator.sets.shape import BY_CPU, Shape
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.allocator.sets.wires import Counts, Wires
from dradriver.topology.machine import PathType

NOWHERE = int(PathType.SYS) + 1  # no PCIe path joins the set
_FREE = 1 << 12  # more channels than anything has room for


class Reach:
    """Ways within every set.

    Attributes:
        second: (g, 2**g) int64, by GPU: the members that it reaches through a third one alone.
        through: (2**g,) bool, masks with such a pair.
        third: By row, masks with a ring over links of which third GPUs may be part: (r, 2**g), bool.
        worst: (2**g,) int64, the farthest PCIe path that a ring must take, a ``PathType``, or ``NOWHERE``.
        forced: (r, 2**g) int16, most rings over direct links that the steps allow which every one of them takes.
        gates: (g, g) bool, linked pairs that are gateways between their NUMA nodes.
        gated: (2**g,) bool, masks whose NUMA nodes gateways join.
        over_pcie: (g, 2**g) int64, by GPU: the members that it talks to over PCIe in such a ring.
    """

    def __init__(self, shape: Shape, wires: Wires, near: dict[PathType, Bools]) -> None:
        g = shape.size
        masks = np.arange(1 << g)
        linked = [int(mask) for mask in subsets.neighbours(wires.adjacent)]
        union = subsets.unions(linked)
        self.second: Ints = np.array(
            [union[masks & own] & masks & ~own & ~(1 << gpu) for gpu, own in enumerate(linked)]
        )
        self.through: Bools = np.zeros(1 << g, dtype=np.bool_)
        for gpu, others in enumerate(self.second):
            self.through |= (masks >> gpu & 1 != 0) & (others != 0)
        rows = len(wires.speeds)
        self.third: Bools = np.zeros((rows, 1 << g), dtype=np.bool_)
        self.forced: Counts = np.full((rows, 1 << g), _FREE, dtype=np.int16)
        near = dict(sorted(near.items()))
        if self.through.any() and g <= cycles.MOST:
            near = self._with_third_gpus(shape, wires, near)
        worst = np.full(1 << g, NOWHERE)
        for kind, has in reversed(near.items()):
            worst = np.where(has, int(kind), worst)
        self.gates, self.gated = _gateways(shape, wires, worst)
        self.over_pcie: Ints = np.array(
            [
                masks & ~linked[gpu] & ~_over_links(wires, shape, gpu, masks) & _within(wires.hops[gpu])[worst]
                for gpu in range(g)
            ]
        )
        self.worst: Ints = np.where(self.gated, int(PathType.NODE), worst)

    def _with_third_gpus(self, shape: Shape, wires: Wires, near: dict[PathType, Bools]) -> dict[PathType, Bools]:
        """Fill ``third`` and ``forced``, and return ``near`` with steps over third GPUs allowed."""
        out = {kind: has.copy() for kind, has in near.items()}
        links = np.array(shape.links, dtype=np.int64).reshape(shape.size, shape.size)
        widths = sorted({width for width in wires.width if width})
        for k in range(3, shape.size + 1):
            sets = subsets.members(shape.size, k)
            at = np.array([[i for i in range(shape.size) if mask >> i & 1] for mask in sets.tolist()])
            pairs = (at[:, :, None], at[:, None, :])
            own, hops = links[pairs], wires.hops[pairs]
            second = np.minimum(own[:, :, :, None], own[:, None, :, :]).max(axis=2)
            slower = (hops == PathType.PIX) & (second * shape.link_gbps <= max(shape.pcie_gbps))
            second = np.where((own > 0) | slower, 0, second)
            any_way = np.maximum(own, second)
            graphs = [any_way >= width for width in widths] + [(any_way > 0) | (hops <= kind) for kind in out]
            has = cycles.have_ring(np.concatenate(graphs)).reshape(len(graphs), len(sets))
            direct = np.concatenate([own >= width for width in widths])
            needed = dict(zip(widths, cycles.in_every_ring(direct).reshape(len(widths), *own.shape), strict=True))
            for width, found in zip(widths, has, strict=False):
                rows = np.array([row for row, own_width in enumerate(wires.width) if own_width == width])
                self.third[np.ix_(rows, sets)] = found
                both_ways = np.where(needed[width], 2 * wires.links[rows][:, pairs[0], pairs[1]], _FREE)
                self.forced[np.ix_(rows, sets)] = both_ways.min(axis=(2, 3))
            for kind, found in zip(out, has[len(widths) :], strict=True):
                out[kind][sets] = found
        return out


def _over_links(wires: Wires, shape: Shape, gpu: int, masks: Ints) -> Ints:
    """The members that a GPU reaches over a third one's links rather than PCIe, itself among them: (2**g,), int64."""

    def around(adjacent: Bools) -> Ints:
        near = [int(mask) for mask in subsets.neighbours(adjacent)]
        found: Ints = subsets.unions(near)[masks & near[gpu]]
        return found

    one_switch = int(subsets.neighbours(wires.hops == PathType.PIX)[gpu])
    fast = np.array(shape.links).reshape(wires.hops.shape) * shape.link_gbps > max(shape.pcie_gbps)
    out: Ints = around(wires.adjacent) & ~one_switch | around(wires.adjacent & fast) & one_switch | 1 << gpu
    return out


def _within(hops: Ints) -> Ints:
    """By the farthest path allowed, the mask of what is no farther: (NOWHERE + 1,), int64."""
    bits = subsets.bits(len(hops))
    return np.array([int(bits[(hops > 0) & (hops <= kind)].sum()) for kind in range(NOWHERE + 1)])


def _gateways(shape: Shape, wires: Wires, worst: Ints) -> tuple[Bools, Bools]:
    """Pairs that are gateways, and masks whose NUMA nodes they join: (g, g) and (2**g,), bool."""
    g = shape.size
    direct = np.array(shape.direct, dtype=np.bool_)
    pcie = np.array(shape.pcie_gbps)
    gbps = np.array(shape.links).reshape(g, g) * shape.link_gbps
    faster = np.minimum(gbps, np.minimum(pcie[:, None], pcie[None, :])) > shape.socket_gbps
    gates = wires.adjacent & (wires.hops == PathType.SYS) & direct[:, None] & direct[None, :] & faster
    if wires.amd and shape.nccl < BY_CPU:
        gates[:] = False
    if not gates.any():
        return gates, np.zeros(1 << g, dtype=np.bool_)
    joined = subsets.part_of_lowest((wires.hops <= PathType.NODE) | gates) == np.arange(1 << g)
    return gates, joined & (worst == PathType.SYS)
