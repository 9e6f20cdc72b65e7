"""Groups of GPUs that every ring of a larger set must enter and leave, and how many channels can leave them."""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.cycles import MOST as FEW
from dradriver.allocator.sets.reach import Reach
from dradriver.allocator.sets.subsets import Bools
from dradriver.allocator.sets.wires import Counts, Wires

_FREE = 1 << 12  # more channels than anything has room for


class Places:
    """PCIe switches, trees of switches and NUMA nodes with GPUs, and linked pairs that have other links too.

    Attributes:
        count: Their number p.
        holds: (p, g) bool, whose GPUs.
        kinds: (kinds, p) bool, the places of one kind, which do not overlap; linked pairs are of none.
        nodes: (p,) bool, which are NUMA nodes.
        active: (p, 2**g) bool, masks of which a place cuts a part off.
        out: (p, r, 2**g) int16, channels that can leave it.
        one: (p, r, 2**g) int16, channels that can leave it over the same wire again and again.
        inside: (r, 2**g) int16, channels over all links within each mask.
    """

    def __init__(self, wires: Wires, reach: Reach, degree: Counts, lanes: Counts) -> None:
        g, size = len(wires.adjacent), degree.shape[-1]
        masks = np.arange(size)
        member = (masks >> np.arange(g)[:, None] & 1) != 0
        self._member, self._degree, self._reach = member, degree, reach
        self._linked = subsets.neighbours(wires.adjacent)
        self.inside: Counts = (np.where(member[:, None, :], degree, 0).sum(axis=0) // 2).astype(np.int16)
        everything = size - 1
        found = [("switch", mask) for mask in wires.switches] + [("tree", mask) for mask in wires.trees]
        found = [(kind, mask) for kind, mask in dict.fromkeys(found) if mask.bit_count() > 1]
        found += [("node", mask) for mask in wires.nodes]
        found = [(kind, mask) for kind, mask in found if mask != everything]
        if g <= FEW:
            degrees = wires.adjacent.sum(axis=1)
            found += [("pair", 1 << a | 1 << b) for a, b in np.argwhere(np.triu(wires.adjacent)).tolist()
                      if g > 2 and (reach.gates[a, b] or degrees[a] + degrees[b] > 2)]  # fmt: skip
        self.count = len(found)
        kind = np.array([kind for kind, _ in found])
        self._groups = groups = np.array([mask for _, mask in found], dtype=np.int64)
        self.holds: Bools = (groups[:, None] >> np.arange(g) & 1) != 0
        self.nodes: Bools = kind == "node"
        self._pairs = kind == "pair"
        self.kinds: Bools = np.array([kind == name for name in ("switch", "tree", "node")])
        self._in, self._rest = masks & groups[:, None], masks & ~groups[:, None]
        self.active: Bools = (self._in != 0) & (self._rest != 0)
        self.active &= np.where(self._pairs[:, None], self._in == groups[:, None], True)
        self.active &= ~(self.nodes[:, None] & reach.gated)
        up = np.zeros((self.count, degree.shape[1], size), dtype=np.int16)
        self.one: Counts = up.copy()
        for place, (name, group) in enumerate(found):
            up[place], self.one[place] = self._up(name, int(group), wires, lanes)
        if wires.adjacent.any():
            up += (self.inside[None] - self.inside[:, self._in].swapaxes(0, 1)
                   - self.inside[:, self._rest].swapaxes(0, 1))  # fmt: skip
        self.out: Counts = up

    def rings(self) -> Counts:
        """Most rings that the places let through: (r, 2**g), int16."""
        if not self.count:
            return np.array(_FREE, dtype=np.int16)
        turning = 2 * (self.out - self._at_one_gpu())
        room = np.where(self._reach.through, self.out, np.minimum(self.out, turning))
        out: Counts = np.where(self.active[:, None, :], room, _FREE).min(axis=0)
        return out

    def same_rings(self) -> Counts:
        """The same for one ring again and again."""
        if self._pairs.all():
            return np.array(_FREE, dtype=np.int16)
        active = self.active & ~self._pairs[:, None]
        out: Counts = np.where(active[:, None, :], self.one, _FREE).min(axis=0)
        return out

    def _up(self, kind: str, group: int, wires: Wires, lanes: Counts) -> tuple[Counts, Counts]:
        """Channels that can leave a group over PCIe, and over the same wire: twice (r, 2**g)."""
        reach, masks = self._reach, np.arange(lanes.shape[-1])
        gpus = [gpu for gpu in range(len(lanes)) if group >> gpu & 1]
        leaving = reach.over_pcie[gpus] & ~group != 0
        if kind == "pair":
            if reach.gates[gpus[0], gpus[1]]:  # each talks over its own PCIe link to its own NUMA node alone
                home = np.array([next(node for node in wires.nodes if node >> gpu & 1) & ~group for gpu in gpus])
                leaving = np.where(reach.gated, masks & home[:, None] != 0, leaving)
            up = np.where(leaving[:, None, :], lanes[gpus], 0).sum(axis=0)
            return up, up
        leaves = (self._member[gpus] & leaving).any(axis=0)
        if kind == "node":
            others = np.sum([masks & node != 0 for node in wires.nodes if node != group], axis=0)
            sockets = wires.sockets[:, None]
            # No three directed rings over four nodes use each way once (Tillson 1980).
            up = np.where((others == 3) & (sockets == 1), 2, sockets * others)
            return np.where(leaves, up, 0), np.where(leaves, sockets, 0)
        slowest = min(gpus, key=lambda gpu: int(wires.lanes[-1, gpu]))
        tree = next(tree for tree in wires.trees if tree & group)
        within = (masks & tree & ~group != 0) & (kind == "switch")
        up = np.where(within, wires.lanes[:, slowest, None], wires.uplinks(reach.worst)[slowest])
        up = np.where(leaves, up, 0)
        return up, up

    def _at_one_gpu(self) -> Counts:
        """Channels over links across a place's border at any one GPU: a ring passes a GPU once, so not both ways.

        Shape (p, r, 2**g). Left out for linked pairs and for machines of more than eight GPUs.
        """
        out, groups, linked = np.zeros_like(self.out), self._groups, self._linked
        if len(linked) > FEW:
            return out
        for gpu in range(len(linked)):
            places = np.flatnonzero(~self._pairs & (linked[gpu] & np.where(self.holds[:, gpu], ~groups, groups) != 0))
            if not places.size:
                continue
            holds = self.holds[places, gpu][:, None]
            own = np.where(holds, self._in[places], self._rest[places])
            other = np.where(holds, self._rest[places], self._in[places])
            crossing = self._degree[gpu][:, other].swapaxes(0, 1)
            counts = self._member[gpu] & (np.bitwise_count(own) > 1)
            out[places] = np.where(counts[:, None, :], np.maximum(out[places], crossing), out[places])
        return out
