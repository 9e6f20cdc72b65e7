"""Who wants a place, in which order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.queue.equivalence_classes import ANYWHERE, NEVER, Closed, Group, Line, Order
from dradriver.queue.placement_request import Kind
from dradriver.queue.rechecks import Rechecks
from dradriver.queue.tenant_turns import Turn, Turns, turn_of
from dradriver.queue.units import Unit
from dradriver.reason import Reason

_SPARE: Final = 16  # units that left, for which a heap is not made anew


class Queue:
    """Units that want a place: by priority, then those of whoever has had least for its weight, then the oldest.

    Each tenant has a line of its own, in the order of its units; whose line it is that is served is asked each time. So
    nothing is sorted anew while tenants use what they have.

    One that found no place blocks all of its kind until GPUs, CPU or nodes become available: placing takes places away
    and never adds any. Then only the nodes where that happened are asked about.

    A tenant's cap may keep a line from some GPUs, or from all. Then it is of a kind of its own, which blocks nobody
    else's, until the tenant has less (``widen``); what is freed of these GPUs meanwhile is nothing to it.

    Attributes:
        rechecks: Which of those that found no place to ask again.
    """

    def __init__(
        self,
        nodes: NodeTable,
        free: Callable[[], Ints],
        *,
        tenant: Callable[[str], str] = lambda _: "",
        share: Callable[[str], float] = lambda _: 0.0,
        partition: Callable[[str], str] = lambda _: "",
        closed: Callable[[Unit], Closed] = lambda _: ANYWHERE,
        open_rows: Callable[[Closed], Bools | None] = lambda _: None,
    ) -> None:
        """Make an empty queue.

        Args:
            nodes: The nodes, which say when something became free.
            free: Gives the number of free GPUs of each node, by row.
            tenant: Whose a namespace is; where that changes, units are to be put anew.
            share: What a tenant has had for its weight, to be compared.
            partition: Whose partition binds a tenant, by its name or none: of one kind only those find a place
                together that may have the same GPUs.
            closed: Which GPUs a cap keeps a unit from now.
            open_rows: Gives the rows of the nodes with others than these; None for all.
        """
        self._nodes = nodes
        self._tenant = tenant
        self._share = share
        self._partition = partition
        self._closed = closed
        self._units: dict[Key, tuple[Unit, Line]] = {}
        self._lines: dict[tuple[Kind, str], Line] = {}  # by kind and tenant
        self._narrow: dict[str, set[Line]] = {}  # those that a cap keeps from GPUs, by tenant
        self._heads: dict[str, list[tuple[Order, int, Line]]] = {}  # by tenant, its lines that may find a place
        self._turns = Turns(self._turn)
        self._made = 0
        self.rechecks = Rechecks(nodes, free, open_rows, self._queue_all)

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, key: Key) -> bool:
        return key in self._units

    def put(self, unit: Unit) -> Reason | None:
        """Put a workload into the queue. Returns why its equivalence class has no place, as far as known."""
        kind, tenant = unit.kind, self._tenant(unit.key[0])
        known = self._units.get(unit.key)
        if known is not None and known[0] is unit and known[1].kind == kind and known[1].tenant == tenant:
            return known[1].reason
        self.drop(unit.key)
        line = self._lines.get((kind, tenant))
        if line is None:
            line = self._lines[kind, tenant] = Line(
                kind, tenant, self.rechecks.group(kind, self._partition(tenant), ANYWHERE)
            )
        self._units[unit.key] = unit, line
        line.size += 1
        heapq.heappush(line.heap, (unit.order, unit.key))
        if line.group.failed_at == NEVER or line.group.queued:
            self._queue(line)
        return line.reason

    def drop(self, key: Key) -> None:
        """Remove a workload from the queue; an unknown one is no error."""
        entry = self._units.pop(key, None)
        if entry is None:
            return
        self._left_by_one(entry[1])
        if entry[1].queued is None and self._head(entry[1]) is None:
            self._forget(entry[1])

    def next(self) -> tuple[Unit, Bools | None] | None:
        """Return the first workload of the queue that may find a place, and the nodes to ask about (None: all).

        Answer with ``leave`` or ``block`` before asking again.
        """
        while (first := self._first()) is not None:
            unit, line = first
            heapq.heappop(self._heads[line.tenant])
            if not self._heads[line.tenant]:
                del self._heads[line.tenant]
            line.queued = None
            if (closed := self._closed(unit)) == line.group.closed:
                break
            self._move(line, closed)
            self._queue(line)
        else:
            return None
        failed_at = line.group.failed_at
        return unit, None if failed_at == NEVER else self._nodes.freed > failed_at

    def leave(self, unit: Unit) -> None:
        """Take a workload out of the queue, because it has its place or cannot be served now."""
        entry = self._units.pop(unit.key, None)
        if entry is not None:
            self._left_by_one(entry[1])
            self._queue(entry[1])

    def block(self, unit: Unit, reason: Reason | None, about: str = "") -> list[Unit]:
        """Note that a workload of the queue found no place, nor will its class. Returns to whom that is new.

        Args:
            unit: The unit.
            reason: Why; None for that of before.
            about: The same without figures that change all the time, where it has any: of a kind that was told the
                same, only the first is told the new ones.
        """
        entry = self._units.get(unit.key)
        if entry is None:
            return []
        group = entry[1].group
        group.failed_at = self._nodes.clock
        for line in list(group.lines.values()):
            line.queued = None
            if self._head(line) is None:
                self._forget(line)
        if reason is None:
            return []
        group.reason = reason
        return [told for line in group.lines.values() for told in self._told(line, reason, about or reason.text)]

    def _told(self, line: Line, reason: Reason, about: str) -> list[Unit]:
        """Return the units of a line that have to be told a reason."""
        if line.reason == reason:
            return []
        known, line.reason, line.about = line.about == about, reason, about
        if known:
            return [] if (head := self._head(line)) is None else [head]
        return [self._units[item[1]][0] for item in line.heap if self._member(item, line)]

    def closed(self, key: Key) -> Closed:
        """Return the GPUs that a cap denied a workload when its class was asked last."""
        entry = self._units.get(key)
        return ANYWHERE if entry is None else entry[1].group.closed

    def widen(self, tenant: str) -> list[tuple[Unit, Reason]]:
        """Note that a tenant has less than before: its cap may deny its queue nothing now.

        Returns those that find no place all the same, as others of their kind did not, with why.
        """
        news: list[tuple[Unit, Reason]] = []
        for line in sorted(self._narrow.get(tenant, ()), key=lambda line: line.heap[:1]):
            self._move(line, ANYWHERE)
            group = line.group
            if group.failed_at == NEVER or group.queued:
                self._queue(line)
            elif group.reason:
                news += [(unit, group.reason) for unit in self._told(line, group.reason, group.reason.text)]
        return news

    def _move(self, line: Line, closed: Closed) -> None:
        """Let a line be of the kind that a cap keeps from these GPUs."""
        self._leave_group(line)
        line.group = self.rechecks.group(line.kind, line.tenant if closed else self._partition(line.tenant), closed)
        line.group.lines[line.tenant] = line
        if closed:
            self._narrow.setdefault(line.tenant, set()).add(line)

    def _leave_group(self, line: Line) -> None:
        group = line.group
        if group.lines.pop(line.tenant, None) is not None and not group.lines:
            self.rechecks.forget(group)
        if (narrow := self._narrow.get(line.tenant)) is not None:
            narrow.discard(line)
            if not narrow:
                del self._narrow[line.tenant]

    def first_blocked(self) -> Iterator[Unit]:
        """Return the first workload of each tenant and class in the queue that found no place."""
        for group in self.rechecks.blocked():
            yield from filter(None, map(self._head, list(group.lines.values())))

    def blocked(self) -> list[Unit]:
        """Return the workloads of the queue that found no place, in order."""
        keys = {item[1] for group in self.rechecks.blocked() for line in group.lines.values() for item in line.heap}
        found = [self._units[key][0] for key in keys if key in self._units]
        return sorted(found, key=lambda unit: self.turn(unit.key, unit.order))

    def turn(self, key: Key, order: Order) -> Turn:
        """Return a workload's position in the queue among all tenants."""
        return turn_of(order, self._share(self._tenant(key[0])))

    def head(self) -> Turn | None:
        """Return the position of the workload that ``next`` would return; None if there is none."""
        return None if (first := self._first()) is None else self.turn(first[0].key, first[0].order)

    def _first(self) -> tuple[Unit, Line] | None:
        """Return the unit whose turn it is, with its line, the first of its tenant's; None where none is left."""
        tenant = self._turns.first()
        return None if tenant is None else self._head_of(tenant)

    def _turn(self, tenant: str) -> Turn | None:
        """Return the turn of a tenant's first unit that may find a place; None where none is left there."""
        return None if (head := self._head_of(tenant)) is None else turn_of(head[0].order, self._share(tenant))

    def lowered(self, tenant: str | None = None) -> None:
        """Note that a tenant's share may be less than it was, None for any tenant's."""
        if tenant is None:
            self._turns.reorder(list(self._heads))
        else:
            self._turns.put(tenant)

    def _head_of(self, tenant: str) -> tuple[Unit, Line] | None:
        """Return the first unit of a tenant that may find a place; None where none is left there."""
        heads = self._heads.get(tenant)
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
        self._heads.pop(tenant, None)
        return None

    def _queue(self, line: Line) -> None:
        head = self._head(line)
        if head is None:
            self._forget(line)
        elif line.queued is None or head.order < line.queued:
            line.queued = head.order
            self._made += 1
            heapq.heappush(self._heads.setdefault(line.tenant, []), (head.order, self._made, line))
            self._turns.put(line.tenant)

    def _queue_all(self, group: Group) -> None:
        for line in list(group.lines.values()):
            self._queue(line)

    def _forget(self, line: Line) -> None:
        if self._lines.get((line.kind, line.tenant)) is line:
            del self._lines[line.kind, line.tenant]
            self._leave_group(line)

    def _left_by_one(self, line: Line) -> None:
        line.size -= 1
        if len(line.heap) > 2 * line.size + _SPARE:
            line.heap = sorted({item for item in line.heap if self._member(item, line)})

    def _head(self, line: Line) -> Unit | None:
        while line.heap:
            item = line.heap[0]
            if self._member(item, line):
                return self._units[item[1]][0]
            heapq.heappop(line.heap)
        return None

    def _member(self, item: tuple[Order, Key], line: Line) -> bool:
        """Return whether an item of a line's heap is a unit of its: one may have left it, or come back elsewhere."""
        entry = self._units.get(item[1])
        return entry is not None and entry[1] is line and entry[0].order == item[0]
