"""Finds bottlenecks: groups of GPUs that a larger set's rings must enter and leave.

The module also counts how many of NCCL's channels can leave each group of GPUs. ``ring_capacity`` and ``chains`` use
it. A *row* has all channel speeds of which the same number of channels fits into each wire (``link_channels``).
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets.cycles import MOST as FEW
from dradriver.allocator.sets.link_channels import WITHIN, Wires
from dradriver.allocator.sets.reach import Reach
from dradriver.allocator.sets.subsets import Bools, Counts, Ints

_FREE = 1 << 12  # more channels than anything has room for


class Places:
    """Groups of GPUs (*places*) that every ring of a larger set must enter and leave.

    The GPUs of a place are those below a PCIe switch, a tree of switches or a NUMA node. Two linked GPUs are also a
    place, if they have further links. ``p`` is the number of places, ``g`` of GPUs, ``r`` of rows (channel speeds),
    ``m`` of sets.

    Attributes:
        count: The number p of places.
        holds: (p, g) bool, which GPUs are in each place.
        kinds: (kinds, p) bool, the places of each kind, which do not overlap. Linked pairs belong to no kind.
        nodes: (p,) bool, which places are NUMA nodes.
        active: (p, m) bool, the sets that have GPUs inside and outside a place.
        up: (p, r, m) int16, channels that can leave a place over PCIe.
        pairs: (widths, p, m) int64, linked pairs across a place's border by their number of links.
        out: (p, r, m) int16, channels that can leave a place, over PCIe and links.
        one: (p, r, m) int16, channels that can leave a place over PCIe if all are copies of one ring.
        inside: (r, m) int16, channels over all links within each set.
    """

    def __init__(self, wires: Wires, reach: Reach, degree: Counts, lanes: Counts, uplinks: Ints) -> None:
        """Count for each place and set the channels that can leave the place, over PCIe and over links.

        A place is a group of GPUs. It is a bottleneck of a set that has GPUs inside it and outside it. ``g`` is the
        number of GPUs, ``r`` of rows (channel speeds), ``m`` of sets.

        Args:
            wires: The machine's links, counted in channels.
            reach: The paths within each set.
            degree: (g, r, m), channels of each GPU over its links.
            lanes: (g, r, m), channels of each GPU over PCIe.
            uplinks: (g, m), the kind of traffic on each GPU's PCIe link: an index into the last axis of
                ``Wires.uplinks``.
        """
        sets = reach.sets
        self._wires, self._reach, self._lanes = wires, reach, lanes
        places = _all_places(wires, reach)
        self.count = len(places)

        # "switch", "tree", "node" (of NUMA) or "pair" of each place, and the mask of its GPUs.
        kind = np.array([kind for kind, _ in places])
        self._place_masks: Ints = np.array([mask for _, mask in places], dtype=np.int64)[:, None]
        self.holds: Bools = (self._place_masks >> np.arange(len(lanes)) & 1) != 0
        self.nodes: Bools = kind == "node"
        self.kinds: Bools = np.array([kind == name for name in ("switch", "tree", "node")])
        is_pair = kind == "pair"
        self._wide_places, self._pair_places = np.flatnonzero(~is_pair), np.flatnonzero(is_pair)
        self._members_inside, self._members_outside = sets.masks & self._place_masks, sets.masks & ~self._place_masks
        self.active: Bools = (self._members_inside != 0) & (self._members_outside != 0)

        # A linked pair is a place only in sets with both of its GPUs.
        self.active[is_pair] &= self._members_inside[is_pair] == self._place_masks[is_pair]

        # A gateway joins NUMA nodes, so their borders are no bottleneck there.
        if reach.has_gateway.any():
            self.active[self.nodes] &= ~reach.has_gateway

        # Channels that leave each place over PCIe: of groups by their fastest link, of linked pairs by both GPUs'
        # lanes.
        up: Counts = np.zeros((self.count, len(wires.speeds), len(sets.masks)), dtype=np.int16)
        if self._wide_places.size:
            up[self._wide_places] = self._from_groups(uplinks, kind == "switch")
        self.up = self.one = up  # ``one``: of one and the same chain, again and again
        if self._pair_places.size:
            up[self._pair_places] = self._from_pairs()

        # One chain that leaves a NUMA node again and again is limited by the wires between the sockets.
        if self.nodes.any():
            self.one = up.copy()
            self.one[self.nodes] = np.minimum(up[self.nodes], wires.sockets[:, None])

        # Over links: the linked pairs across each border. A link joins two GPUs, so all degrees count each link twice.
        self.pairs = self._linked_pairs()
        self.out: Counts = np.add(up, wires.channels(self.pairs)) if wires.widths else up
        self.inside: Counts = np.where(sets.member[:, None, :], degree, 0).sum(axis=0, dtype=np.int16) // 2

    def rings(self) -> Counts:
        """Return how many rings the bottlenecks of each set let through: (r, m), int16.

        A bottleneck is a group of GPUs that each ring must enter and leave. The axes are rows (channel speeds) and
        sets.
        """
        if not self.count:
            return np.array(_FREE, dtype=np.int16)
        room = self.out
        if self._wires.widths:
            turning = 2 * (room - self._at_one_gpu())
            room = np.where(self._reach.uses_third, room, np.minimum(room, turning))
        out: Counts = np.where(self.active[:, None, :], room, _FREE).min(axis=0)
        return out

    def same_rings(self) -> Counts:
        """Return how many copies of one ring the bottlenecks of each set let through: (r, m), int16.

        A bottleneck is a group of GPUs that each ring must enter and leave. The axes are rows (channel speeds) and
        sets.
        """
        if not self._wide_places.size:
            return np.array(_FREE, dtype=np.int16)
        out: Counts = np.where(self.active[self._wide_places, None, :], self.one[self._wide_places], _FREE).min(axis=0)
        return out

    def _from_groups(self, uplinks: Ints, switch: Bools) -> Counts:
        """Return how many channels can leave each switch, switch tree and NUMA node over PCIe.

        The axes are places, rows (channel speeds) and sets: (places, r, m). ``uplinks`` is the kind of traffic on each
        GPU's PCIe link; ``switch`` says which places are single switches.
        """
        wires, masks = self._wires, self._reach.sets.masks
        talks = np.where(self._reach.sets.member, self._reach.over_pcie, 0)
        leaves = np.array([np.bitwise_or.reduce(talks[self.holds[place]], axis=0) for place in self._wide_places])
        leaves = leaves & ~self._place_masks[self._wide_places] != 0
        fastest = [max(np.flatnonzero(self.holds[place]).tolist(), key=lambda gpu: int(wires.lanes[-1, gpu]))
                   for place in self._wide_places]  # fmt: skip
        trees = [next(tree for tree in wires.trees if tree >> gpu & 1) for gpu in fastest]
        others = np.where(switch[self._wide_places], trees, 0)[:, None] & ~self._place_masks[self._wide_places]
        kind = np.where(masks & others != 0, WITHIN, uplinks[fastest])
        up = wires.pcie(kind, fastest)
        sockets, beyond = wires.sockets[:, None], self._reach.other_numa_nodes
        # No three directed rings over four nodes use each way once (Tillson 1980).
        up[self.nodes[self._wide_places]] = np.where((beyond == 3) & (sockets == 1), 2, sockets * beyond)
        out: Counts = np.where(leaves[:, None, :], up, 0)
        return out

    def _from_pairs(self) -> Counts:
        """Return how many channels can leave each pair of linked GPUs over PCIe.

        The axes are places, rows (channel speeds) and sets: (places, r, m).
        """
        wires, reach, groups = self._wires, self._reach, self._place_masks[self._pair_places]
        ends = np.nonzero(self.holds[self._pair_places])[1].reshape(-1, 2).T
        leaving = reach.over_pcie[ends] & ~groups != 0
        if reach.has_gateway.any():  # each of a gateway talks over its own PCIe link to its own NUMA node alone
            home = np.array(wires.nodes)[wires.numa_node_of[ends]][:, :, None] & ~groups
            gates = reach.gateways[ends[0], ends[1]][:, None] & reach.has_gateway
            leaving = np.where(gates, reach.sets.masks & home != 0, leaving)
        out: Counts = np.where(leaving[:, :, None, :], self._lanes[ends], 0).sum(axis=0, dtype=np.int16)
        return out

    def _linked_pairs(self) -> Ints:
        wires, member = self._wires, self._reach.sets.member
        pairs = np.zeros((len(wires.widths), *self.active.shape), dtype=np.int64)
        for a, b in np.argwhere(np.triu(wires.adjacent)):
            across = self.holds[:, a] != self.holds[:, b]
            pairs[wires.widths.index(wires.counts[a, b]), across] += member[a] & member[b]
        return pairs

    def _at_one_gpu(self) -> Counts:
        """Return the most channels that one GPU's links carry across a place's border.

        The axes (p, r, m) are places, rows (channel speeds) and sets; 0 for places that are linked pairs. The figure
        limits rings, because a ring cannot use the links of one GPU in both directions.
        """
        out, wires, member = np.zeros_like(self.out), self._wires, self._reach.sets.member
        if not self._wide_places.size:
            return out
        holds = self.holds[self._wide_places, :, None]
        inner, outer = self._members_inside[self._wide_places, None], self._members_outside[self._wide_places, None]
        counts = member & (np.bitwise_count(np.where(holds, inner, outer)) > 1)
        beyond = np.where(counts, np.where(holds, outer, inner), 0)
        crossing = wires.channels(np.bitwise_count(beyond & wires.neighbours_by_width[:, None, :, None]))
        out[self._wide_places] = crossing.max(axis=1)
        return out


def _all_places(wires: Wires, reach: Reach) -> list[tuple[str, int]]:
    """Return the kind of each place, and the bit mask of its GPUs.

    A place is a group of GPUs that every ring of a larger set must enter and leave. Its kind is ``switch``, ``tree``,
    ``node`` or ``pair``.
    """
    g = len(wires.adjacent)
    trees = wires.trees if wires.trees != wires.switches else ()
    places = [("switch", mask) for mask in wires.switches] + [("tree", mask) for mask in trees]
    places = [(kind, mask) for kind, mask in places if mask.bit_count() > 1] + [("node", mask) for mask in wires.nodes]
    places = [(kind, mask) for kind, mask in places if mask != (1 << g) - 1]
    pairs = np.argwhere(np.triu(wires.adjacent)).tolist()
    if g > 2 and len(pairs) <= FEW * (FEW - 1) // 2:
        degrees = wires.adjacent.sum(axis=1)
        places += [("pair", 1 << a | 1 << b) for a, b in pairs
                   if reach.gateways[a, b] or degrees[a] + degrees[b] > 2]  # fmt: skip
    return places
