"""The queue of workloads that need a place, in the order in which they are served.

The controller's worker uses it. These words have a fixed meaning here:

* A *class* is the workloads with equal requests: one finds a place if and only if the others do.
* An *asker* is the single pods, or the gangs, of one namespace.
* A *line* is the workloads of one class and one asker, in their order.
* A *group* is the lines of one class that may use the same GPUs, because the same caps and partition limit them.

A group is *blocked* if a workload of it found no place. A row is the index of a node in the node table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.queue.equivalence_classes import (
    ANYWHERE,
    NEVER,
    Asker,
    Closed,
    Group,
    Line,
    Order,
    Rank,
)
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.placement_request import Kinds
from dradriver.queue.rechecks import Rechecks
from dradriver.queue.tenant_turns import Turn, Turns, turn_of
from dradriver.reason import Reason

_SPARE: Final = 16  # workloads that left, for which a heap is not made anew


class Queue:
    """Workloads that need a place: by priority, then by their tenant's share, then the oldest first.

    The next tenant is chosen again for each workload, so nothing must be sorted again when shares change.

    A workload that finds no place blocks all workloads of its group until GPUs, CPU or nodes become free: placing other
    workloads never adds places. Then only the nodes that became free are tried.

    A tenant's cap can deny a line some GPUs, or all. Then the line is in a group of its tenant alone, and blocks no
    lines of other tenants. The line stays there until the tenant uses fewer GPUs (``widen``). If the denied GPUs become
    free before that, the line is not tried again.

    If tries for an asker cost much and find no place, the asker steps back: other askers go first (``Turns``). When one
    of these is tried, the line of the costly try goes behind all workloads that wait at that time. So the asker
    continues with another line when GPUs become free again.

    Attributes:
        rechecks: Decides which blocked groups are tried again.
    """

    def __init__(
        self,
        nodes: NodeTable,
        free: Callable[[], Ints],
        *,
        tenant: Callable[[str], str] = lambda _: "",
        share: Callable[[str], float] = lambda _: 0.0,
        partition: Callable[[str], str] = lambda _: "",
        closed: Callable[[PendingWorkload], Closed] = lambda _: ANYWHERE,
        open_rows: Callable[[Closed], Bools | None] = lambda _: None,
    ) -> None:
        """Make an empty queue.

        Args:
            nodes: The table of nodes, which records when something became free.
            free: Returns the number of free GPUs of each row of the node table.
            tenant: Returns the tenant of a namespace. If it changes, the caller must call ``put`` for the workloads
                again.
            share: Returns the GPU time of a tenant, divided by its weight. The tenant with the least goes first.
            partition: Returns the tenant whose partition limits a tenant; empty if there is none. Workloads of
                different partitions cannot get the same GPUs, so they are never in one group.
            closed: Returns the GPU products that a cap denies a workload now.
            open_rows: Takes the products that a cap denies. Returns a bool for each row of the node table: whether the
                node has GPUs of other products. None for all nodes.
        """
        self._nodes = nodes
        self._tenant = tenant
        self._share = share
        self._partition = partition
        self._closed = closed
        self._workloads: dict[Key, tuple[PendingWorkload, Line]] = {}  # all waiting workloads
        self._lines: dict[tuple[Kinds, Asker], Line] = {}  # by equivalence class and asker
        self._capped_lines: dict[str, set[Line]] = {}  # by tenant: the lines that a cap denies some GPUs
        # By asker (one namespace of a tenant, gangs apart): a heap of the lines that may find a place. The number makes
        # entries comparable.
        self._heads: dict[Asker, list[tuple[Rank, int, Line]]] = {}
        self._turns = Turns(self._rank, share)  # the askers by the ranks of their first workloads
        self._newest = ""  # since when the youngest workload waits of all that were here
        self._moves = 0  # moves of lines behind others, which numbers them
        self._asked: Bools | None = None  # the nodes that the last answer of ``next`` says to ask about
        self._heap_entries = 0  # entries made so far, which number them
        # Calls ``_queue_all`` with a blocked group that may find a place now, to put its lines into the heaps again.
        self.rechecks = Rechecks(nodes, free, open_rows, self._queue_all)

    def __len__(self) -> int:
        return len(self._workloads)

    def __contains__(self, key: Key) -> bool:
        return key in self._workloads

    def put(self, workload: PendingWorkload) -> Reason | None:
        """Add a waiting workload to the queue. Return why its group has no place.

        None if the group may find a place, or if the reason is not known.
        """
        kinds, namespace = workload.kinds, workload.key[0]
        asker = Asker(self._tenant(namespace), namespace, workload.is_gang)
        known = self._workloads.get(workload.key)
        if known is not None and known[0] is workload and known[1].kinds == kinds and known[1].asker == asker:
            return self._reason_of(workload, known[1])
        self.drop(workload.key)
        line = self._lines.get((kinds, asker))
        if line is None:
            partition = self._partition(asker.tenant)
            group = self.rechecks.group(kinds, partition, ANYWHERE, is_gang=asker.is_gang)
            line = self._lines[kinds, asker] = Line(kinds, asker, group)
        self._workloads[workload.key] = workload, line
        line.size += 1
        self._newest = max(self._newest, workload.order[1])
        heapq.heappush(line.heap, (workload.order, workload.key))
        if line.group.failed_at == NEVER or line.group.queued:
            self._queue(line)
        return self._reason_of(workload, line)

    def drop(self, key: Key) -> None:
        """Remove a waiting workload from the queue. Nothing happens if it is not there."""
        entry = self._workloads.pop(key, None)
        if entry is None:
            return
        self._left_by_one(entry[1])
        if entry[1].queued is None and self._head(entry[1]) is None:
            self._forget(entry[1])

    def next(self) -> tuple[PendingWorkload, Bools | None] | None:
        """Return the first waiting workload that may find a place, and the nodes to try.

        The caller must call ``leave`` or ``block`` for the workload before the next call of ``next``.

        Returns:
            The workload, and a bool for each row of the node table: whether to try the node (None: all nodes). None if
            no workload may find a place.
        """
        while (first := self._first()) is not None:
            workload, line = first
            heapq.heappop(self._heads[line.asker])
            line.queued = None
            closed = self._closed(workload)
            if closed != line.group.closed:
                # The tenant uses more or less of its cap than before, so the line belongs to another group.
                self._move(line, closed)
                self._queue(line)
                continue
            self._asked = None
            if line.group.failed_at != NEVER:
                # Where nothing became free since the class failed, it would fail again.
                self._asked = self.rechecks.freed(line.group)
                if self._asked is None:
                    self._found_no_place(line.group)
                    continue
            return workload, self._asked
        return None

    def leave(self, workload: PendingWorkload, *, work: int = 0) -> None:
        """Take a workload out of the queue: it has its place, or cannot be served.

        Args:
            workload: The workload.
            work: The cost of finding its place, in evaluations of nodes.
        """
        entry = self._workloads.pop(workload.key, None)
        if entry is not None:
            self._looked(workload, entry[1], work, in_vain=False)
            self._left_by_one(entry[1])
            self._queue(entry[1])

    def block(
        self, workload: PendingWorkload, reason: Reason | None, *, work: int = 0, by_limit: bool = False
    ) -> list[tuple[PendingWorkload, Reason]]:
        """Record that a workload and its group found no place. Return new reasons to write.

        A reason can have figures that change all the time. If all workloads showed them, each change would cost a write
        for each workload. So only the first workload of each line shows the figures, and the others show the reason
        without them.

        Args:
            workload: The workload.
            reason: Why it found no place; None if the reason has not changed.
            work: The cost of the try, in evaluations of nodes.
            by_limit: Whether a limit, such as a cap, left it no GPUs, so that no node was tried.

        Returns:
            Each workload of the group whose pods must show a new reason, with this reason.
        """
        entry = self._workloads.get(workload.key)
        if entry is None:
            return []
        group = entry[1].group
        group.work = work
        self._looked(workload, entry[1], work, in_vain=True)
        if not by_limit:
            self.rechecks.refused(group, self._asked)
        self._found_no_place(group)
        if reason is None:
            return []
        group.reason = reason
        return [news for of_asker in group.lines.values() for news in self._news(of_asker, reason)]

    def _looked(self, workload: PendingWorkload, line: Line, work: int, *, in_vain: bool) -> None:
        """Count the cost of a try; move back a line whose try cost too much.

        Args:
            workload: The workload that was tried.
            line: Its line.
            work: The cost, in evaluations of nodes.
            in_vain: Whether the try found no place.
        """
        for costly in self._turns.looked(line, workload.order[0], work, in_vain=in_vain):
            self._moves += 1
            costly.behind = self._newest, self._moves

    def _found_no_place(self, group: Group) -> None:
        """Mark a group of equivalent workloads as blocked, so that ``next`` returns none of them."""
        group.failed_at = self._nodes.clock
        for line in list(group.lines.values()):
            line.queued = None
            if self._head(line) is None:
                self._forget(line)

    def _news(self, line: Line, reason: Reason) -> list[tuple[PendingWorkload, Reason]]:
        """Store why the workloads of a line wait. Return new reasons to write.

        The result has each workload whose pods must show a new reason, with this reason. Only the first workload of the
        line gets the figures that change all the time.
        """
        head = self._head(line)
        if head is None:
            return []
        before, had_figures = line.reason, line.informed
        have_figures = {head.key} if reason.stable else set[Key]()
        if before == reason and had_figures == have_figures:
            return []
        line.reason, line.informed = reason, have_figures
        keys: Iterable[Key] = had_figures | have_figures
        if before is None or before.without_figures != reason.without_figures:
            keys = [item[1] for item in line.heap if self._member(item, line)]
        entries = filter(None, map(self._workloads.get, keys))
        return [(each, self._reason_of(each, line) or reason) for each, own_line in entries if own_line is line]

    def _reason_of(self, workload: PendingWorkload, line: Line) -> Reason | None:
        """Return why a workload of a line waits; None if that is not known.

        Only the first workload of the line gets the figures that change all the time.
        """
        if line.reason is None or not line.reason.stable:
            return line.reason
        if self._head(line) is not workload:
            return line.reason.without_figures
        line.informed.add(workload.key)
        return line.reason

    def closed(self, key: Key) -> Closed:
        """Return the GPU products that a cap denied a workload at its last try.

        Empty if no cap denied it any, or if the workload is not in the queue.
        """
        entry = self._workloads.get(key)
        return ANYWHERE if entry is None else entry[1].group.closed

    def widen(self, tenant: str) -> list[tuple[PendingWorkload, Reason]]:
        """Let a tenant's workloads try all GPU products again.

        The tenant uses fewer GPUs now. Each line moves to the group of its class without denied products. If this group
        is not blocked, the line is queued. If it is blocked, the line finds no place either.

        Returns:
            The workloads of lines in blocked groups whose pods must show a new reason, each with this reason.
        """
        news: list[tuple[PendingWorkload, Reason]] = []
        for line in sorted(self._capped_lines.get(tenant, ()), key=lambda line: line.heap[:1]):
            self._move(line, ANYWHERE)
            group = line.group
            if group.failed_at == NEVER or group.queued:
                self._queue(line)
            elif group.reason:
                news += self._news(line, group.reason)
        return news

    def _move(self, line: Line, closed: Closed) -> None:
        """Move a line to another group of its class: other GPU products are denied.

        A line is the waiting workloads of one class and namespace.

        Args:
            line: The line.
            closed: The products that caps deny the workloads of the new group.
        """
        self._leave_group(line)
        tenant = line.asker.tenant
        whose = tenant if closed else self._partition(tenant)
        line.group = self.rechecks.group(line.kinds, whose, closed, is_gang=line.asker.is_gang)
        line.group.lines[line.asker] = line
        if closed:
            self._capped_lines.setdefault(tenant, set()).add(line)

    def _leave_group(self, line: Line) -> None:
        """Remove a line from its group; forget the group if no line is left.

        A line is the waiting workloads of one equivalence class and namespace. A group is lines that may use the same
        GPUs.
        """
        group, tenant = line.group, line.asker.tenant
        if group.lines.pop(line.asker, None) is not None and not group.lines:
            self.rechecks.forget(group)
        if (capped_lines := self._capped_lines.get(tenant)) is not None:
            capped_lines.discard(line)
            if not capped_lines:
                del self._capped_lines[tenant]

    def first_blocked(self) -> Iterator[PendingWorkload]:
        """Yield the first waiting workload of each tenant in each blocked group."""
        for group in self.rechecks.blocked():
            firsts: dict[str, PendingWorkload] = {}
            for line in list(group.lines.values()):
                head, first = self._head(line), firsts.get(line.asker.tenant)
                if head is not None and (first is None or head.order < first.order):
                    firsts[line.asker.tenant] = head
            yield from firsts.values()

    def blocked(self) -> list[PendingWorkload]:
        """Return the waiting workloads that found no place, in the order of the queue."""
        keys = {item[1] for group in self.rechecks.blocked() for line in group.lines.values() for item in line.heap}
        found = [self._workloads[key][0] for key in keys if key in self._workloads]
        return sorted(found, key=lambda workload: self.turn(workload.key, workload.order))

    def turn(self, key: Key, order: Order) -> Turn:
        """Return the position of a waiting workload among the workloads of all tenants.

        Args:
            key: The workload.
            order: Its order among the workloads of its tenant.
        """
        return turn_of(order, self._share(self._tenant(key[0])))

    def head(self) -> Turn | None:
        """Return the position of the waiting workload that ``next`` would return; None if there is none."""
        return None if (first := self._first()) is None else self.turn(first[0].key, first[0].order)

    def _first(self) -> tuple[PendingWorkload, Line] | None:
        """Return the workload that ``next`` would return, with its line; else None.

        The line is the waiting workloads of the same class and namespace.
        """
        asker = self._turns.first()
        return None if asker is None else self._head_of(asker)

    def _rank(self, asker: Asker) -> Rank | None:
        """Return the rank of an asker's first workload that may find a place, or None.

        An asker is the pods, or the gangs, of one namespace.
        """
        return None if (head := self._head_of(asker)) is None else head[1].queued

    def lowered(self, tenant: str | None = None) -> None:
        """Note that a tenant's share may be smaller, so that its workloads may come earlier.

        The share is the GPU time of the tenant, divided by its weight.

        Args:
            tenant: The tenant; None for all tenants.
        """
        self._turns.lowered(tenant)

    def _head_of(self, asker: Asker) -> tuple[PendingWorkload, Line] | None:
        """Return an asker's first workload that may find a place, with its line; else None.

        Entries of the asker's heap can be out of date, because workloads come and leave. This method corrects only the
        top entry.
        """
        heads = self._heads.get(asker)
        while heads:
            rank, number, line = heads[0]
            if line.queued != rank:
                # An older workload came: the line has another entry.
                heapq.heappop(heads)
            elif (head := self._head(line)) is None:
                # All its workloads have left.
                heapq.heappop(heads)
                line.queued = None
                self._forget(line)
            elif (now := line.rank(head.order)) != rank:
                # The workload that the entry was made for has left, or the line went behind others.
                line.queued = now
                heapq.heapreplace(heads, (now, number, line))
            else:
                return head, line
        self._heads.pop(asker, None)
        return None

    def _queue(self, line: Line) -> None:
        """Put a line into its asker's heap, at the rank of its first workload.

        If the line is empty, it is dropped instead.
        """
        head = self._head(line)
        if head is None:
            self._forget(line)
        elif line.queued is None or line.rank(head.order) < line.queued:
            line.queued = line.rank(head.order)
            self._heap_entries += 1
            heads = self._heads.setdefault(line.asker, [])
            heapq.heappush(heads, (line.queued, self._heap_entries, line))
            self._turns.put(line.asker)

    def _queue_all(self, group: Group) -> None:
        for line in list(group.lines.values()):
            self._queue(line)

    def _forget(self, line: Line) -> None:
        if self._lines.get((line.kinds, line.asker)) is line:
            del self._lines[line.kinds, line.asker]
            self._leave_group(line)

    def _left_by_one(self, line: Line) -> None:
        line.size -= 1
        if len(line.heap) > 2 * line.size + _SPARE:
            line.heap = sorted({item for item in line.heap if self._member(item, line)})

    def _head(self, line: Line) -> PendingWorkload | None:
        while line.heap:
            item = line.heap[0]
            if self._member(item, line):
                return self._workloads[item[1]][0]
            heapq.heappop(line.heap)
        return None

    def _member(self, item: tuple[Order, Key], line: Line) -> bool:
        """Return whether an entry of a line's heap is still a workload of the line.

        False if the workload has left the line, or has another order now.
        """
        entry = self._workloads.get(item[1])
        return entry is not None and entry[1] is line and entry[0].order == item[0]
