"""For how many rings the wires of each set have room: what bounds NCCL's search.

Each ring enters and leaves every GPU, every PCIe switch, every NUMA node at least once. So the narrowest of these
places bounds the number of rings, and NCCL's search, which tries orders of GPUs until it runs out of time, nearly
always finds as many. Where it does not, five and more GPUs get in each other's way in a manner that no single place
shows. Sources: NCCL's paths.cc and search.cc, 2.26 to 2.30. Nothing here is fitted.

Arrays over GPUs and places come first, then over rows of the wires (r), then over masks (2**g): all int16.
"""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets import subsets
from dradriver.allocator.sets.places import Places
from dradriver.allocator.sets.reach import NOWHERE, Reach
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.allocator.sets.wires import Counts, Wires
from dradriver.topology.machine import PathType

_FREE = 1 << 12  # more channels than anything has room for
_UNDECOMPOSABLE = (4, 6)  # complete digraphs that are no sum of directed rings (Tillson 1980)


class Room:
    """Bounds of every set.

    Attributes:
        wires: The machine's wires.
        reach: Who talks over what.
        degree: (g, r, 2**g), channels over each GPU's links to members.
        lanes: (g, r, 2**g), channels over each GPU's PCIe link.
        places: Groups of GPUs that rings must enter and leave.
        links: (r, 2**g), rings over direct links alone, if there is one.
        through: (r, 2**g), rings over links of which third GPUs may be part, if there is one.
        pcie: (r, 2**g), rings that take PCIe too.
        weakest: (r, 2**g), channels of the GPU with the fewest.
    """

    def __init__(self, wires: Wires, reach: Reach, linked: dict[int, Bools]) -> None:
        self.wires, self.reach = wires, reach
        g = len(wires.adjacent)
        masks = np.arange(1 << g)
        self._count = np.bitwise_count(masks)
        self._member: Bools = (masks >> np.arange(g)[:, None] & 1) != 0
        self.degree = sums(wires.links.transpose(1, 0, 2))
        self._widest = _maxima(wires.links.transpose(1, 0, 2))
        self.lanes = self._lanes(masks)
        self.places = Places(wires, reach, self.degree, self.lanes)
        none = np.zeros(1 << g, dtype=np.bool_)
        joined = np.array([linked[width] if width else none for width in wires.width])
        self.links: Counts = np.where(joined, self._over_links(), 0).astype(np.int16)
        self.through: Counts = self._through(masks)
        self.pcie: Counts = self._over_pcie(masks)

    def _least(self, bounds: Counts) -> Counts:
        """The least of the members' bounds: ``bounds`` is (g, r, 2**g)."""
        out: Counts = np.where(self._member[:, None, :], bounds, _FREE).min(axis=0)
        return out

    def _over_links(self) -> Counts:
        """A ring passes a GPU from one neighbour to another: it never turns back; two GPUs alone use all links."""
        passing = np.minimum(self.degree, 2 * (self.degree - self._widest))
        out = np.minimum(self.reach.forced, self._least(np.where(self._count == 2, self.degree, passing)))
        inside = self.places.inside
        for size in _UNDECOMPOSABLE:
            full = (self._count == size) & (inside == size * (size - 1) // 2)
            if full.any():
                full &= np.array([subsets.cliques(links > 0) for links in self.wires.links])
                out = np.where(full, np.minimum(out, size - 2), out)
        return out

    def _through(self, masks: Ints) -> Counts:
        """Through third GPUs a ring may turn back; nothing binds it but that it crosses every cut both ways."""
        out = np.zeros(self.reach.third.shape, dtype=np.int64)
        wanted = masks[self.reach.third.any(axis=0) & self.reach.through]
        if wanted.size:
            out[:, wanted] = subsets.min_cuts(self.places.inside.astype(np.int64), wanted)
        return np.where(self.reach.third & self.reach.through, out, 0).astype(np.int16)

    def _over_pcie(self, masks: Ints) -> Counts:
        reach, wires, places = self.reach, self.wires, self.places
        any_ = self.lanes + self.degree
        self.weakest: Counts = self._least(any_)
        passing = np.minimum(any_, 2 * (any_ - self._widest))
        passing = np.where((reach.second != 0)[:, None, :], any_, passing)
        if reach.gated.any():  # what comes through a gateway ends at the partner's PCIe
            inner = sums(np.where(reach.gates, 0, wires.links).transpose(1, 0, 2))
            used = reach.gated & (masks & subsets.neighbours(reach.gates)[:, None] != 0)
            passing = np.where(used[:, None, :], self.lanes + inner, passing)
        out = self._least(np.where(self._count == 2, np.maximum(self.lanes, self.degree), passing))
        out = np.minimum(out, places.rings())
        if wires.amd:  # between AMD's sockets NCCL tries the same ring again and again, and no other (search.cc)
            two = np.bitwise_count(masks & subsets.neighbours(wires.adjacent)[:, None]) > 1
            same = self._least(np.maximum(self.lanes, np.where(two[:, None, :], self._widest, 0)))
            same = np.minimum(same, places.same_rings())
            out = np.where(reach.worst == PathType.SYS, np.minimum(out, same), out)
        return np.where(self._narrowest() > 0, out, 0).astype(np.int16)

    def _narrowest(self) -> Counts:
        """Channels of the farthest PCIe step that a ring must take; 0 where none joins the set: (r, 2**g)."""
        wires = self.wires
        by_path = np.zeros((len(wires.speeds), NOWHERE + 1), dtype=np.int16)
        by_path[:, : PathType.PHB] = wires.lanes.max(axis=1)[:, None]
        by_path[:, PathType.PHB : PathType.SYS] = wires.bridged.max(axis=1)[:, None]
        by_path[:, PathType.SYS] = np.minimum(wires.lanes.max(axis=1), wires.sockets)
        return np.where(self.reach.gated, np.int16(_FREE), by_path[:, self.reach.worst])

    def _lanes(self, masks: Ints) -> Counts:
        wires, reach = self.wires, self.reach
        home = np.array([next(node for node in wires.nodes if node >> gpu & 1) for gpu in range(len(self._member))])
        others = np.array([np.sum([masks & node != 0 for node in wires.nodes], axis=0) - 1], dtype=np.int16)
        linked = subsets.neighbours(wires.adjacent)
        near = subsets.neighbours((wires.hops <= PathType.PXB) & ~wires.adjacent)
        own_switch = masks & near[:, None] != 0
        if (
            not wires.amd
        ):  # steps within the switch and over the host bridge, mixed, fit no better than the latter alone
            own_switch &= (reach.worst != PathType.PHB) & (reach.worst != PathType.NODE)
        out = np.where(own_switch[:, None, :], wires.lanes.T[:, :, None], wires.uplinks(reach.worst))
        alone = (masks & (home & ~linked)[:, None] & ~subsets.bits(len(home))[:, None] == 0) & ~reach.gated
        out = np.where(alone[:, None, :], np.minimum(out, wires.sockets[:, None] * others), out)
        return np.where((reach.over_pcie != 0)[:, None, :], out, 0).astype(np.int16)


def sums(weights: Counts) -> Counts:
    """Sums of the members' weights: ``weights`` is (..., g); shape (..., 2**g), int16."""
    out = np.zeros((*weights.shape[:-1], 1), dtype=np.int16)
    for position in range(weights.shape[-1]):
        out = np.concatenate((out, out + weights[..., position, None]), axis=-1)
    return out


def _maxima(weights: Counts) -> Counts:
    """The largest in place of the sum."""
    out = np.zeros((*weights.shape[:-1], 1), dtype=np.int16)
    for position in range(weights.shape[-1]):
        out = np.concatenate((out, np.maximum(out, weights[..., position, None])), axis=-1)
    return out
