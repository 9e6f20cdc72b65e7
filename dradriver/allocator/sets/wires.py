"""A shape's wires in the unit that NCCL's search counts in: channels of one speed, each way.

Several speeds often fit equally often into every wire; such speeds share a *row*, and what follows is computed once a
row. ``r`` below is the number of rows, ``g`` of GPUs.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.topology.machine import PathType

Counts: TypeAlias = NDArray[np.int16]

AMD_SOCKET_GBPS = 16.0  # what NCCL counts between AMD sockets, and between no others
HOST_BRIDGE = 6 / 5  # Intel's host bridge cuts peer traffic into small packets, which cost so much more (topo.h)
_PARTS = (2, 3, 4)  # PCIe trees below one NUMA node
_ROUNDING = 1e-3  # NCCL rounds what is left of a wire to thousandths


class Wires:
    """How many channels fit into each wire, one direction.

    Attributes:
        row_of: By speed, its row.
        links: (r, g, g) int16, channels over the links of each pair; over a switch, as if each pair had its own.
        width: By row, the fewest links that carry one channel; None where no pair has so many.
        lanes: (r, g) int16, channels over each GPU's PCIe link.
        bridged: The same through the host bridge.
        sockets: (r,) int16, channels between two NUMA nodes, one direction.
        amd: Whether the CPUs are AMD's.
        adjacent: (g, g) bool, whether two GPUs are directly linked.
        hops: (g, g) int64, PCIe paths.
        switches: Masks of GPUs below one PCIe switch.
        trees: Masks of GPUs below one tree of PCIe switches.
        nodes: Masks of GPUs below one NUMA node.
    """

    def __init__(self, shape: Shape, speeds: tuple[int, ...]) -> None:
        g = shape.size
        self.amd = shape.socket_gbps == AMD_SOCKET_GBPS
        bridge = 1.0 if self.amd else HOST_BRIDGE
        counts = np.array(shape.links, dtype=np.float64).reshape(g, g)
        pcie = np.array(shape.pcie_gbps, dtype=np.float64)
        each = np.array(speeds, dtype=np.float64)
        links = _fitting(counts.ravel() * shape.link_gbps, each).reshape(len(speeds), g, g)
        lanes, bridged = _fitting(pcie, each), _fitting(pcie, each * bridge)
        sockets = _fitting(np.array([shape.socket_gbps]), each)[:, 0]
        # Beyond one NUMA node a GPU's link carries traffic of both kinds, and both figures are not enough to know it.
        crossing = np.array(
            [
                [_crossing(gbps, speed, parts, bridge) for gbps in set(shape.pcie_gbps) for parts in _PARTS]
                for speed in speeds
            ]
        )
        signature = np.concatenate(
            (links.reshape(len(speeds), -1), lanes, bridged, sockets[:, None], crossing), axis=1, dtype=np.int16
        )
        _, first, self.row_of = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        self.speeds = each[first]
        self.links: Counts = links[first]
        self.lanes: Counts = lanes[first]
        self.bridged: Counts = bridged[first]
        self.sockets: Counts = sockets[first]
        widths = sorted({int(count) for count in counts.ravel()} - {0})
        self.width = [next((w for w in widths if w * shape.link_gbps >= speed - _ROUNDING), None)
                      for speed in self.speeds]  # fmt: skip
        self.adjacent: Bools = counts > 0
        self.hops: Ints = np.array(shape.paths, dtype=np.int64).reshape(g, g)
        self.switches = subsets.components(self.hops <= PathType.PIX)
        self.trees = subsets.components(self.hops <= PathType.PXB)
        self.nodes = subsets.components(self.hops <= PathType.NODE)
        self._pcie = shape.pcie_gbps
        self._uplinks: Counts | None = None

    def uplinks(self, worst: Ints) -> Counts:
        """Channels over each GPU's PCIe link to what is not below the same switches: (g, r, 2**g), int16.

        Args:
            worst: (2**g,), the farthest path that each mask's rings must take.
        """
        if self._uplinks is None:
            self._uplinks = self._to_others(worst)
        return self._uplinks

    def _to_others(self, worst: Ints) -> Counts:
        plain = self.lanes.T[:, :, None]
        masks = np.arange(len(worst))
        if self.amd:
            return np.broadcast_to(plain, (*plain.shape[:2], len(masks)))
        parts = {node: np.sum([masks & tree != 0 for tree in self.trees if tree & node], axis=0) for node in self.nodes}
        known: dict[tuple[int, float], Counts] = {}
        out = np.empty((*plain.shape[:2], len(masks)), dtype=np.int16)
        for gpu, gbps in enumerate(self._pcie):
            node = next(node for node in self.nodes if node >> gpu & 1)
            if (node, gbps) not in known:
                own = parts[node]
                table = np.array(
                    [[_crossing(gbps, speed, max(1, count), HOST_BRIDGE) for count in range(int(own.max()) + 1)]
                     for speed in self.speeds], dtype=np.int16,
                )  # fmt: skip
                within = np.where(own > 1, self.bridged[:, gpu, None], self.lanes[:, gpu, None])
                known[node, gbps] = np.where((worst == PathType.SYS) & (own > 1), table[:, own], within)
            out[gpu] = known[node, gbps]
        return out


def _fitting(gbps: NDArray[np.float64], speeds: NDArray[np.float64]) -> Counts:
    """Channels of each speed that fit: (speeds, wires), int16."""
    return np.floor(gbps[None, :] / speeds[:, None] + _ROUNDING).astype(np.int16)


def _crossing(gbps: float, speed: float, parts: int, bridge: float) -> int:
    """Channels over the link of one of ``parts`` PCIe trees below a NUMA node, of a ring that leaves the node too.

    A ring passes ``parts - 1`` times between the trees, through the host bridge, and once between the nodes. Taking
    turns, the busiest link has its share of the former, rounded up.
    """
    count = 0
    while count < gbps / speed:
        more = count + 1
        through_bridge = -(-more * (parts - 1) // parts)
        if speed * (more + (bridge - 1) * through_bridge) > gbps + _ROUNDING:
            break
        count = more
    return count
