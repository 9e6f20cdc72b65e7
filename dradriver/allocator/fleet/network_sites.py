"""Sites: the numbered locations of nodes in the network, and which of them are near each other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import CLUSTER, FABRIC, LEVELS, NODE, SUB_DOMAIN, Domain, Location

_ZONE = LEVELS[-1]


class Sites:
    """All different locations of a cluster, numbered from 0, the unknown one.

    Attributes:
        levels: The levels of the network by name, nearest first: between ``node`` and ``cluster``, which always are.
        gbps_of: What a level is known to carry for each node, one direction, GB/s; its NICs carry no more in any case.
        locations: By number.
    """

    def __init__(self, levels: Sequence[str] = LEVELS, gbps_of: Mapping[str, float] | None = None) -> None:
        self.levels = tuple(levels)
        self.gbps_of = dict(gbps_of or {})
        self.locations = [Location()]
        self._number = {self.locations[0]: 0}
        self._domains: dict[str, tuple[Ints, list[Domain]]] = {}

    @property
    def all_levels(self) -> tuple[str, ...]:
        """Return the network levels whose domains of sites can hold a gang together, nearest first."""
        return (NODE, *self.levels, CLUSTER)

    def number(self, location: Location) -> int:
        """Return the number of a location in the network as a site, a new one if it was not seen before."""
        number = self._number.setdefault(location, len(self.locations))
        if number == len(self.locations):
            self.locations.append(location)
        return number

    def domains(self, level: str) -> Ints:
        """Return the number of each site's network domain, -1 if it is in none: (locations,), int64.

        Domains are numbered in the order of their names, so that the numbers depend on the cluster alone.
        """
        return self._known(level)[0]

    def inside(self, level: str, outer: str) -> Ints:
        """Return the number of each site's domain of a network level, cut at a wider level: (locations,), int64.

        A domain has the names of all around it; one that has no name but its own (an NVLink fabric) may reach over
        several of a wider level, and is cut into what each of these has of it. What is in none of them is left out.
        """
        domain, names = self._known(level)
        beside = np.array([len(name) == 1 for name in names], dtype=np.bool_)
        if outer in (level, CLUSTER) or not beside.any():
            return domain
        around = self.domains(outer)
        cut = np.where((domain < 0) | (around < 0), -1, domain * (int(around.max()) + 1) + around)
        cut = np.where((domain >= 0) & ~beside[domain], len(names) * (int(around.max()) + 1) + domain, cut)
        return np.where(cut < 0, -1, np.unique(np.append(cut, -1), return_inverse=True)[1][:-1] - 1)

    def holds(self, level: str, sites: Ints) -> bool:
        """Return whether one network domain of a level, or of a narrower one, has all of these sites."""
        if level not in self.all_levels:
            return False
        inside = (
            self.inside(narrower, level)[sites] for narrower in self.all_levels[1 : self.all_levels.index(level) + 1]
        )
        return any(own[0] >= 0 and (own == own[0]).all() for own in inside)

    def domain(self, level: str, number: int) -> str:
        """Return the name of a network domain of sites: ``z1/s2/l7``."""
        return "/".join(filter(None, self._known(level)[1][number]))

    def _known(self, level: str) -> tuple[Ints, list[Domain]]:
        known = self._domains.get(level)
        if known is not None and len(known[0]) == len(self.locations):
            return known
        if level == CLUSTER:
            found: list[Domain | None] = [()] * len(self.locations)
        else:
            at = self.levels.index(level)
            found = [each.domains[at] if at < len(each.domains) else None for each in self.locations]
        names = sorted({domain for domain in found if domain is not None})
        number = {name: at for at, name in enumerate(names)}
        numbers = np.array([-1 if domain is None else number[domain] for domain in found], dtype=np.int64)
        self._domains[level] = numbers, names
        return numbers, names

    def gbps(self, level: str = NODE) -> NDArray[np.float64]:
        """Return the network bandwidth of each site within a level, 0 if it is unknown: (locations,), float64, GB/s.

        It is that of the NICs within the narrowest level, which a switch makes. How much is lost between its switches
        is a site's choice: a wider level's is unknown where ``gbps_of`` does not name it.
        """
        return self.most_gbps(level) if self.is_known(level) else np.zeros(len(self.locations))

    def is_known(self, level: str) -> bool:
        """Return whether the bandwidth between sites of a network level is known where NICs are known."""
        return level in (NODE, *self._narrowest()) or level in self.gbps_of

    def most_gbps(self, level: str) -> NDArray[np.float64]:
        """Return the network bandwidth of each site, unknown levels as fast as NICs: (locations,), float64, GB/s."""
        own = np.array([location.gbps for location in self.locations], dtype=np.float64)
        reached = self.all_levels[1 : self.all_levels.index(level) + 1]
        return np.minimum(own, min((self.gbps_of[name] for name in reached if name in self.gbps_of), default=np.inf))

    @property
    def switch(self) -> str:
        """Return the network level whose sites share one switch: nodes within it have what their NICs have."""
        return self._narrowest()[-1] if self.levels else CLUSTER

    def _narrowest(self) -> tuple[str, ...]:
        """The narrowest level; NVLink's levels are beside the others, so that the next one is it, too, if no zone."""
        levels_of_nvlink = tuple(itertools.takewhile(lambda level: level in (SUB_DOMAIN, FABRIC), self.levels))
        count = len(levels_of_nvlink)
        return self.levels[: max(count, 1) if self.levels[count : count + 1] == (_ZONE,) else count + 1]
