"""Whose workloads are next, without asking each tenant each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dradriver.queue.equivalence_classes import Asker, Line, Order, Rank
from dradriver.queue.lazy_heap import LazyHeap, Position

# Evaluations of nodes in vain, after which an asker steps back: 25 ms of CPU time, 100 looks at pods or one at a gang
# of 100 pods.
MOST_IN_VAIN: Final = 4_000_000

Turn = tuple[int, float, str, str]
"""Priority, as in ``Order``; what the tenant has had for its weight; since when it waits; who it is."""


def turn_of(order: Order, share: float = 0.0) -> Turn:
    """Return a workload's position among all tenants, by its order in its tenant and the tenant's share."""
    return order[0], share, order[1], order[2]


class _Round:
    """Looks at workloads of one priority, until all of its askers have had their turn.

    Attributes:
        vain: By asker: evaluations in vain.
        behind: Askers that have stepped back.
        costly: Lines for whose cost they did, while no other asker has been looked at since.
        served: Evaluations that led to a place since an asker stepped back.
    """

    __slots__ = ("behind", "costly", "served", "vain")

    def __init__(self) -> None:
        self.vain: dict[Asker, int] = {}
        self.behind: set[Asker] = set()
        self.costly: list[Line] = []
        self.served = 0


class Turns:
    """Tenants by their first workloads, and of each tenant its askers: its namespaces, and gangs apart from pods.

    Only tenants are compared by share. A share grows with time, which changes nothing among a tenant's askers.

    An asker whose workloads were looked at in vain for long steps back until all others of the priority had their turn.
    So looks that cost much and lead to nothing delay nobody else of that priority for long, however little GPU time
    their tenant has had.
    """

    def __init__(self, rank: Callable[[Asker], Rank | None], share: Callable[[str], float]) -> None:
        """Begin with no asker.

        Args:
            rank: Returns the rank of an asker's first workload; None if none may be served.
            share: Returns what a tenant has had for its weight.
        """
        self._rank, self._share = rank, share
        self._tenants: LazyHeap[str] = LazyHeap(self._of_tenant)
        self._askers: dict[str, LazyHeap[Asker]] = {}  # by tenant
        self._rounds: dict[int, _Round] = {}  # by priority

    def put(self, asker: Asker) -> None:
        """Note that an asker's first workload may come earlier than before."""
        if (askers := self._askers.get(asker.tenant)) is None:
            askers = self._askers[asker.tenant] = LazyHeap(self._of_asker)
        askers.put(asker)
        self._tenants.put(asker.tenant)

    def lowered(self, tenant: str | None) -> None:
        """Note that the share of a tenant may be less; None for all tenants."""
        for each in list(self._askers) if tenant is None else (tenant,):
            self._tenants.put(each)

    def looked(self, line: Line, priority: int, work: int, *, in_vain: bool) -> list[Line]:
        """Count what a look at a workload cost, in evaluations of nodes.

        Returns the lines for whose cost askers stepped back, once another asker is looked at in their place.
        """
        round_ = self._rounds.get(priority)
        if round_ is None:
            if not in_vain:
                return []
            round_ = self._rounds[priority] = _Round()
        costly, round_.costly = round_.costly, []
        if in_vain:
            vain = round_.vain[line.asker] = round_.vain.get(line.asker, 0) + work
            if vain >= MOST_IN_VAIN:
                round_.behind.add(line.asker)
                round_.costly.append(line)
        elif round_.behind:
            round_.served += work
            if round_.served >= MOST_IN_VAIN:
                self._all_had_their_turn(priority)
        return costly

    def first(self) -> Asker | None:
        """Return the asker that is next; None if there is none."""
        if (first := self._tenants.first()) is None:
            self._rounds.clear()
            return None
        (priority, is_behind, *_), tenant = first
        found = self._askers[tenant].first()
        if is_behind:
            self._all_had_their_turn(int(priority))
        return None if found is None else found[1]

    def _all_had_their_turn(self, priority: int) -> None:
        for asker in self._rounds.pop(priority).behind:
            self.put(asker)

    def _of_asker(self, asker: Asker) -> Position | None:
        """Return the position of an asker among those of its tenant."""
        if (rank := self._rank(asker)) is None:
            return None
        round_ = self._rounds.get(rank[0])
        return rank[0], round_ is not None and asker in round_.behind, *rank[1:]

    def _of_tenant(self, tenant: str) -> Position | None:
        """Return the position of a tenant among all: that of its first asker, but by share before age."""
        askers = self._askers.get(tenant)
        if askers is None:
            return None
        if (first := askers.first()) is None:
            del self._askers[tenant]
            return None
        priority, is_behind, *rank = first[0]
        return priority, is_behind, self._share(tenant), *rank
