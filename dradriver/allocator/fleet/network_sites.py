"""The *sites* of a cluster: the numbered locations of nodes in the network, and the network domains that contain them.

A *network domain* is a part of the network, such as all nodes below one leaf switch. A *level* has all domains of one
kind. ``Fleet`` owns one ``Sites``. Nodes with the same location share a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.subsets import Ints
from dradriver.topology.network_levels import CLUSTER, FABRIC, LEVELS, NODE, SUB_DOMAIN, Domain, Location

_ZONE = LEVELS[-1]


class Sites:
    """All different locations of a cluster's nodes, numbered. Number 0 is the unknown location.

    Attributes:
        levels: The names of the network levels, nearest first, without ``node`` and ``cluster``, which always exist.
        gbps_of: The known bandwidth of each node for traffic within a level, one direction, GB/s. The bandwidth of the
            node's NICs is a second limit.
        locations: The locations by number.
    """

    def __init__(self, levels: Sequence[str] = LEVELS, gbps_of: Mapping[str, float] | None = None) -> None:
        self.levels = tuple(levels)
        self.gbps_of = dict(gbps_of or {})
        self.locations = [Location()]
        self._number = {self.locations[0]: 0}
        self._domains: dict[str, tuple[Ints, list[Domain]]] = {}

    @property
    def all_levels(self) -> tuple[str, ...]:
        """Return the names of all network levels, nearest first, from ``node`` to ``cluster``."""
        return (NODE, *self.levels, CLUSTER)

    def number(self, location: Location) -> int:
        """Return the number of a location of nodes in the network.

        A new location gets a new number.
        """
        number = self._number.setdefault(location, len(self.locations))
        if number == len(self.locations):
            self.locations.append(location)
        return number

    def domains(self, level: str) -> Ints:
        """Return the number of the network domain of each location at a level: (locations,), int64.

        The number is -1 if the location is in no domain of the level. Domains are numbered in the order of their names,
        so the numbers do not depend on the order in which nodes were read.
        """
        return self._known(level)[0]

    def inside(self, level: str, outer: str) -> Ints:
        """Return the domain of each location at a level, cut at the borders of ``outer``.

        ``outer`` is a wider level. Most domains lie inside one domain of it, and stay as they are. An NVLink fabric is
        the exception: its servers can be in several domains of the wider level. The fabric is then cut into one domain
        for each of these. The result is (locations,), int64; -1 for a location in no domain, and for a fabric's
        location in no domain of the wider level.
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
        """Return whether all these locations are in one network domain.

        The domain must be of the level ``level`` or of a narrower one. The result is False if the cluster does not have
        the level. ``sites`` are the numbers of the locations.
        """
        if level not in self.all_levels:
            return False
        inside = (
            self.inside(narrower, level)[sites] for narrower in self.all_levels[1 : self.all_levels.index(level) + 1]
        )
        return any(own[0] >= 0 and (own == own[0]).all() for own in inside)

    def domain(self, level: str, number: int) -> str:
        """Return the name of a level's network domain by its number (``domains``).

        The names of the domains that contain it come first: ``z1/s2/l7``.
        """
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
        """Return the bandwidth of a node at each location for traffic within a level.

        The shape is (locations,), float64, GB/s; 0 if it is unknown. In the narrowest level, which is one switch, the
        bandwidth is that of the node's NICs. In a wider level, the bandwidth depends on the cluster's network. It is
        unknown if ``gbps_of`` has no entry for the level.
        """
        return self.most_gbps(level) if self.is_known(level) else np.zeros(len(self.locations))

    def is_known(self, level: str) -> bool:
        """Return whether the bandwidth between two nodes in one domain of a level is known.

        ``level`` is a network level, such as ``leaf``. If the bandwidth of the nodes' NICs is unknown, the result is
        False.
        """
        return level in (NODE, *self._narrowest()) or level in self.gbps_of

    def most_gbps(self, level: str) -> NDArray[np.float64]:
        """Return the highest possible bandwidth of a node at each location within a level.

        The shape is (locations,), float64, GB/s. If the bandwidth of the level is unknown, that of the node's NICs is
        returned.
        """
        own = np.array([location.gbps for location in self.locations], dtype=np.float64)
        reached = self.all_levels[1 : self.all_levels.index(level) + 1]
        return np.minimum(own, min((self.gbps_of[name] for name in reached if name in self.gbps_of), default=np.inf))

    @property
    def switch(self) -> str:
        """Return the name of the network level whose domains are single switches.

        Between nodes below one switch, only their NICs limit the bandwidth.
        """
        return self._narrowest()[-1] if self.levels else CLUSTER

    def _narrowest(self) -> tuple[str, ...]:
        """Return the levels in which the bandwidth between nodes is known without ``gbps_of``.

        These are the levels of NVLink (the fabric and its sub-domains), and the first network level after them. In the
        latter all nodes are below one switch, so they have the bandwidth of their NICs. The zone counts only if it is
        the nearest of all levels.
        """
        levels_of_nvlink = tuple(itertools.takewhile(lambda level: level in (SUB_DOMAIN, FABRIC), self.levels))
        count = len(levels_of_nvlink)
        return self.levels[: max(count, 1) if self.levels[count : count + 1] == (_ZONE,) else count + 1]
