"""Distributes a gang's pods over cells so that they keep their rules about each other. Pure.

* A *role* is all pods of the gang with equal requests. It is named by its index.
* A *rule* is a pod's required affinity or anti-affinity to other pods, or a topology spread constraint.
* A *domain* is the nodes with one value of the label that a rule names (``topologyKey``), such as one zone.
* A *cell* is the nodes that have equal values of all labels that the rules name. So a cell is in one domain of each
  label.

``gang_rules`` makes the cells and the rules, and asks for ways to distribute the pods. The allocator then
plans one way after another, until one has places for all pods.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

_MOST_ORDERED: Final = 3  # roles with affinity of which every order is tried

Ways: TypeAlias = tuple[Mapping[int, int], ...]
"""For each role its pods by cell."""


class Apart(NamedTuple):
    """Required anti-affinity: which pods must not be in one domain.

    If a domain has a pod of a role in ``holders``, it must have no other pod of a role in ``pods``.

    Attributes:
        key: The node label of the domains (``topologyKey``), as an index in a cell's values.
        holders: The roles whose pods have this rule.
        pods: The roles whose pods the rule selects.
    """

    key: int
    holders: frozenset[int]
    pods: frozenset[int]


class Together(NamedTuple):
    """Required affinity: each pod of ``role`` must be in a domain with selected pods.

    A pod is selected only if all terms of the affinity select it.

    Attributes:
        role: The role whose pods have this rule.
        pods: The roles whose pods all terms select.
        domains: For each term, the index of its node label in a cell's values, and some values of this label. A domain
            with one of these values already has selected pods from outside the gang.
    """

    role: int
    pods: frozenset[int]
    domains: tuple[tuple[int, frozenset[str]], ...]


class Spread(NamedTuple):
    """A topology spread constraint of some roles of a gang.

    Attributes:
        key: The node label of the domains (``topologyKey``), as an index in a cell's values.
        holders: The roles whose pods have this constraint.
        pods: The roles whose pods are counted.
        skew: How many pods a domain may have more than the domain with the fewest (``maxSkew``).
        counts: For each domain that is compared, the number of its pods from outside the gang.
        is_least_zero: Whether the domain with the fewest pods counts as empty, because there are fewer domains than
            ``minDomains``.
    """

    key: int
    holders: frozenset[int]
    pods: frozenset[int]
    skew: int
    counts: Mapping[str, int]
    is_least_zero: bool = False


class Puzzle(NamedTuple):
    """The input of ``ways``: a gang's pods, the cells, and the rules to keep.

    A role is all pods of the gang with equal requests. A cell is the nodes with equal values of the labels that the
    rules name.

    Attributes:
        pods: For each role, how many pods need a place.
        cells: For each cell, the value of each label that the rules name; None if its nodes do not have the label.
        capacity: For each role and cell, how many pods of the role fit if no other role has pods in the cell.
        gpus: For each role, how many GPUs a pod has.
        free: For each cell, how many GPUs are free for all roles together.
        apart: Required anti-affinity.
        together: Required affinity, one entry for each role that has some.
        spread: Topology spread constraints.
    """

    pods: Sequence[int]
    cells: Sequence[tuple[str | None, ...]]
    capacity: Sequence[Sequence[int]]
    gpus: Sequence[int]
    free: Sequence[int]
    apart: Sequence[Apart] = ()
    together: Sequence[Together] = ()
    spread: Sequence[Spread] = ()


def ways(puzzle: Puzzle, spend: Callable[[], bool]) -> Iterator[Ways]:
    """Yield the ways to distribute a gang's pods over cells that keep all rules.

    A way has, for each role, the number of pods in each cell. Ways that use few cells come first. The search has these
    steps:

    1. For each spread constraint, choose the least number of pods that each domain must have. The most even number is
       tried first.
    2. Distribute one role after another: first the roles without affinity, then each role after the roles that its
       affinity selects.
    3. Distribute a role's pods over the cells that it may use, as many as possible in the first ones.

    The search does not find ways in which a pod without affinity is placed only after a pod with affinity.

    Args:
        puzzle: The pods, cells and rules.
        spend: Called for each step; if it returns False, the search ends.
    """
    seen: set[tuple[tuple[tuple[int, int], ...], ...]] = set()
    levels = [range(_even(puzzle, spread), -1, -1) for spread in puzzle.spread]
    for order, least in itertools.product(_orders(puzzle), itertools.product(*levels)):
        for shares in _Search(puzzle, order, least, spend).share(0):
            key = tuple(tuple(sorted(share.items())) for share in shares)
            if key not in seen:
                seen.add(key)
                yield shares


def _even(puzzle: Puzzle, spread: Spread) -> int:
    """Return how many pods each domain has at least if they are spread evenly.

    ``spread`` names the domains, such as zones; ``puzzle`` has the numbers of pods.
    """
    if spread.is_least_zero or not spread.counts:
        return 0
    total = sum(spread.counts.values()) + sum(puzzle.pods[role] for role in spread.pods)
    return total // len(spread.counts)


def _orders(puzzle: Puzzle) -> Iterator[list[int]]:
    """Yield the orders in which the roles can be distributed, as lists of roles.

    A role is all pods with equal requests. In the first order, each role comes after the roles that its affinity
    selects.
    """
    needs = {rule.role: rule.pods for rule in puzzle.together}
    free = [role for role in range(len(puzzle.pods)) if role not in needs]
    order = list(free)
    left = list(needs)
    while left:
        ready = [role for role in left if not needs[role] - {*order, role}]
        first_ones = [role for role in left if role in needs[role]]
        role = next(iter(ready or first_ones or left))
        order.append(role)
        left.remove(role)
    yield order
    if 1 < len(needs) <= _MOST_ORDERED:
        for others in itertools.permutations(order[len(free) :]):
            if (another := [*free, *others]) != order:
                yield another


class _Search:
    """Distributes a gang's pods over cells such as zones, one role after another.

    A role is all pods with equal requests. A cell is all nodes with equal values of the labels that the pods' rules
    name. ``least`` is the number of pods that each domain must have at least, for each spread constraint.
    """

    def __init__(self, puzzle: Puzzle, order: list[int], least: tuple[int, ...], spend: Callable[[], bool]) -> None:
        self._puzzle, self._order, self._spend = puzzle, order, spend
        self._spread = list(zip(puzzle.spread, least, strict=True))
        self._together = {rule.role: rule for rule in puzzle.together}
        self._in: Counter[tuple[int, int, str]] = Counter()  # pods by role, label and domain
        self._shares: list[dict[int, int]] = [{} for _ in puzzle.pods]

    def share(self, at: int) -> Iterator[Ways]:
        """Yield the ways to distribute the remaining roles (pods with equal requests) over cells.

        These are the roles from index ``at`` of the search order on. The earlier roles are distributed already.
        """
        if at == len(self._order):
            if all(self._missing(spread, least) == 0 for spread, least in self._spread):
                yield tuple(dict(share) for share in self._shares)
            return
        role = self._order[at]
        # If this is the last role that a spread constraint counts, its pods must fill all domains up.
        later = set(self._order[at + 1 :])
        last_of = [(spread, least) for spread, least in self._spread if not spread.pods & later]
        for cells in self._cells_of(role):
            capacity = [self._puzzle.capacity[role][cell] for cell in cells]
            beyond = [*itertools.accumulate(reversed(capacity), initial=0)][::-1]  # of this cell and those after it
            yield from self._fill(at, cells, 0, self._puzzle.pods[role], beyond, last_of)

    def _cells_of(self, role: int) -> list[list[int]]:
        """Return lists of cells (such as zones) that a role's affinity allows, best first.

        A role is all pods with equal requests. Each list is tried alone. There are several if the role's pods must
        share a domain and none has a place yet: one for each possible domain.
        """
        capacity = self._puzzle.capacity[role]
        used = {cell for share in self._shares for cell in share}
        cells = [cell for cell, pods in enumerate(capacity) if pods]
        cells.sort(key=lambda cell: (cell not in used, -capacity[cell], cell))
        rule = self._together.get(role)
        if rule is None or not self._puzzle.pods[role]:
            return [cells]
        values = self._puzzle.cells
        near = [(key, domains | self._domains(rule.pods, key)) for key, domains in rule.domains]
        if any(domains for _, domains in near):
            return [[cell for cell in cells if all(values[cell][key] in domains for key, domains in near)]]
        if role not in rule.pods:
            return []
        # The first pods of this kind: wherever the first one is, all others are next to it.
        groups: dict[tuple[str | None, ...], list[int]] = {}
        for cell in cells:
            groups.setdefault(tuple(values[cell][key] for key, _ in rule.domains), []).append(cell)
        rooms = {place: sum(capacity[cell] for cell in group) for place, group in groups.items() if None not in place}
        fitting = [place for place, room in rooms.items() if room >= self._puzzle.pods[role]]
        return [groups[place] for place in sorted(fitting, key=lambda place: (rooms[place], groups[place]))]

    def _domains(self, roles: Collection[int], key: int) -> frozenset[str]:
        shares = (cell for role in roles for cell in self._shares[role])
        return frozenset(value for cell in shares if (value := self._puzzle.cells[cell][key]) is not None)

    def _fill(
        self, at: int, cells: Sequence[int], number: int, left: int, beyond: Sequence[int],
        last_of: Sequence[tuple[Spread, int]],
    ) -> Iterator[Ways]:  # fmt: skip
        """Yield the ways to distribute ``left`` pods of a role, and all later roles.

        A role is all pods with equal requests. The pods are distributed over cells, such as zones.

        Args:
            at: The index of the role in the order.
            cells: The cells that the role may use.
            number: The index in ``cells`` to begin with.
            left: How many pods of the role have no cell yet.
            beyond: For each index in ``cells``, how many pods fit into this cell and those after it.
            last_of: Spread constraints that count no pods of later roles, each with how many pods each domain must have
                at least.
        """
        if any(self._missing(spread, least) > left * (self._order[at] in spread.pods) for spread, least in last_of):
            return
        if not left:
            yield from self.share(at + 1)
            return
        if number == len(cells) or left > beyond[number]:
            return
        role, cell = self._order[at], cells[number]
        most = min(left, self._puzzle.capacity[role][cell], self._most(role, cell))
        for pods in range(most, -1, -1):
            if left - pods > beyond[number + 1]:
                return
            if not self._spend():
                return
            self._put(role, cell, pods)
            yield from self._fill(at, cells, number + 1, left - pods, beyond, last_of)
            self._put(role, cell, -pods)

    def _put(self, role: int, cell: int, pods: int) -> None:
        share = self._shares[role]
        share[cell] = share.get(cell, 0) + pods
        if not share[cell]:
            del share[cell]
        for key, value in enumerate(self._puzzle.cells[cell]):
            if value is not None:
                self._in[role, key, value] += pods

    def _most(self, role: int, cell: int) -> int:
        """Return how many more pods of a role a cell can take.

        Free GPUs and the rules limit the number. 0 if a rule allows no pod there. A role is all pods with equal
        requests.
        """
        # 1. The GPUs. ``_shares`` and ``_in`` have the pods that are shared so far, by cell and by domain.
        taken = sum(share.get(cell, 0) * gpus for share, gpus in zip(self._shares, self._puzzle.gpus, strict=True))
        most = (self._puzzle.free[cell] - taken) // self._puzzle.gpus[role]
        # The cell's domain for each label that the rules name. Nodes without the label are in no domain.
        domains = self._puzzle.cells[cell]

        # 2. Anti-affinity holds in both directions: a pod excludes those that its rule selects, and pods whose rule
        #    selects it exclude it.
        for rule in self._puzzle.apart:
            domain = domains[rule.key]
            if domain is None:
                continue
            excluded_roles = (rule.pods if role in rule.holders else frozenset()) | (
                rule.holders if role in rule.pods else frozenset()
            )
            if any(self._in[other, rule.key, domain] for other in excluded_roles):
                return 0
            if role in excluded_roles:
                most = min(most, 1)

        # 3. Spread: a domain may have ``skew`` pods more than the one with fewest, which has at least ``least``. A pod
        #    with the constraint needs a domain that counts. A pod that is only counted can be anywhere as long as no
        #    pod with the constraint is in its domain.
        for spread, least in self._spread:
            domain = domains[spread.key]
            if role in spread.holders and domain not in spread.counts:
                return 0
            if domain is None or domain not in spread.counts:
                continue
            has_holder = any(self._in[holder, spread.key, domain] for holder in spread.holders)
            if role in spread.holders or (role in spread.pods and has_holder):
                room = least + spread.skew - self._count(spread, domain)
                if role in spread.pods:
                    most = min(most, max(room, 0))
                elif room < 0:
                    return 0
        return most

    def _count(self, spread: Spread, value: str) -> int:
        return spread.counts[value] + sum(self._in[role, spread.key, value] for role in spread.pods)

    def _missing(self, spread: Spread, least: int) -> int:
        """Return how many pods are missing until each domain has ``least`` pods.

        ``spread`` says which domains (such as zones) and pods count.
        """
        return sum(max(0, least - self._count(spread, value)) for value in spread.counts)
