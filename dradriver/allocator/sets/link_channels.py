"""Counts how many of NCCL's channels the links of a machine carry, in each direction.

``busbw`` makes one ``Wires`` for a shape. NCCL splits traffic into *channels*: parallel rings or trees of one speed. At
several speeds, the same number of channels often fits into each wire. These speeds share a *row*, and all further
figures are computed once per row. ``r`` below is the number of rows, ``g`` of GPUs, ``m`` of sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.masks import Sets
from dradriver.allocator.sets.shape import Shape
from dradriver.allocator.sets.subsets import Bools, Counts, Ints
from dradriver.topology.check import MAX_LINKS
from dradriver.topology.machine import PathType

AMD_SOCKET_GBPS = 16.0  # what NCCL counts between AMD sockets, and between no others
HOST_BRIDGE = 6 / 5  # Intel's host bridge cuts peer traffic into small packets, which cost so much more (topo.h)
_ROUNDING = 1e-3  # NCCL rounds what is left of a wire to thousandths
_PLENTY = 128  # channels: more than NCCL has, and all sums of them fit into 16 bits
WITHIN, BRIDGED = 0, 1  # which traffic a GPU's PCIe link carries; else of how many trees that also leave the node


class Wires:
    """How many channels fit into each wire (link or PCIe path), in one direction.

    A channel is one of the parallel rings or trees of NCCL. A *row* has all channel speeds at which equally many
    channels fit into every wire. ``r`` is the number of rows, ``g`` of GPUs.

    Attributes:
        row_of: By speed, its row.
        speeds: (r,) float64, the fastest speed of each row.
        counts: (g, g) int64, links of each pair (``Shape.linked``).
        widths: The different numbers of links that pairs have, ascending; ``w`` is how many different ones there are.
        needed_width: By row, the fewest links that carry one channel; None if no pair of GPUs has that many links.
        links: (r, g, g) int16, channels over the links of each pair. Over a switch, each pair counts as if it had its
            own links.
        carries: (w, r) int16, channels over each number of links in ``widths``.
        carried: (r,) int16, channels over the fewest links that carry any; 0 if no links do.
        neighbours_by_width: (w, g) int64, the bit mask of the GPUs with this number of links to each GPU.
        detour: (g, g) int64, for two GPUs below one switch the fewest links with which a path through a third GPU is
            faster than PCIe; else 1.
        lanes: (r, g) int16, channels over each GPU's PCIe link.
        bridged: (r, g) int16, channels over each GPU's PCIe link and the host bridge.
        sockets: (r,) int16, channels between two NUMA nodes, one direction.
        uplinks: (g, r, kinds) int16, channels over each GPU's PCIe link by the kind of traffic (``kinds_of``).
        amd: Whether the CPUs are AMD's.
        adjacent: (g, g) bool, whether two GPUs are directly linked.
        hops: (g, g) int64, the PCIe path of each pair, as a ``PathType``.
        switches: Bit masks of GPUs below one PCIe switch.
        trees: Bit masks of GPUs below one tree of PCIe switches.
        nodes: Bit masks of GPUs of one NUMA node.
        numa_node_of: (g,) int64, the NUMA node of each GPU, as an index into ``nodes``.
    """

    def __init__(self, shape: Shape, speeds: tuple[int, ...]) -> None:
        """Count how many NCCL channels fit into each link at each speed.

        Speeds with equal counts are merged into one row.

        Args:
            shape: The machine.
            speeds: The channel speeds that NCCL tries, fastest first, GB/s.
        """
        g = shape.size
        self.amd = shape.socket_gbps == AMD_SOCKET_GBPS
        bridge_overhead = 1.0 if self.amd else HOST_BRIDGE
        gpus = range(g)
        self.counts: Ints = np.array([[shape.linked(a, b) for b in gpus] for a in gpus], dtype=np.int64).reshape(g, g)
        self.adjacent: Bools = self.counts > 0
        self.hops: Ints = np.array(shape.paths, dtype=np.int64).reshape(g, g)
        self.switches = subsets.components(self.hops <= PathType.PIX)

        # How many links it takes to be faster than PCIe. If one link carries nothing, no number of links is enough.
        links_beating_pcie = 1
        if self.adjacent.any():
            beating_counts = (
                count for count in range(1, MAX_LINKS + 1) if count * shape.link_gbps > max(shape.pcie_gbps)
            )
            links_beating_pcie = next(beating_counts, MAX_LINKS + 1)

        # A way through a third GPU matters only if it beats PCIe; behind one switch it needs so many links for that.
        self.detour: Ints = np.where(self.hops == PathType.PIX, links_beating_pcie, 1)
        self.trees = subsets.components(self.hops <= PathType.PXB)
        self.nodes = subsets.components(self.hops <= PathType.NODE)
        self.numa_node_of: Ints = np.array(
            [next(n for n, node in enumerate(self.nodes) if node >> gpu & 1) for gpu in gpus]
        )

        # Channels that fit at each speed: over links, between sockets, over PCIe. ``most_trees``: of one NUMA node.
        most_trees = max(sum(tree & node != 0 for tree in self.trees) for node in self.nodes)
        pcie = np.array(shape.pcie_gbps, dtype=np.float64)
        speed_gbps = np.array(speeds, dtype=np.float64)
        links = _fitting(self.counts.ravel() * np.float64(shape.link_gbps), speed_gbps)
        sockets = _fitting(np.array([shape.socket_gbps], dtype=np.float64), speed_gbps)

        # A GPU's PCIe link carries traffic within its tree and through the host bridge. If a set spans several trees it
        # carries both, and the two figures alone do not give the sum: ``_crossing`` counts it. So these are, by kind of
        # traffic: within the tree, through the bridge, then both in a set of 2, 3, ... trees.
        pcie_counts = [_fitting(pcie, speed_gbps), _fitting(pcie, speed_gbps * bridge_overhead)]
        pcie_counts += [_crossing(pcie, speed_gbps, count, bridge_overhead) for count in range(2, most_trees + 1)]

        # Speeds that fit equally often into every link share a row; its first speed is the fastest.
        row_of: dict[bytes, int] = {}
        signature = np.concatenate((links, sockets, *pcie_counts), axis=1)
        self.row_of = [row_of.setdefault(row.tobytes(), len(row_of)) for row in signature]
        first_speed = [self.row_of.index(row) for row in range(len(row_of))]
        self.speeds = speed_gbps[first_speed]
        self.links: Counts = links[first_speed].reshape(-1, g, g)
        self.lanes: Counts = pcie_counts[WITHIN][first_speed]
        self.bridged: Counts = pcie_counts[BRIDGED][first_speed]
        self.sockets: Counts = sockets[first_speed, 0]
        self.uplinks: Counts = np.stack(pcie_counts, axis=-1)[first_speed].swapaxes(0, 1)
        self.widths = sorted(set(self.counts.ravel().tolist()) - {0})

        # The channels by number of links that a pair has.
        width_gbps = np.array([width * shape.link_gbps for width in self.widths])
        self.carries: Counts = _fitting(width_gbps, speed_gbps)[first_speed].T
        self.carried: Counts = np.array([next((n for n in row if n), 0) for row in self.carries.T.tolist()], np.int16)
        self.neighbours_by_width: Ints = subsets.neighbours(
            self.counts == np.array(self.widths, dtype=np.int64)[:, None, None]
        )
        self.needed_width = [
            next((w for w in self.widths if w * shape.link_gbps >= speed - _ROUNDING), None) for speed in self.speeds
        ]

    def channels(self, pairs: Ints) -> Counts:
        """Return how many NCCL channels the links of some pairs carry together.

        The shape is (..., r, m), int16. The last two axes are rows (channel speeds) and sets. ``pairs`` is how many
        pairs of each width (number of links) there are: (widths, ..., m).
        """
        out = np.zeros((*pairs.shape[1:-1], len(self.speeds), pairs.shape[-1]), dtype=np.int16)
        for number, carried in zip(pairs, self.carries, strict=True):
            out += number[..., None, :].astype(np.int16) * carried[:, None]
        return out

    def pcie(self, kind: Ints, gpus: Sequence[int] | None = None) -> Counts:
        """Return how many NCCL channels the PCIe links of GPUs carry: (n, r, m).

        The axes are GPUs, rows (channel speeds) and sets. ``kind`` is the kind of traffic on each link: (n, m), see
        ``kinds_of``. ``gpus`` are the n GPUs; None for all.
        """
        uplinks = self.uplinks if gpus is None else self.uplinks[gpus]
        out: Counts = uplinks[:, :, WITHIN, None].repeat(kind.shape[1], axis=2)
        for carried in range(BRIDGED, uplinks.shape[2]):
            np.copyto(out, uplinks[:, :, carried, None], where=(kind == carried)[:, None, :])
        return out

    def kinds_of(self, sets: Sets, worst: Ints) -> Ints:
        """Return the kind of traffic on each GPU's PCIe link, by GPU and set: (g, m), int64.

        A kind is an index into the last axis of ``uplinks``. There are these kinds: the traffic stays within one tree
        of PCIe switches, it passes the host bridge, or it also leaves the NUMA node. In the last case the kind is the
        number of trees (2, 3, ...) of the NUMA node that the set uses.

        Args:
            sets: The m sets.
            worst: (m,), the farthest path that each set's rings must take.
        """
        masks = sets.masks
        if self.amd or self.uplinks.shape[-1] == BRIDGED + 1:
            return np.zeros(sets.member.shape, dtype=np.int64)
        parts = np.array([sum(((masks & tree) != 0).astype(np.int64) for tree in self.trees if tree & node)
                          for node in self.nodes])  # fmt: skip
        kind = np.where(worst == PathType.SYS, parts, BRIDGED)
        out: Ints = np.where(parts > 1, kind, WITHIN)[self.numa_node_of]
        return out


def _fitting(gbps: NDArray[np.float64], speeds: NDArray[np.float64]) -> Counts:
    """Return how many NCCL channels of each speed fit into each wire: (speeds, wires), int16.

    ``gbps`` is the bandwidth of each wire, ``speeds`` the bandwidth of a channel, GB/s.
    """
    return np.minimum(np.floor(gbps[None, :] / speeds[:, None] + _ROUNDING), _PLENTY).astype(np.int16)


def _crossing(gbps: NDArray[np.float64], speeds: NDArray[np.float64], parts: int, bridge: float) -> Counts:
    """Return how many channels of rings through several PCIe trees fit over a PCIe link.

    The shape is (speeds, wires), int16. ``gbps`` is the bandwidth of each wire, ``speeds`` that of a channel, GB/s. The
    set has GPUs below ``parts`` PCIe trees of one NUMA node, and its rings also leave the node. Such a ring passes
    ``parts - 1`` times between the trees, through the host bridge, and once between the nodes. The rings use the trees
    in different orders. So the busiest link carries its share of the traffic through the bridge, rounded up. Traffic
    through the bridge needs ``bridge`` times the bandwidth.
    """
    channels = np.arange(1, min(int(gbps.max() / speeds.min()), _PLENTY) + 1)
    through_bridge = -(-channels * (parts - 1) // parts)
    needs = speeds[:, None, None] * (channels + (bridge - 1) * through_bridge)
    out: Counts = (needs <= gbps[:, None] + _ROUNDING).sum(axis=-1, dtype=np.int16)
    return out
