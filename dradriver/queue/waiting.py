"""Who wants a place, in which order, and whom it is worth asking about."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.request import Whole
from dradriver.api.pins import Key
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.table import NodeTable
from dradriver.queue.placement_request import Kind
from dradriver.queue.units import Unit

Order = tuple[int, str, str]
"""Priority, the highest first, as a negative number; since when it waits; who it is."""

Turn = tuple[int, float, str, str]
"""Priority; what the tenant has had for its weight; since when it waits; who it is."""

_NEVER: Final = -1
_SPARE: Final = 16  # units that left, for which a heap is not made anew
OLDEST: Final = 32  # kinds of a namespace that are asked in each round
OTHERS: Final = 32  # more of them, in turn
_RECHECKED: Final = 10  # kinds at a time
_RECHECK_S: Final = 10.0  # between two times of one kind


class _Line:
    """Units of one kind and one tenant.

    Attributes:
        kind: Their kind, as the queue keeps it.
        tenant: Whose they are.
        heap: They by order; those that left are dropped when they come to the top, or when they are many.
        size: How many they are.
        queued: The order that they stand under among the tenant's lines; None while they do not.
    """

    __slots__ = ("heap", "kind", "queued", "size", "tenant")

    def __init__(self, kind: _Class, tenant: str) -> None:
        self.kind = kind
        self.tenant = tenant
        self.heap: list[tuple[Order, Key]] = []
        self.size = 0
        self.queued: Order | None = None


class _Class:
    """Units of one kind: they find a place together or not at all.

    Attributes:
        lines: Its units by tenant; none is empty.
        failed_at: The nodes' clock when one of them last found no place; ``_NEVER`` while none has.
        reason: Why, then.
        checked_at: When it was last asked without an event.
        seen: The version of the picture then.
        gpus: Fewest free GPUs of a node that may take one.
    """

    __slots__ = ("checked_at", "failed_at", "gpus", "kind", "lines", "reason", "seen")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        # Parts may be of GPUs that are in use, and so is the set that others have already.
        self.gpus = kind[0].gpus if isinstance(kind[0], Whole) and not kind[2] else 0
        self.lines: dict[str, _Line] = {}
        self.failed_at = _NEVER
        self.reason = ""
        self.checked_at = 0.0
        self.seen = -1

    @property
    def queued(self) -> bool:
        """Whether any of it stands in the queue."""
        return any(line.queued is not None for line in self.lines.values())

    @property
    def oldest(self) -> tuple[Order, Key]:
        """The first of its units, or one that left a moment ago."""
        return min(line.heap[0] for line in self.lines.values())


def as_it_is(_: Key, order: Order) -> Turn:
    """Return the turn of a unit where nobody's share is compared."""
    return order[0], 0.0, order[1], order[2]


def _one_tenant(_: str) -> str:
    return ""


def _no_share(_: str) -> float:
    return 0.0


