"""Finds the tenant and the namespace whose workload is next, without comparing all tenants each time.

An *asker* is the single pods, or the gangs, of one namespace. A *line* is the waiting workloads of one equivalence
class and one asker. A *try* is a search for a place for a workload. Its cost is counted in evaluations of nodes. If the
tries of an asker cost too much and find no place, the asker *steps back*: it lets all other askers with workloads of
this priority go first. ``Queue`` calls this module.
"""

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
    """Return a workload's position among the workloads of all tenants.

    Args:
        order: Its order among the workloads of its tenant: priority, time and key.
        share: Its tenant's share: GPU time divided by weight. The share counts after the priority and before the time.
    """
    return order[0], share, order[1], order[2]


class _Round:
    """One round of tries for workloads of one priority.

    The round ends when each asker had its turn, or when ``served`` reaches ``MOST_IN_VAIN``.

    Attributes:
        vain: For each asker (the pods, or the gangs, of one namespace), the cost of its tries that found no place.
        behind: The askers that have stepped back.
        costly: The line whose try was the last one and made its asker step back; empty if the last try did not.
        served: The cost of the tries that found a place while an asker had stepped back.
    """

    __slots__ = ("behind", "costly", "served", "vain")

    def __init__(self) -> None:
        self.vain: dict[Asker, int] = {}
        self.behind: set[Asker] = set()
        self.costly: list[Line] = []
        self.served = 0


class Turns:
    """Tenants ordered by their first workloads, and for each tenant its askers.

    Each namespace has two askers: one for its pods, and one for its gangs. Shares are compared only between tenants. A
    share changes with time, and that never changes the order of one tenant's askers.

    If tries for an asker's workloads have cost much and found no place, the asker steps back. It waits until all other
    askers of the priority had their turn. So such tries do not delay other askers of that priority for long, even if
    their tenant has used little GPU time.
    """

    def __init__(self, rank: Callable[[Asker], Rank | None], share: Callable[[str], float]) -> None:
        """Make an object without askers.

        Args:
            rank: Returns the rank of an asker's first workload; None if none of its workloads may be served.
            share: Returns the share of a tenant: its GPU time divided by its weight.
        """
        self._rank, self._share = rank, share
        self._tenants: LazyHeap[str] = LazyHeap(self._of_tenant)
        self._askers: dict[str, LazyHeap[Asker]] = {}  # by tenant
        self._rounds: dict[int, _Round] = {}  # by priority

    def put(self, asker: Asker) -> None:
        """Add an asker (the pods, or the gangs, of one namespace), or move it forward.

        A known asker is moved if its first workload comes earlier than before.
        """
        if (askers := self._askers.get(asker.tenant)) is None:
            askers = self._askers[asker.tenant] = LazyHeap(self._of_asker)
        askers.put(asker)
        self._tenants.put(asker.tenant)

    def lowered(self, tenant: str | None) -> None:
        """Note that the share of a tenant may be less than before; None for all tenants."""
        for each in list(self._askers) if tenant is None else (tenant,):
            self._tenants.put(each)

    def looked(self, line: Line, priority: int, work: int, *, in_vain: bool) -> list[Line]:
        """Count the cost of a try for a workload; its asker may step back.

        Args:
            line: The line of the workload: the waiting workloads of its class and namespace.
            priority: The first value of the workload's order.
            work: The cost, in evaluations of nodes.
            in_vain: Whether the try found no place.

        Returns:
            The line whose earlier try made an asker step back, if that was the try before this one. The caller moves
                this line back, so that its asker continues with another line. Else an empty list.
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
        """Return the asker whose workload is next; None if there is none.

        An asker is the pods, or the gangs, of one namespace.
        """
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
        """Return the position of an asker among the askers of its tenant.

        An asker is the pods, or the gangs, of one namespace. An asker that has stepped back comes after the others of
        its priority. None if none of its workloads may be served.
        """
        if (rank := self._rank(asker)) is None:
            return None
        round_ = self._rounds.get(rank[0])
        return rank[0], round_ is not None and asker in round_.behind, *rank[1:]

    def _of_tenant(self, tenant: str) -> Position | None:
        """Return a tenant's position among all tenants; None if none of its workloads may be served.

        The position compares, in this order: the priority of the tenant's first workload, whether its asker has stepped
        back, the tenant's share, and the workload's age.
        """
        askers = self._askers.get(tenant)
        if askers is None:
            return None
        if (first := askers.first()) is None:
            del self._askers[tenant]
            return None
        priority, is_behind, *rank = first[0]
        return priority, is_behind, self._share(tenant), *rank
