"""Which blocked kinds are asked whether they may find a place by now, and when: in rounds, all served between two."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.kube.backoff import EARLY_S
from dradriver.queue.equivalence_classes import NEVER, Closed, Group
from dradriver.queue.placement_request import Kind

LONG_S: Final = 0.01  # of asking, after which others get a rest of it
REST: Final = 4.0  # times as long as a round took
OLDEST: Final = 32  # kinds of a namespace that are asked in each round
OTHERS: Final = 32  # more of them, in turn
_LOOK: Final = 8  # kinds that are asked between two looks at the clock
_ANEW: Final = 10  # kinds at a time that are asked without an event
_ANEW_S: Final = 10.0  # between two times of one kind


class Rechecks:
    """All kinds that wait, and which of those that found no place to ask again.

    Of what became available since only that counts which is of use to the kind; and each is asked anew now and then.
    """

    def __init__(
        self,
        nodes: NodeTable,
        free: Callable[[], Ints],
        open_rows: Callable[[Closed], Bools | None],
        queue: Callable[[Group], None],
    ) -> None:
        """Begin with no kinds.

        Args:
            nodes: The nodes, which say when something became free.
            free: Gives the number of free GPUs of each node, by row.
            open_rows: Gives the rows of the nodes with others than some GPUs; None for all.
            queue: Lets a kind stand in the queue: it may find a place.
        """
        self._nodes, self._free, self._open_rows, self._queue = nodes, free, open_rows, queue
        self._groups: dict[tuple[Kind, str, Closed], Group] = {}
        self._looked_at = NEVER  # the nodes' clock when it was last found out which blocked kinds to ask
        self._since = NEVER  # the clock up to which all of them were asked
        self._left: dict[str, Iterator[Group]] = {}  # those to ask yet, by namespace
        self._round: list[Group] = []  # those to ask before anybody is served
        # Most blocked kinds were last asked at the same time: what has happened since is worked out once for all.
        self._candidates: dict[tuple[int, int], NDArray[np.intp] | None] = {}
        self._candidates_at = NEVER
        self._anew: OrderedDict[Group, None] = OrderedDict()  # whose turn to be asked without an event it is

    def group(self, kind: Kind, tenant: str, closed: Closed) -> Group:
        """Return the group of blocked workloads of an equivalence class; a new one if there is none.

        Args:
            kind: What its workloads ask for.
            tenant: Whose they are where a cap keeps them from GPUs; else whose partition binds them, or none's.
            closed: The GPUs that a cap keeps them from.
        """
        key = kind, tenant, closed
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(kind, tenant, closed)
            self._anew[group] = None
        return group

    def forget(self, group: Group) -> None:
        """Forget a group of blocked workloads that is empty."""
        del self._groups[group.key]
        del self._anew[group]

    def blocked(self) -> list[Group]:
        """Return the groups of workloads that found no place and are not rechecked yet."""
        return [group for group in self._groups.values() if group.failed_at != NEVER and not group.queued]

    @property
    def outdated(self) -> bool:
        """Whether something became free since blocked kinds were last asked, or not all have been asked yet."""
        return bool(self._round or self._left) or self._looked_at != self._nodes.clock

    def look(self, most: int) -> bool:
        """Recheck up to so many groups for a place. Returns whether a round goes on.

        A round has so many kinds of each namespace: whoever has thousands of them holds up those of others no longer.
        Only between two rounds call ``Queue.next``: so the oldest of those that may is the first. Whatever becomes free
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
                self._queue(group)
        return bool(self._round)

    def _plan(self) -> None:
        """Find out which blocked kinds to ask: of each namespace the oldest first, then who was not for longest.

        Were it the oldest alone, those behind them would never be asked where something becomes free all the time.
        """
        if not self._left:
            self._since = self._looked_at
        self._looked_at = self._nodes.clock
        free = self._free()[: self._nodes.rows]
        freed = free[self._nodes.freed[: len(free)] > self._since]
        most_gpus = int(freed.max(initial=0))  # CPU that is freed beside GPUs that are all taken helps nobody
        by_namespace: dict[str, list[Group]] = {}
        for group in self._groups.values():
            if group.failed_at != NEVER and not group.queued and group.gpus <= most_gpus:
                by_namespace.setdefault(group.oldest[1][0], []).append(group)
        self._left = {}
        for namespace, classes in by_namespace.items():
            if len(classes) > OLDEST + OTHERS:
                classes.sort(key=lambda group: group.oldest)
                classes[OLDEST:] = sorted(classes[OLDEST:], key=lambda group: group.failed_at)
            self._left[namespace] = iter(classes)

    def look_anew(self, version: int, now: float) -> bool:
        """Have a few groups rechecked about all nodes, the longest ago first. Returns whether there are any.

        Args:
            version: Of the picture; a kind is not asked twice about the same.
            now: A clock, seconds.
        """
        any_due = False
        for group in list(itertools.islice(self._anew, _ANEW)):
            if group not in self._anew:
                continue  # the last of it had left, and that was found out when one before was queued
            self._anew.move_to_end(group)
            if group.seen == version or now < group.checked_at + _ANEW_S:
                continue
            group.seen, group.checked_at = version, now
            if group.failed_at != NEVER:
                group.failed_at = NEVER
                self._queue(group)
                any_due = True
        return any_due

    def _worth(self, group: Group) -> bool:
        """Whether a node that became available since may take one of the kind; if not, the kind need not ask again."""
        freed = self._freed(group.failed_at, group.gpus)
        if freed is not None:
            fit, rows = self._nodes.eligible(group.kind[1]), self._open_rows(group.closed)
            if (fit if rows is None else fit & rows)[freed].any():
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


class Asking:
    """Asks blocked kinds while nobody else wants the time.

    Thousands of kinds take long to ask, and something becomes free all the time: most of the time is for others.
    """

    def __init__(self, rechecks: Rechecks, wake: Callable[[], None]) -> None:
        """``wake`` is called when a rest is over."""
        self._rechecks = rechecks
        self._wake = wake
        self._not_before = self._spent_s = 0.0
        self._answered = False  # a round is over, and not all that it found a place for are served

    def some(self) -> bool:
        """Recheck some blocked groups. Returns whether it did."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._answered or began < self._not_before or not self._rechecks.outdated:
            return False
        self._answered = not self._rechecks.look(_LOOK)
        self._spent_s += loop.time() - began
        if self._answered:
            if self._spent_s > LONG_S:
                self._not_before = loop.time() + self._spent_s * REST
                loop.call_at(self._not_before + EARLY_S, self._wake)
            self._spent_s = 0.0
        return True

    def again(self) -> bool:
        """Note that all who could be served have been. Returns whether blocked groups may be rechecked."""
        answered, self._answered = self._answered, False
        return answered
