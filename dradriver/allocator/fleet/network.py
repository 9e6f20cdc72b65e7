"""Where nodes stand in the network: which of them are near each other."""

from __future__ import annotations

import numpy as np

from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.levels import BETWEEN_SERVERS, Location, Step

# What holds all nodes of a gang together, narrowest first: one node (None), or the step between two of them at most.
REACHES: dict[Step | None, str] = {
    None: "node",
    Step.FABRIC: "fabric",
    Step.LEAF: "leaf",
    Step.SPINE: "spine",
    Step.ZONE: "zone",
    Step.APART: "cluster",
}


class Sites:
    """All different locations of a cluster, numbered from 0, the unknown one."""

    def __init__(self) -> None:
        self.locations = [Location()]
        self._number = {self.locations[0]: 0}
        self._domains: dict[Step, Ints] = {}

    def number(self, location: Location) -> int:
        """The location's number, a new one where it was not seen before."""
        number = self._number.setdefault(location, len(self.locations))
        if number == len(self.locations):
            self.locations.append(location)
        return number

    def domains(self, step: Step) -> Ints:
        """Per location the number of its domain, -1 where that is unknown: (locations,), int64.

        The nodes of one domain are at most this step of ``BETWEEN_SERVERS`` from each other.
        Domains are numbered in the order of their names, so that the numbers depend on the cluster alone.
        """
        known = self._domains.get(step)
        if known is not None and len(known) == len(self.locations):
            return known
        within = [location.within(step) for location in self.locations]
        number = {name: at for at, name in enumerate(sorted({name for name in within if name is not None}))}
        self._domains[step] = np.array([-1 if name is None else number[name] for name in within], dtype=np.int64)
        return self._domains[step]

    def distances(self, sites: Ints) -> Ints:
        """The step between every two nodes, as its number in ``BETWEEN_SERVERS``: (n, n), int64, for n sites."""
        out = np.full((len(sites), len(sites)), len(BETWEEN_SERVERS) - 1, dtype=np.int64)
        for number, step in reversed([*enumerate(BETWEEN_SERVERS)]):
            domain = self.domains(step)[sites]
            out[(domain[:, None] == domain[None, :]) & (domain >= 0)[:, None]] = number
        return out

    def gbps(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Network bandwidth per location: (locations,), float64, GB/s."""
        return np.array([location.gbps for location in self.locations])
