"""Where nodes stand in the network: which of them are near each other."""

from __future__ import annotations

import enum

import msgspec
import numpy as np

from dradriver.allocator.subsets import Ints


class Reach(enum.IntEnum):
    """What holds all nodes of a gang together, narrowest first."""

    NODE = 0
    FABRIC = 1  # one multi-node NVLink fabric
    LEAF = 2  # one leaf switch
    SPINE = 3
    ZONE = 4
    CLUSTER = 5


class Location(msgspec.Struct, frozen=True):
    """One node's place in the network; an empty name is an unknown one.

    Attributes:
        zone: Zone or site.
        spine: Spine switch or block, within its zone.
        leaf: Leaf switch or rack, within its spine.
        fabric: Multi-node NVLink fabric, wherever it is.
        gbps: Bandwidth of the node's network, one direction, GB/s; 0 where it is unknown.
    """

    zone: str = ""
    spine: str = ""
    leaf: str = ""
    fabric: str = ""
    gbps: float = 0.0

    def within(self, reach: Reach) -> tuple[str, ...] | None:
        """The domain of this width that the node is in; None where that is unknown."""
        if reach is Reach.CLUSTER:
            return ()
        name = {
            Reach.FABRIC: self.fabric, Reach.LEAF: self.leaf, Reach.SPINE: self.spine, Reach.ZONE: self.zone,
        }.get(reach, "")  # fmt: skip
        if not name:
            return None
        above = {Reach.LEAF: (self.zone, self.spine), Reach.SPINE: (self.zone,)}.get(reach, ())
        return (*above, name)


class Sites:
    """All different locations of a cluster, numbered from 0, the unknown one."""

    def __init__(self) -> None:
        self.locations = [Location()]
        self._number = {self.locations[0]: 0}
        self._domains: dict[Reach, Ints] = {}

    def number(self, location: Location) -> int:
        """The location's number, a new one where it was not seen before."""
        found = self._number.setdefault(location, len(self.locations))
        if found == len(self.locations):
            self.locations.append(location)
        return found

    def domains(self, reach: Reach) -> Ints:
        """Per location the number of its domain of this width, -1 where that is unknown: (locations,), int64.

        Domains are numbered in the order of their names, so that the numbers depend on the cluster alone.
        """
        known = self._domains.get(reach)
        if known is not None and len(known) == len(self.locations):
            return known
        within = [location.within(reach) for location in self.locations]
        number = {name: at for at, name in enumerate(sorted({name for name in within if name is not None}))}
        self._domains[reach] = np.array([-1 if name is None else number[name] for name in within], dtype=np.int64)
        return self._domains[reach]

    def distances(self, sites: Ints) -> Ints:
        """What holds each two nodes together, as numbers of ``Reach``: (n, n), int64, for n numbers of locations."""
        out = np.full((len(sites), len(sites)), Reach.CLUSTER, dtype=np.int64)
        for reach in (Reach.ZONE, Reach.SPINE, Reach.LEAF, Reach.FABRIC):
            domain = self.domains(reach)[sites]
            out[(domain[:, None] == domain[None, :]) & (domain >= 0)[:, None]] = reach
        return out

    def gbps(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Network bandwidth per location: (locations,), float64, GB/s."""
        return np.array([location.gbps for location in self.locations])
