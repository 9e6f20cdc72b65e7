"""Computes for how many rings the links of each set have room: an upper bound for NCCL's search (``nccl_search``).

Each ring enters and leaves every GPU, every PCIe switch and every NUMA node at least once. So the narrowest of these
places bounds the number of rings. Five or more GPUs with direct links compete for links in ways that no single place
shows; for these ``packed`` counts exactly. NCCL's search, which tries orders of GPUs until it runs out of time, nearly
always finds as many. Sources: NCCL's paths.cc and search.cc, 2.26 to 2.30. No parameter here is fitted.

A *third GPU* relays between two GPUs of a set that have no direct links. In shapes, ``g`` is the number of GPUs, ``r``
of rows (``link_channels``: speeds of which equally many channels fit into each link), ``m`` of sets. All arrays are
int16.
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets import ring_packing, subsets
from dradriver.allocator.sets.link_channels import WITHIN, Wires
from dradriver.allocator.sets.masks import sets_of
from dradriver.allocator.sets.reach import NOWHERE, Reach
from dradriver.allocator.sets.ring_bottlenecks import Places
from dradriver.allocator.sets.subsets import Bools, Counts, Ints
from dradriver.topology.machine import PathType

_FREE = 1 << 12  # more channels than anything has room for
_UNDECOMPOSABLE = (4, 6)  # complete digraphs that are no sum of directed rings (Tillson 1980)


class Room:
    """Upper bounds for the number of rings in the links of every set.

    ``g`` is the number of GPUs, ``r`` of rows, ``m`` of sets.

    Attributes:
        wires: The machine's wires.
        reach: The paths between the GPUs of each set.
        degree: (g, r, m), channels over each GPU's links to members.
        lanes: (g, r, m), channels over each GPU's PCIe link.
        places: Groups of GPUs that rings must enter and leave, such as those below one switch.
        links: (r, m), rings over direct links alone; 0 if there is no such ring.
        through: (r, m), rings over links that may use third GPUs; 0 if there is no such ring.
        pcie: (r, m), rings that use PCIe, too.
        weakest: (r, m), channels over links and PCIe of the GPU that has the fewest.
        sure: (r, m), rings over direct links that exist for certain: in both directions over the widest links.
    """

    def __init__(self, wires: Wires, reach: Reach, linked: dict[int, Bools]) -> None:
        self.wires, self.reach, sets = wires, reach, reach.sets
        self._member = sets.member
        uplinks = wires.kinds_of(sets, reach.worst_path)
        self.lanes = self._lanes(uplinks)
        self.degree = wires.channels(np.bitwise_count(sets.masks & wires.neighbours_by_width[:, :, None]))
        self.places = Places(wires, reach, self.degree, self.lanes, uplinks)
        self._widest: Counts = np.zeros_like(self.degree)
        self.links = self.through = self.sure = np.zeros_like(self.degree[0])
        self._packed: dict[tuple[int, int, bool], int] = {}
        self._links_of: dict[int, list[list[int]]] = {}
        if wires.widths:
            self._widest = self._widest_links()
            self.links, self.sure = self._over_links(linked)
            self.through = self._through()
        self.pcie: Counts = self._over_pcie()

    def _least(self, bounds: Counts) -> Counts:
        """Return the smallest bound of any GPU of each set: (r, m).

        The axes are rows (channel speeds) and sets. ``bounds`` has one bound for each GPU: (g, r, m).
        """
        out: Counts = np.where(self._member[:, None, :], bounds, _FREE).min(axis=0)
        return out

    def _widest_links(self) -> Counts:
        """Return how many channels each GPU's links to one other member carry at most.

        It is the member to which the GPU has the most links. The axes are GPUs, rows (channel speeds) and sets: (g, r,
        m).
        """
        out = np.zeros_like(self.degree)
        for gpus, carried in zip(self.wires.neighbours_by_width, self.wires.carries, strict=True):
            has = self.reach.sets.masks & gpus[:, None] != 0
            out = np.where(has[:, None, :], carried[:, None], out)
        return out

    def packed(self, row: int, at: int, wanted: int, *, through: bool) -> int:
        """Return how many rings fit into one set's links at once, at most ``wanted``.

        The number is exact, except if the search would take too long: then it is ``wanted``.

        Args:
            row: The channel speed, as an index into the rows (groups of speeds).
            at: The index of the set.
            wanted: The most rings to count.
            through: Whether the rings may use third GPUs between two members without links.
        """
        known = self._packed.get((row, at, through))
        if known is None:
            gpus = self._member[:, at].nonzero()[0].tolist()
            links = self._links_of.get(row)
            if links is None:
                links = self._links_of[row] = self.wires.links[row].clip(max=ring_packing.MOST).tolist()
            channels = [[links[a][b] for b in gpus] for a in gpus]
            thirds = self.reach.thirds(at) if through else {}
            known = self._packed[row, at, through] = ring_packing.most(channels, wanted, thirds)
        return known

    def _over_links(self, linked: dict[int, Bools]) -> tuple[Counts, Counts]:
        """Compute the attributes ``links`` and ``sure``: bounds for rings over direct links.

        A ring never turns back at a GPU, so it needs links to two other GPUs. A set of two is the exception: all links
        of a GPU can be used. ``linked`` says by number of links which sets have a ring whose every step has at least
        that many links.
        """
        wires, sets, inside = self.wires, self.reach.sets, self.places.inside
        has = np.zeros(self.degree.shape[1:], dtype=np.bool_)
        sure = np.zeros_like(self.degree[0])
        for width, carried in zip(wires.widths, wires.carries, strict=True):
            ring = linked[width][sets.masks]
            has[[row for row, needed in enumerate(wires.needed_width) if needed == width]] = ring
            sure = np.where(ring, 2 * carried[:, None], sure)
        passing = np.minimum(self.degree, 2 * (self.degree - self._widest))
        out = self._least(np.where(sets.size == 2, self.degree, passing))
        for size in _UNDECOMPOSABLE:
            row, at = np.nonzero((sets.size == size) & (inside == size * (size - 1) // 2))
            near = subsets.neighbours(wires.links[row] > 0).T
            full = np.where(self._member[:, at], sets.masks[at] & ~near, 0).sum(axis=0) == sets.masks[at]
            out[row[full], at[full]] = np.minimum(out[row[full], at[full]], size - 2)
        return np.where(has, out, 0).astype(np.int16), sure

    def _through(self) -> Counts:
        """Compute the attribute ``through``: a bound for rings over links that may use third GPUs.

        Such a ring may turn back at a GPU. So it is limited only by the links across each cut, a division of the set in
        two parts. The ring crosses each cut in both directions.
        """
        wires, masks = self.wires, self.reach.sets.masks
        out = np.zeros(self.reach.ring_via_third.shape, dtype=np.int16)
        wanted = np.flatnonzero(self.reach.ring_via_third.any(axis=0) & self.reach.uses_third)
        if wanted.size:
            every = sets_of(np.arange(1 << len(self._member)), len(self._member))
            others = np.bitwise_count(every.masks & wires.neighbours_by_width[:, :, None])
            pairs = np.where(every.member, others, 0).sum(axis=1) // 2
            cuts = subsets.min_cuts(wires.channels(pairs), masks[wanted])
            out[:, wanted] = np.where(self.reach.ring_via_third[:, wanted], cuts, 0)
        return out

    def _over_pcie(self) -> Counts:
        reach, wires, places, sets = self.reach, self.wires, self.places, self.reach.sets
        links_and_pcie = self.lanes + self.degree

        # What each GPU has in all; and in rings, where what comes in over its widest link must go out over the others.
        self.weakest: Counts = self._least(links_and_pcie)
        passing = links_and_pcie
        if wires.widths:
            passing = np.minimum(links_and_pcie, 2 * (links_and_pcie - self._widest))
            passing = np.where((reach.reached_via_third != 0)[:, None, :], links_and_pcie, passing)
            if reach.has_gateway.any():  # what comes through a gateway ends at the partner's PCIe
                inside = wires.neighbours_by_width & ~subsets.neighbours(reach.gateways)
                inner = wires.channels(np.bitwise_count(sets.masks & inside[:, :, None]))
                used = reach.has_gateway & (sets.masks & subsets.neighbours(reach.gateways)[:, None] != 0)
                passing = np.where(used[:, None, :], self.lanes + inner, passing)
            passing = np.where(sets.size == 2, np.maximum(self.lanes, self.degree), passing)
        out = np.minimum(self._least(passing), places.rings())
        if wires.amd:  # between AMD's sockets NCCL tries the same ring again and again, and no other (search.cc)
            two = np.bitwise_count(sets.masks & subsets.neighbours(wires.adjacent)[:, None]) > 1
            same = self._least(np.maximum(self.lanes, np.where(two[:, None, :], self._widest, 0)))
            same = np.minimum(same, places.same_rings())
            out = np.where(reach.worst_path == PathType.SYS, np.minimum(out, same), out)
        return np.where(self._narrowest() > 0, out, 0).astype(np.int16)

    def _narrowest(self) -> Counts:
        """Return how many channels fit on the farthest PCIe path that a ring must take: (r, m).

        The axes are rows (channel speeds) and sets. The number is 0 if no ring joins the set.
        """
        wires = self.wires
        by_path = np.zeros((len(wires.speeds), NOWHERE + 1), dtype=np.int16)
        by_path[:, : PathType.PHB] = wires.lanes.max(axis=1)[:, None]
        by_path[:, PathType.PHB : PathType.SYS] = wires.bridged.max(axis=1)[:, None]
        by_path[:, PathType.SYS] = np.minimum(wires.lanes.max(axis=1), wires.sockets)
        return np.where(self.reach.has_gateway, np.int16(_FREE), by_path[:, self.reach.worst_path])

    def _lanes(self, uplinks: Ints) -> Counts:
        wires, reach, masks = self.wires, self.reach, self.reach.sets.masks
        home = np.array(wires.nodes)[wires.numa_node_of]
        linked = subsets.neighbours(wires.adjacent)
        own_switch = masks & subsets.neighbours((wires.hops <= PathType.PXB) & ~wires.adjacent)[:, None] != 0
        if not wires.amd:  # steps within the switch and over the host bridge, mixed, fit no better than the latter
            own_switch &= (reach.worst_path != PathType.PHB) & (reach.worst_path != PathType.NODE)
        kind = np.where(own_switch, WITHIN, uplinks)
        out = wires.pcie(kind)
        alone = (masks & (home & ~linked & ~subsets.bits(len(home)))[:, None] == 0) & ~reach.has_gateway
        out = np.where(alone[:, None, :], np.minimum(out, wires.sockets[:, None] * reach.other_numa_nodes), out)
        return np.where((reach.over_pcie != 0)[:, None, :], out, 0).astype(np.int16)
