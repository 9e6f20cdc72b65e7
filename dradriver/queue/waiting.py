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

Order = tuple[str, str]

_NEVER: Final = -1
_SPARE: Final = 16  # units that left, for which a heap is not made anew
OLDEST: Final = 32  # kinds of a namespace that are asked in each round
OTHERS: Final = 32  # more of them, in turn
_RECHECKED: Final = 10  # kinds at a time
_RECHECK_S: Final = 10.0  # between two times of one kind


class _Class:
    """Units of one kind: they find a place together or not at all.

    Attributes:
        heap: Its units by order; those that left are dropped when they come to the top, or when they are many.
        size: How many units it has.
        failed_at: The nodes' clock when one of them last found no place; ``_NEVER`` while none has.
        reason: Why, then.
        checked_at: When it was last asked without an event.
        seen: The version of the picture then.
        gpus: Fewest free GPUs of a node that may take one.
        queued: The order that it stands in the queue's own heap under; None while it does not.
    """

    __slots__ = ("checked_at", "failed_at", "gpus", "heap", "kind", "queued", "reason", "seen", "size")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        # Parts may be of GPUs that are in use, and so is the set that others have already.
        self.gpus = kind[0].gpus if isinstance(kind[0], Whole) and not kind[2] else 0
        self.heap: list[tuple[Order, Key]] = []
        self.size = 0
        self.failed_at = _NEVER
        self.reason = ""
        self.queued: Order | None = None
        self.checked_at = 0.0
        self.seen = -1


class Queue:
    """Units that want a place, oldest first.

    One that found no place blocks all of its kind until GPUs, CPU or nodes become available: placing takes places away
    and never adds any. Then only the nodes where that happened are asked about.
    """

    def __init__(self, nodes: NodeTable, free: Callable[[], Ints]) -> None:
        """``free`` gives the number of free GPUs of each node, by row."""
        self._nodes = nodes
        self._free = free
        self._units: dict[Key, tuple[Unit, _Class]] = {}
        self._classes: dict[Kind, _Class] = {}
        self._heads: list[tuple[Order, int, _Class]] = []
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
        kind = unit.kind
        known = self._units.get(unit.key)
        if known is not None and known[0] is unit and known[1].kind == kind:
            return known[1].reason
        self.drop(unit.key)
        group = self._classes.get(kind)
        if group is None:
            group = self._classes[kind] = _Class(kind)
            self._rechecks[group] = None
        self._units[unit.key] = unit, group
        group.size += 1
        heapq.heappush(group.heap, (unit.order, unit.key))
        if group.failed_at == _NEVER:
            self._queue(group)
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
        """Return the oldest unit that may find a place, and the rows of the nodes to ask about (None: all).

        Answer with ``leave`` or ``block`` before asking again.
        """
        if (head := self._oldest()) is None:
            return None
        group = heapq.heappop(self._heads)[2]
        group.queued = None
        return head, None if group.failed_at == _NEVER else self._nodes.freed > group.failed_at

    def leave(self, unit: Unit) -> None:
        """Take a unit out, because it has its place or cannot be served now; the next of its kind gets its turn."""
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
        group = entry[1]
        group.failed_at = self._nodes.clock
        if reason in ("", group.reason):
            return []
        group.reason = reason
        return [self._units[item[1]][0] for item in group.heap if self._member(item, group)]

    @property
    def oldest(self) -> Order | None:
        """The order of the unit that ``next`` would return; None where there is none."""
        return None if (head := self._oldest()) is None else head.order

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
            if group.queued is None and self._worth(group):
                self._queue(group)
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
            if group.failed_at != _NEVER and group.queued is None and group.gpus <= most_gpus:
                by_namespace.setdefault(group.heap[0][1][0], []).append(group)
        self._left = {}
        for namespace, classes in by_namespace.items():
            if len(classes) > OLDEST + OTHERS:
                classes.sort(key=lambda group: group.heap[0])
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
                self._queue(group)
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

    def _oldest(self) -> Unit | None:
        """Return the unit whose class is the first of the queue's own heap; None where none is left there."""
        while self._heads:
            order, _, group = self._heads[0]
            if group.queued == order:  # else an older unit came, and has had the group's turn
                if (head := self._head(group)) is not None:
                    return head
                group.queued = None
                self._forget(group)
            heapq.heappop(self._heads)
        return None

    def _queue(self, group: _Class) -> None:
        head = self._head(group)
        if head is None:
            self._forget(group)
        elif group.queued is None or head.order < group.queued:
            group.queued = head.order
            self._made += 1
            heapq.heappush(self._heads, (head.order, self._made, group))

    def _forget(self, group: _Class) -> None:
        if self._classes.get(group.kind) is group:
            del self._classes[group.kind]
            del self._rechecks[group]

    def _left_by_one(self, group: _Class) -> None:
        group.size -= 1
        if len(group.heap) > 2 * group.size + _SPARE:
            group.heap = sorted({item for item in group.heap if self._member(item, group)})

    def _head(self, group: _Class) -> Unit | None:
        while group.heap:
            item = group.heap[0]
            if self._member(item, group):
                return self._units[item[1]][0]
            heapq.heappop(group.heap)
        return None

    def _member(self, item: tuple[Order, Key], group: _Class) -> bool:
        """Return whether an item of a class's heap is a unit of its: one may have left it, or come back elsewhere."""
        entry = self._units.get(item[1])
        return entry is not None and entry[1] is group and entry[0].order == item[0]
