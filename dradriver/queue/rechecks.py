"""Tries blocked groups of workloads again, in rounds.

A *group* is the waiting workloads of one equivalence class that may use the same GPUs. It is *blocked* if its workloads
found no place. To *recheck* a group is to find out whether a node that became free may take a pod of it. If so, the
group is put into the queue, where a search for a place is tried again. The cost of a try is counted in evaluations of
nodes.

The controller serves workloads between two rounds. ``Queue`` calls this module. A row is the index of a node in the
node table, whose clock counts changes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.kube.backoff import EARLY_S
from dradriver.queue.equivalence_classes import NEVER, Closed, Group
from dradriver.queue.full_nodes import FullNodes
from dradriver.queue.placement_request import Kinds

LONG_S: Final = 0.01  # of asking, after which others get a rest of it
REST: Final = 4.0  # times as long as a round took
OLDEST: Final = 32  # kinds of a namespace that are asked in each round
OTHERS: Final = 32  # more of them, in turn
MOST_WORK: Final = 8_000_000  # evaluations of nodes that these may cost, as far as is known from their last looks
COSTLY: Final = MOST_WORK // 16  # a look that costs more, as at a gang of more than 12 pods, leaves others theirs
_LOOK: Final = 8  # kinds that are asked between two looks at the clock
_ANEW: Final = 10  # kinds at a time that are asked without an event
_ANEW_S: Final = 10.0  # between two times of one kind


class _Share(NamedTuple):
    """The key of groups that share a budget in each round: ``MOST_WORK`` evaluations of nodes.

    The costs of the groups' last tries count against the budget.

    Attributes:
        namespace: The namespace of a group's oldest workload.
        is_gang: Whether the workloads are gangs.
        is_costly: Whether a try of one of these groups costs so much that only a few can be tried in a round. Costly
            groups have a budget of their own, so that other groups do not wait for them.
    """

    namespace: str
    is_gang: bool
    is_costly: bool


class Rechecks:
    """All groups of waiting workloads, and the choice of the blocked groups to try again.

    A blocked group is put into the queue if a node became free since the group's last try, and may take a pod of it. In
    addition, each blocked group is put into the queue from time to time.
    """

    def __init__(
        self,
        nodes: NodeTable,
        free: Callable[[], Ints],
        open_rows: Callable[[Closed], Bools | None],
        queue: Callable[[Group], None],
    ) -> None:
        """Make an object without groups.

        Args:
            nodes: The table of nodes, which records when GPUs or resources became free.
            free: Returns the number of free GPUs of each row of the node table.
            open_rows: Takes the products that a cap denies. Returns a bool for each row of the node table: whether the
                node has GPUs of other products. None for all nodes.
            queue: Called with a group that may find a place, to put its lines into the queue.
        """
        self._nodes, self._free, self._open_rows, self._queue = nodes, free, open_rows, queue
        self._groups: dict[tuple[Kinds, str, Closed], Group] = {}  # groups by kind, tenant and denied GPUs
        self._full = FullNodes(nodes)
        self._looked_at = NEVER  # the nodes' clock at the last ``_plan``
        self._since = NEVER  # the nodes' clock up to which all groups were rechecked
        self._left: dict[_Share, deque[Group]] = {}  # the groups to recheck in later rounds, by share of a round
        self._round: list[Group] = []  # the groups to recheck before the next workload is served
        # Most blocked groups failed at the same time, so what became free since then is computed once for all of them:
        # by the clock of the failure and the number of GPUs, the rows of ``_freed``. Valid at ``_candidates_at``.
        self._candidates: dict[tuple[int, int], NDArray[np.intp] | None] = {}
        self._candidates_at = NEVER
        self._by_last_check: OrderedDict[Group, None] = OrderedDict()  # all groups, the longest unchecked first

    def group(self, kinds: Kinds, tenant: str, closed: Closed, *, is_gang: bool) -> Group:
        """Return the group for workloads of an equivalence class; make it if there is none.

        Args:
            kinds: The equivalence class of the workloads.
            tenant: Their tenant, if a cap denies them GPUs. Otherwise the tenant whose partition limits them; empty if
                there is none.
            closed: The GPU products that the cap denies them.
            is_gang: Whether they are gangs.
        """
        key = kinds, tenant, closed
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(kinds, tenant, closed, is_gang=is_gang)
            self._by_last_check[group] = None
            self._full.add(group)
        return group

    def forget(self, group: Group) -> None:
        """Forget a group of equivalent workloads that has no workloads any more."""
        del self._groups[group.key]
        del self._by_last_check[group]
        self._full.drop(group)

    def blocked(self) -> list[Group]:
        """Return the groups whose workloads found no place and are not queued again."""
        return [group for group in self._groups.values() if group.failed_at != NEVER and not group.queued]

    @property
    def outdated(self) -> bool:
        """Return whether there are blocked groups to recheck.

        True if a round is not complete, or if GPUs or other resources became free since the last round was planned.
        """
        return bool(self._round or self._left) or self._looked_at != self._nodes.clock

    def look(self, most: int) -> bool:
        """Recheck at most ``most`` blocked groups. Return whether the round has more to recheck.

        A round has a limited number of groups of each namespace. The costs of their last tries, added up, stay within
        ``MOST_WORK`` evaluations of nodes. So a namespace with thousands of groups does not delay others, and its
        costly groups do not delay its other groups.

        Call ``Queue.next`` only after this returned False. Then the oldest workload that may find a place is served
        first. If something becomes free during a round, it counts from the next round on.
        """
        if not self._round:
            if not self.outdated:
                return False
            if self._looked_at != self._nodes.clock:
                self._plan()
            for share, groups in list(self._left.items()):
                self._round += [groups.popleft() for _ in range(_affordable(groups, OLDEST + OTHERS))]
                if not groups:
                    del self._left[share]
        batch, self._round = self._round[:most], self._round[most:]
        for group in batch:
            if not group.queued and self._worth(group):
                self._queue(group)
        return bool(self._round)

    def _plan(self) -> None:
        """Choose the blocked groups to recheck in the next rounds, for each budget (``_Share``).

        If there are many groups, the oldest groups alternate with the groups that were not checked for the longest
        time. If only the oldest were chosen, all other groups would never be rechecked while something becomes free all
        the time.
        """
        if not self._left:
            self._since = self._looked_at
        self._looked_at = self._nodes.clock
        free = self._free()[: self._nodes.rows]
        freed = free[self._nodes.freed[: len(free)] > self._since]
        # CPU that becomes free on a node without free GPUs helps no group.
        most_gpus = int(freed.max(initial=0))
        shares: dict[_Share, list[Group]] = {}
        for group in self._groups.values():
            if group.failed_at != NEVER and not group.queued and group.gpus <= most_gpus:
                share = _Share(group.oldest[1][0], group.is_gang, group.work > COSTLY)
                shares.setdefault(share, []).append(group)

        self._left = {}
        for share, groups in shares.items():
            if len(groups) > OLDEST + OTHERS or sum(group.work for group in groups) > MOST_WORK:
                groups.sort(key=lambda group: group.oldest)
                longest_unchecked = sorted(groups, key=lambda group: group.failed_at)
                by_turns = itertools.chain.from_iterable(zip(groups[:OLDEST], longest_unchecked, strict=False))
                self._left[share] = deque(dict.fromkeys((*by_turns, *longest_unchecked)))
            else:
                self._left[share] = deque(groups)

    def look_anew(self, version: int, now: float) -> bool:
        """Queue a few blocked groups for a try on all nodes. Return whether there are any.

        The groups that were not checked for the longest time are chosen.

        Args:
            version: The version of the cluster cache. A group is not tried twice with the same version.
            now: The time by any clock, seconds.
        """
        any_due = False
        for group in list(itertools.islice(self._by_last_check, _affordable(self._by_last_check, _ANEW))):
            if group not in self._by_last_check:
                continue  # the last of it had left, and that was found out when one before was queued
            self._by_last_check.move_to_end(group)
            if group.seen == version or now < group.checked_at + _ANEW_S:
                continue
            group.seen, group.checked_at = version, now
            if group.failed_at != NEVER:
                group.failed_at = NEVER
                self._queue(group)
                any_due = True
        return any_due

    def refused(self, group: Group, asked: Bools | None) -> None:
        """Record that a group found no place on the nodes that were tried.

        Args:
            group: The group.
            asked: A bool for each row of the node table: whether the node was tried. None if all nodes were tried: then
                nothing is recorded.
        """
        # A group that is asked about all nodes is asked for the first time, or about no change in particular.
        if asked is not None:
            self._full.refuse(group, asked)

    def freed(self, group: Group) -> Bools | None:
        """Return the nodes on which a blocked group must be tried again.

        The result has a bool for each row of the node table. These are the nodes on which something became free since
        the group found no place. A node is left out if it has since then refused a group that requests the same GPUs,
        and nothing became free there afterwards. None if the group would certainly find no place again.
        """
        if self._full.knows(group) and not self._may_take(group):
            return None
        became_free = np.flatnonzero(self._nodes.freed > group.failed_at)
        freed = np.zeros(len(self._nodes.freed), np.bool_)
        freed[self._full.others(group, became_free)] = True
        return freed

    def _worth(self, group: Group) -> bool:
        """Return whether a blocked group should be tried again.

        It should if a node that became free may take a pod of the group. If not, the group counts as rechecked.
        """
        if self._may_take(group):
            return True
        group.failed_at = self._nodes.clock
        return False

    def _may_take(self, group: Group) -> bool:
        """Return whether a node that became free may take a pod of a blocked group.

        The node's free GPUs, CPU and memory and the pod's node requirements are compared. True does not mean that a
        search will find a place.
        """
        rows = self._freed(group.failed_at, group.gpus)
        if rows is None:
            return False
        rows = self._full.others(group, rows)
        if (open_rows := self._open_rows(group.closed)) is not None:
            rows = rows[open_rows[rows]]
        return len(rows) > 0 and any(self._nodes.eligible(ask)[rows].any() for ask in group.asks)

    def _freed(self, since: int, gpus: int) -> NDArray[np.intp] | None:
        """Return the rows of nodes that became free after ``since`` and have ``gpus`` free GPUs.

        ``since`` is a time of the node table's clock. None if there are no such nodes.
        """
        if self._candidates_at != self._nodes.clock:
            self._candidates_at = self._nodes.clock
            self._candidates.clear()
        if (since, gpus) not in self._candidates:
            free = self._free()[: self._nodes.rows]  # neither has a row more than it needs, nor the same ones
            rows = np.flatnonzero((self._nodes.freed[: len(free)] > since) & (free >= gpus))
            self._candidates[since, gpus] = rows if len(rows) else None
        return self._candidates[since, gpus]


def _affordable(groups: Iterable[Group], most: int) -> int:
    """Return how many of the first groups can be tried in one round.

    The costs of their last tries, added up, must not exceed ``MOST_WORK`` evaluations of nodes. But the first two
    groups are always included. ``most`` is the largest result.
    """
    work = number = 0
    for group in itertools.islice(groups, most):
        work += group.work
        if number > 1 and work > MOST_WORK:
            break
        number += 1
    return number


class Asking:
    """Rechecks blocked groups while the worker has nothing else to do.

    Rechecking thousands of groups takes long, and something becomes free all the time. So after a long round this
    object pauses for a multiple of the time that the round took.
    """

    def __init__(self, rechecks: Rechecks, wake: Callable[[], None]) -> None:
        """Make an object for the groups of ``rechecks``; ``wake`` is called when a pause ends."""
        self._rechecks = rechecks
        self._wake = wake
        # When the rest after a long round ends, by the loop's clock, and what the current round has cost so far.
        self._not_before = self._spent_s = 0.0
        self._answered = False  # a round is over, and not all that it found a place for are served

    def some(self) -> bool:
        """Recheck some blocked groups. Return whether any could be rechecked now.

        The result is False in three cases: during a pause, if nothing became free, and after a complete round until
        ``again`` is called.
        """
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
        """Note that the queue is served, so that the next round of rechecks may begin.

        Return whether a round has ended since the last call.
        """
        answered, self._answered = self._answered, False
        return answered