class Queue:
    """Units that want a place: by priority, then those of whoever has had least for its weight, then the oldest.

    Each tenant has a line of its own, in the order of its units; whose line it is that is served is asked each time. So
    nothing is sorted anew while tenants use what they have.

    One that found no place blocks all of its kind until GPUs, CPU or nodes become available: placing takes places away
    and never adds any. Then only the nodes where that happened are asked about.
    """

    def __init__(
        self,
        nodes: NodeTable,
        free: Callable[[], Ints],
        *,
        tenant: Callable[[str], str] = _one_tenant,
        share: Callable[[str], float] = _no_share,
    ) -> None:
        """Make an empty queue.

        Args:
            nodes: The nodes, which say when something became free.
            free: Gives the number of free GPUs of each node, by row.
            tenant: Whose a namespace is; where that changes, units are to be put anew.
            share: What a tenant has had for its weight, to be compared.
        """
        self._nodes = nodes
        self._free = free
        self._tenant = tenant
        self._share = share
        self._units: dict[Key, tuple[Unit, _Line]] = {}
        self._classes: dict[Kind, _Class] = {}
        self._heads: dict[str, list[tuple[Order, int, _Line]]] = {}  # by tenant, its lines that may find a place
        self._looked_at = _NEVER  # the nodes' clock when it was last found out which blocked classes to ask
        self._since = _NEVER  # the clock up to which all of them were asked
        self._left: dict[str, Iterator[_Class]] = {}  # those to ask yet, by namespace
        self._round: list[_Class] = []  # those to ask before anybody is served
        self._made = 0
        # Most blocked kinds were last asked at the same time: what has happened since is worked out once for all.
        self._candidates: dict[tuple[int, int], NDArray[np.intp] | None] = {}
        self._candidates_at = _NEVER
        self._rechecks: OrderedDict[_Class, None] = OrderedDict()  # whose turn to be asked without an event it is

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, key: Key) -> bool:
        return key in self._units

    def put(self, unit: Unit) -> str:
        """Let a unit wait for a place. Returns why its kind has none, as far as that is known."""
        kind, tenant = unit.kind, self._tenant(unit.key[0])
        known = self._units.get(unit.key)
        if known is not None and known[0] is unit and known[1].kind.kind == kind and known[1].tenant == tenant:
            return known[1].kind.reason
        self.drop(unit.key)
        group = self._classes.get(kind)
        if group is None:
            group = self._classes[kind] = _Class(kind)
            self._rechecks[group] = None
        line = group.lines.get(tenant)
        if line is None:
            line = group.lines[tenant] = _Line(group, tenant)
        self._units[unit.key] = unit, line
        line.size += 1
        heapq.heappush(line.heap, (unit.order, unit.key))
        if group.failed_at == _NEVER or group.queued:
            self._queue(line)
        return group.reason

    def drop(self, key: Key) -> None:
        """Forget a unit; an unknown one is no error."""
        entry = self._units.pop(key, None)
        if entry is None:
            return
        self._left_by_one(entry[1])
        if entry[1].queued is None and self._head(entry[1]) is None:
            self._forget(entry[1])

    def next(self) -> tuple[Unit, Bools | None] | None:
        """Return the first unit that may find a place, and the rows of the nodes to ask about (None: all).

        Answer with ``leave`` or ``block`` before asking again.
        """
        if (first := self._first()) is None:
            return None
        unit, line = first
        heapq.heappop(self._heads[line.tenant])
        if not self._heads[line.tenant]:
            del self._heads[line.tenant]
        line.queued = None
        failed_at = line.kind.failed_at
        return unit, None if failed_at == _NEVER else self._nodes.freed > failed_at

    def leave(self, unit: Unit) -> None:
        """Take a unit out, because it has its place or cannot be served now; the next of its line gets its turn."""
        entry = self._units.pop(unit.key, None)
        if entry is not None:
            self._left_by_one(entry[1])
            self._queue(entry[1])

    def block(self, unit: Unit, reason: str) -> list[Unit]:
        """Say that a unit found no place, nor will its kind. Returns whom that is news to: all of its kind, or none.

        An empty reason is that of before.
        """
        entry = self._units.get(unit.key)
        if entry is None:
            return []
        group = entry[1].kind
        group.failed_at = self._nodes.clock
        for line in list(group.lines.values()):
            line.queued = None
            if self._head(line) is None:
                self._forget(line)
        if reason in ("", group.reason):
            return []
        group.reason = reason
        lines = group.lines.values()
        return [self._units[item[1]][0] for line in lines for item in line.heap if self._member(item, line)]

    def blocked(self) -> list[Unit]:
        """Return the units of kinds that found no place, in their order; none of a kind that is asked again."""
        groups = [group for group in self._classes.values() if group.failed_at != _NEVER and not group.queued]
        keys = {item[1] for group in groups for line in group.lines.values() for item in line.heap}
        found = [self._units[key][0] for key in keys if key in self._units]
        return sorted(found, key=lambda unit: self.turn(unit.key, unit.order))

    def turn(self, key: Key, order: Order) -> Turn:
        """Return a unit's turn among all, by its order among its tenant's."""
        return order[0], self._share(self._tenant(key[0])), order[1], order[2]

    def head(self) -> Turn | None:
        """Return the turn of the unit that ``next`` would return; None where there is none."""
        return None if (first := self._first()) is None else self.turn(first[0].key, first[0].order)

    @property
    def outdated(self) -> bool:
        """Whether something became free since blocked kinds were last asked, or not all have been asked yet."""
        return bool(self._round or self._left) or self._looked_at != self._nodes.clock

    def look(self, most: int) -> bool:
        """Ask of up to so many blocked kinds whether they may find a place by now. Returns whether a round goes on.

        A round has so many kinds of each namespace: whoever has thousands of them holds up those of others no longer.
        Only between two rounds call ``next``: so the oldest of those that may is the first. Whatever becomes free
        meanwhile is asked about from the next round on.
        """
        if not self._round:
            if not self.outdated:
                return False
            if self._looked_at != self._nodes.clock:
                self._plan()
            for namespace, classes in list(self._left.items()):
                some = list(itertools.islice(classes, OLDEST + OTHERS))
                self._round += some
                if len(some) < OLDEST + OTHERS:
                    del self._left[namespace]
        some, self._round = self._round[:most], self._round[most:]
        for group in some:
            if not group.queued and self._worth(group):
                self._queue_all(group)
        return bool(self._round)

    def _plan(self) -> None:
        """Find out which blocked classes to ask: of each namespace the oldest first, then who was not for longest.

        Were it the oldest alone, those behind them would never be asked where something becomes free all the time.
        """
        if not self._left:
            self._since = self._looked_at
        self._looked_at = self._nodes.clock
        free = self._free()[: self._nodes.rows]
        freed = free[self._nodes.freed[: len(free)] > self._since]
        most_gpus = int(freed.max(initial=0))  # CPU that is freed beside GPUs that are all taken helps nobody
        by_namespace: dict[str, list[_Class]] = {}
        for group in self._classes.values():
            if group.failed_at != _NEVER and not group.queued and group.gpus <= most_gpus:
                by_namespace.setdefault(group.oldest[1][0], []).append(group)
        self._left = {}
        for namespace, classes in by_namespace.items():
            if len(classes) > OLDEST + OTHERS:
                classes.sort(key=lambda group: group.oldest)
                classes[OLDEST:] = sorted(classes[OLDEST:], key=lambda group: group.failed_at)
            self._left[namespace] = iter(classes)

    def recheck(self, version: int, now: float) -> bool:
        """Let a few kinds be asked about all nodes again, the longest ago first. Returns whether there are any.

        Args:
            version: Of the picture; a kind is not asked twice about the same.
            now: A clock, seconds.
        """
        any_due = False
        for group in list(itertools.islice(self._rechecks, _RECHECKED)):
            self._rechecks.move_to_end(group)
            if group.seen == version or now < group.checked_at + _RECHECK_S:
                continue
            group.seen, group.checked_at = version, now
            if group.failed_at != _NEVER:
                group.failed_at = _NEVER
                self._queue_all(group)
                any_due = True
        return any_due

    def _worth(self, group: _Class) -> bool:
        """Whether a node that became available since may take one of the kind; if not, the kind need not ask again."""
        freed = self._freed(group.failed_at, group.gpus)
        if freed is not None and self._nodes.eligible(group.kind[1])[freed].any():
            return True
        group.failed_at = self._nodes.clock
        return False

    def _freed(self, since: int, gpus: int) -> NDArray[np.intp] | None:
        """Return the rows that became available since, with at least so many free GPUs; None where there are none."""
        if self._candidates_at != self._nodes.clock:
            self._candidates_at = self._nodes.clock
            self._candidates.clear()
        if (since, gpus) not in self._candidates:
            free = self._free()[: self._nodes.rows]  # neither has a row more than it needs, nor the same ones
            rows = np.flatnonzero((self._nodes.freed[: len(free)] > since) & (free >= gpus))
            self._candidates[since, gpus] = rows if len(rows) else None
        return self._candidates[since, gpus]

    def _first(self) -> tuple[Unit, _Line] | None:
        """Return the unit whose turn it is, with its line, which is the first of its tenant's; None where none is left.

        Shares are compared among the heads of one priority only.
        """
        heads = [head for tenant in list(self._heads) if (head := self._head_of(tenant)) is not None]
        if not heads:
            return None
        priority = min(unit.order[0] for unit, _ in heads)
        urgent = [(unit, line) for unit, line in heads if unit.order[0] == priority]
        if len(urgent) == 1:
            return urgent[0]
        return min(urgent, key=lambda head: (self._share(head[1].tenant), head[0].order))

    def _head_of(self, tenant: str) -> tuple[Unit, _Line] | None:
        """Return the first unit of a tenant that may find a place; None where none is left there."""
        heads = self._heads[tenant]
        while heads:
            order, made, line = heads[0]
            if line.queued != order:  # an older unit came, and the line stands under its order, too
                heapq.heappop(heads)
            elif (head := self._head(line)) is None:
                heapq.heappop(heads)
                line.queued = None
                self._forget(line)
            elif head.order != order:  # the unit that it stood under has left
                line.queued = head.order
                heapq.heapreplace(heads, (head.order, made, line))
            else:
                return head, line
        del self._heads[tenant]
        return None

    def _queue(self, line: _Line) -> None:
        head = self._head(line)
        if head is None:
            self._forget(line)
        elif line.queued is None or head.order < line.queued:
            line.queued = head.order
            self._made += 1
            heapq.heappush(self._heads.setdefault(line.tenant, []), (head.order, self._made, line))

    def _queue_all(self, group: _Class) -> None:
        for line in list(group.lines.values()):
            self._queue(line)

    def _forget(self, line: _Line) -> None:
        group = line.kind
        if group.lines.get(line.tenant) is line:
            del group.lines[line.tenant]
            if not group.lines:
                del self._classes[group.kind]
                del self._rechecks[group]

    def _left_by_one(self, line: _Line) -> None:
        line.size -= 1
        if len(line.heap) > 2 * line.size + _SPARE:
            line.heap = sorted({item for item in line.heap if self._member(item, line)})

    def _head(self, line: _Line) -> Unit | None:
        while line.heap:
            item = line.heap[0]
            if self._member(item, line):
                return self._units[item[1]][0]
            heapq.heappop(line.heap)
        return None

    def _member(self, item: tuple[Order, Key], line: _Line) -> bool:
        """Return whether an item of a line's heap is a unit of its: one may have left it, or come back elsewhere."""
        entry = self._units.get(item[1])
        return entry is not None and entry[1] is line and entry[0].order == item[0]
