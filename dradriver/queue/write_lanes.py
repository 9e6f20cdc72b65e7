"""Decides which workloads' objects may be written now, and keeps the workloads that must wait.

A *slot* is the right to write the objects of one workload; the number of slots is limited. A *lane* is the writes of
one namespace. If writes in one namespace are slow, only this lane waits. An *obstacle* is what a workload's writes wait
for (``WaitReason``), with the namespace or scheduler that it concerns. The controller's loop asks for a slot before
each workload's writes.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
from collections.abc import Callable, Iterable
from typing import Final

from dradriver.api.claims.pins import Key
from dradriver.errors import DriverError
from dradriver.kube.backoff import EARLY_S, wait_s
from dradriver.kube.errors import asked_s
from dradriver.queue.equivalence_classes import Order
from dradriver.queue.scheduler_pace import Line, Pace, Waits
from dradriver.queue.tenant_turns import Turn, turn_of
from dradriver.reason import Cause, Reason

MOST: Final = 16
SLOW_S: Final = 1.0  # a write that takes longer gives its slot to another, and goes on beside it
MOST_SLOW: Final = 8  # of one namespace; its next writes wait for them
MOST_SLOW_IN_ALL: Final = 128  # beyond, a namespace that has any waits for them
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
LONGEST_QUOTA_S: Final = 1.0  # of a namespace's pause; it is asked for one claim after the other meanwhile
QUOTA_REMEMBERED_S: Final = 10.0  # after a pause
LONGEST_ASKED_S: Final = 30.0  # that a server's own wish is heeded for


class WaitReason(enum.Enum):
    """Why a workload's writes must wait. A pod that waits long shows the text."""

    SLOT = "Waiting until other pods are written, or until the pause that the API server requested is over."
    QUOTA = "Waiting to create the claim: other programs change the quota of this namespace too often."
    NAMESPACE = "Waiting for answers to earlier writes in this namespace. A webhook may delay them."
    SCHEDULER = "Waiting until the pod's scheduler has bound other pods of this namespace."
    UNKNOWN_SCHEDULER = (
        "Waiting: no scheduler with the pod's schedulerName has bound a pod with a claim yet. The controller tries "
        "workloads for unknown schedulers one at a time, with a pause after each."
    )

    @property
    def why(self) -> Reason:
        """Return the reason that people see on a pod whose writes wait for this obstacle."""
        return Reason(_CAUSES[self], self.value)


_CAUSES: Final = {
    WaitReason.SLOT: Cause.SERVER,
    WaitReason.QUOTA: Cause.CAP,
    WaitReason.NAMESPACE: Cause.SERVER,
    WaitReason.SCHEDULER: Cause.SCHEDULER,
    WaitReason.UNKNOWN_SCHEDULER: Cause.SCHEDULER,
}

Obstacle = tuple[WaitReason, str | Line]
"""What is waited for, and the name of it where there are several."""


class Slot:
    """The right to write the objects of one workload, one write after another.

    Attributes:
        since: When the current write began, seconds of the event loop's clock; None once the slot was released.
        slow: Whether a write of this workload was slow, so that its slot was given to another workload.
        revoked: Whether the objects are being deleted again, so that the workload must write no more objects.
    """

    def __init__(self, lanes: Lanes, namespace: str, on_slow: Callable[[Slot], object]) -> None:
        self.since: float | None = None
        self.slow = self.revoked = False
        self._lanes, self._namespace, self._on_slow = lanes, namespace, on_slow
        self._timer: asyncio.TimerHandle | None = None  # rings when the write becomes slow
        self.begin()

    def begin(self) -> None:
        """Record that a new write begins in the slot; measure how long it takes."""
        self._stop()
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        self._timer = loop.call_later(SLOW_S, self._overdue)

    def give_back(self) -> None:
        """Release the slot. Call it once."""
        self._stop()
        self.since = None
        self._lanes.left(self._namespace, slow=self.slow)

    def _overdue(self) -> None:
        if not self.slow:
            self.slow = True
            self._lanes.slowed(self._namespace)
        self._on_slow(self)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Flow:
    """How many workloads may be written at once, and whether all writes pause.

    After a failure the limit is one, and each success raises it by one, up to its usual value. A failure also pauses
    all writes, twice as long for each failure in a row. If a write was in progress when the pause began and then fails,
    it does not lengthen the next pause.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self.most = MOST  # workloads that may be written at once
        self.paused_until = 0.0  # the end of the last pause, by the loop's clock
        self._failures = 0  # pauses since the last success

    @property
    def limited(self) -> bool:
        """Return whether the limit is below its usual value, because of a failure."""
        return self.most < MOST

    def succeeded(self) -> None:
        self._failures = 0
        self.most = min(self.most + 1, MOST)

    def failed(self, now: float, asked_s: float = 0.0) -> None:
        self.most = 1
        pause_s = asked_s
        if now >= self.paused_until:
            pause_s = max(asked_s, wait_s(self._failures, first_s=FIRST_PAUSE_S, longest_s=self._longest_s))
            self._failures += 1
        self.paused_until = max(self.paused_until, now + pause_s)


class _Lane(_Flow):
    """The lane of one namespace: the number of its workloads that are being written.

    It also counts how many of these are written slowly. Its own limit of workloads is lowered when the namespace's
    quota was busy: other programs changed the quota while a claim was created.
    """

    def __init__(self) -> None:
        super().__init__(longest_s=LONGEST_QUOTA_S)
        self.under_way = self.slow = 0  # workloads that are written, and those with a slow write


class Lanes:
    """Slots for the writes of workloads, and the workloads that wait for a slot, oldest first.

    A failure of the API server pauses all lanes. A busy quota pauses the lane of its namespace: the API server refuses
    a creation with a conflict if other programs change the quota at the same time.

    Attributes:
        successes: The number of writes that succeeded.
    """

    def __init__(
        self,
        on_room: Callable[[], None],
        turn: Callable[[Key, Order], Turn] = lambda _, order: turn_of(order),
        tenant: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Make lanes without workloads.

        Args:
            on_room: Called whenever a slot may be free again.
            turn: Returns a workload's position among the workloads of all tenants, from its key and its order.
            tenant: Returns the tenant of a namespace, empty if there are no tenants.
        """
        self._turn = turn
        self.successes = 0
        self._on_room = on_room
        self._pace = Pace(tenant)
        self._server = _Flow(longest_s=LONGEST_PAUSE_S)  # limits the writes of all namespaces together
        self._fast = self._slow = 0  # workloads that are written: without, and with a slow write
        self._lanes: dict[str, _Lane] = {}  # by namespace: its lane
        self._lots: dict[Obstacle, list[tuple[Order, Key]]] = {}  # heaps; who waits no more is dropped at the top
        self._waiting: dict[Key, tuple[Obstacle, Order]] = {}  # by waiting workload: what it waits for
        self._size: dict[Obstacle, int] = {}  # by obstacle: number of workloads that wait for it

    # Who may write.

    @property
    def idle(self) -> bool:
        """Return whether no writes are in progress, except slow ones."""
        return not self._fast

    def paused(self) -> bool:
        """Return whether writes are paused, because the API server failed or asked for a pause."""
        return asyncio.get_running_loop().time() < self._server.paused_until

    @property
    def troubled(self) -> bool:
        """Return whether the API server failed recently, so that fewer writes may run at once."""
        return self._server.limited

    def room(self) -> bool:
        """Return whether a slot is free and writes are not paused, for any namespace.

        A single namespace can still have an obstacle.
        """
        return self._fast < self._server.most and not self.paused()

    def writable(self, key: Key, order: Order) -> bool:
        """Return whether writes for a workload may begin now, if they create no claim.

        If not, the workload is remembered, and ``next`` returns its key later.
        """
        return self.obstacle(key, order, creates=False) is None

    def obstacle(
        self, key: Key, order: Order, *, creates: bool = True, schedulers: Iterable[Waits] = ()
    ) -> WaitReason | None:
        """Return why a workload's writes must wait; None if they may begin now.

        If they must wait, the workload is remembered, and ``next`` returns it once its writes may begin.

        Args:
            key: The workload.
            order: The workload's position among the waiting workloads of its tenant: priority, time, key.
            creates: Whether a claim will be created, which counts for a quota.
            schedulers: The schedulers that its pods would wait for after the writes; empty if they would wait for none.
        """
        obstacle: Obstacle
        if (reason := self._held_up(key[0], creates=creates)) is not None:
            obstacle = reason, key[0]
        elif not self.room():
            obstacle = WaitReason.SLOT, ""
        elif schedulers and (line := self._full_line(key[0], schedulers)) is not None:
            obstacle = WaitReason.UNKNOWN_SCHEDULER if line.is_unknown else WaitReason.SCHEDULER, line
        else:
            self.forget(key)
            return None
        self._wait(key, order, obstacle)
        return obstacle[0]

    def next(self, head: Callable[[], Turn | None]) -> Key | None:
        """Remove and return the first waiting workload whose writes may begin now; else None.

        Args:
            head: Returns the position of the first workload in the queue; None if the queue is empty. A workload that
                waited for a quota, a namespace or a scheduler is returned only if its own position is before this one.
        """
        if not self._lots or not self.room():
            return None
        queue_head = head()
        first_ones = [self._lot(cause)[0] for cause in list(self._lots) if self._over(cause, queue_head)]
        if not first_ones:
            return None
        _, key = min(first_ones, key=lambda item: (self._turn(item[1], item[0]), item))
        self.forget(key)
        return key

    def forget(self, key: Key) -> None:
        """Remove a workload from the workloads whose writes wait.

        Nothing happens if it does not wait.
        """
        entry = self._waiting.pop(key, None)
        if entry is None:
            return
        cause = entry[0]
        self._size[cause] -= 1
        lot = self._lots[cause]
        if not self._size[cause]:
            del self._lots[cause], self._size[cause]
        # The entry stays in the heap until it comes to the top. If most entries are such, the heap is made again.
        elif len(lot) > 2 * self._size[cause] + 16:
            self._lots[cause] = sorted({item for item in lot if self._here(item, cause)})

    def _held_up(self, namespace: str, *, creates: bool) -> WaitReason | None:
        """Return what keeps writes in a namespace from beginning now; None if they may begin.

        Args:
            namespace: The namespace.
            creates: Whether a claim will be created. Only then a busy quota, which other programs are changing, is a
                reason to wait.
        """
        lane = self._lanes.get(namespace)
        if lane is None:
            return None
        # Once some are slow, the next ones are likely to be: few are tried at a time.
        if lane.slow and (lane.under_way >= MOST_SLOW or self._slow >= MOST_SLOW_IN_ALL):
            return WaitReason.NAMESPACE
        full = lane.limited and lane.under_way - lane.slow >= lane.most
        if creates and (full or asyncio.get_running_loop().time() < lane.paused_until):
            return WaitReason.QUOTA
        return None

    def _full_line(self, namespace: str, schedulers: Iterable[Waits]) -> Line | None:
        """Return the line of the first of these schedulers for which enough pods already wait.

        A line is the pods that wait for one scheduler and are counted together. None if one more pod of the namespace
        may wait for each of the schedulers.
        """
        now = asyncio.get_running_loop().time()
        lines = (self._pace.line(namespace, scheduler) for scheduler in schedulers)
        return next((line for line in lines if not self._pace.room(line, now)), None)

    def _wait(self, key: Key, order: Order, cause: Obstacle) -> None:
        if self._waiting.get(key) == (cause, order):
            return
        self.forget(key)
        self._waiting[key] = cause, order
        self._size[cause] = self._size.get(cause, 0) + 1
        heapq.heappush(self._lots.setdefault(cause, []), (order, key))

    def _over(self, cause: Obstacle, queue_head: Turn | None) -> bool:
        """Return whether the first workload that waits for an obstacle may write now.

        It may if the obstacle is gone, and no workload in the queue comes before it. A workload that waited only for a
        free slot may write even if a workload in the queue comes before it.

        Args:
            cause: The obstacle.
            queue_head: The position of the first workload of the queue; None if the queue is empty.
        """
        match cause:
            case (WaitReason.NAMESPACE | WaitReason.QUOTA) as reason, str() as namespace:
                is_over = self._held_up(namespace, creates=reason is WaitReason.QUOTA) is None
            case _, Line() as line:
                is_over = self._pace.room(line, asyncio.get_running_loop().time())
            case _:
                # There is room for a write: the caller has checked that. These workloads let no other go ahead.
                return True
        if not is_over or queue_head is None:
            return is_over
        order, key = self._lot(cause)[0]
        return self._turn(key, order) < queue_head

    def _lot(self, cause: Obstacle) -> list[tuple[Order, Key]]:
        """Return the workloads that wait for an obstacle, as a heap.

        Its first entry is up to date. Other entries can belong to workloads that no longer wait for this obstacle.
        """
        lot = self._lots[cause]
        while not self._here(lot[0], cause):
            heapq.heappop(lot)
        return lot

    def _here(self, item: tuple[Order, Key], cause: Obstacle) -> bool:
        """Return whether the workload of a heap entry still waits for this obstacle.

        False also if the workload has another position now.
        """
        return self._waiting.get(item[1]) == (cause, item[0])

    # What is written.

    def take(self, namespace: str, on_slow: Callable[[Slot], object]) -> Slot:
        """Return a slot: the right to write one workload's objects.

        Call it only if ``obstacle`` returned None.

        Args:
            namespace: The workload's namespace.
            on_slow: Called for each write that takes so long that another workload gets the slot.
        """
        self._fast += 1
        self._lanes.setdefault(namespace, _Lane()).under_way += 1
        return Slot(self, namespace, on_slow)

    def slowed(self, namespace: str) -> None:
        """Record that a write in a namespace takes long; another workload may have its slot."""
        self._fast -= 1
        self._slow += 1
        self._lanes[namespace].slow += 1
        self._on_room()

    def left(self, namespace: str, *, slow: bool) -> None:
        """Record that a workload released its slot.

        Args:
            namespace: The workload's namespace.
            slow: Whether the slot had already been given to another workload, because a write was slow.
        """
        lane = self._lanes[namespace]
        lane.under_way -= 1
        if slow:
            lane.slow -= 1
            self._slow -= 1
        else:
            self._fast -= 1
        self._tidy(namespace)
        self._on_room()

    def lifted(self, key: Key, waits: Waits) -> None:
        """Record that a pod's gate was removed, so that the pod waits for its scheduler now."""
        self._pace.lifted(key, waits)

    def answered(self, key: Key, *, bound: bool) -> None:
        """Record that a pod does not wait for its scheduler any more.

        Args:
            key: The pod.
            bound: Whether the reason is that the scheduler bound the pod.
        """
        self._pace.answered(key, asyncio.get_running_loop().time(), bound=bound)

    def allocates(self, scheduler: str) -> None:
        """Record a scheduler as known, because it allocated a claim."""
        self._pace.allocates(scheduler)

    def silent(self, keys: Iterable[Key]) -> None:
        """Record that pods of one workload were not bound in time.

        Pods in ``keys`` that wait for no scheduler are ignored.
        """
        loop = asyncio.get_running_loop()
        if (until := self._pace.silent(keys, loop.time())) > loop.time():
            loop.call_at(until + EARLY_S, self._on_room)

    def succeeded(self, *, created_in: str = "") -> None:
        """Record that a write succeeded.

        Args:
            created_in: If the write created a claim, its namespace; else empty.
        """
        self.successes += 1
        self._server.succeeded()
        if created_in:
            self._lanes[created_in].succeeded()

    def failed(self, error: DriverError) -> None:
        """Record that a write failed because of the API server (``error``). All writes pause."""
        loop = asyncio.get_running_loop()
        self._server.failed(loop.time(), asked_s(error, LONGEST_ASKED_S))
        loop.call_at(self._server.paused_until + EARLY_S, self._on_room)

    def crowded(self, namespace: str) -> None:
        """Record that a claim could not be created because its namespace's quota was busy.

        Call it before the slot is released.
        """
        loop = asyncio.get_running_loop()
        lane = self._lanes[namespace]
        lane.failed(loop.time())
        loop.call_at(lane.paused_until + EARLY_S, self._on_room)
        loop.call_at(lane.paused_until + QUOTA_REMEMBERED_S + EARLY_S, self._tidy, namespace)

    def _tidy(self, namespace: str) -> None:
        """Forget the record of a namespace without writes and without a busy quota.

        A quota is busy if other programs changed it while a claim was created.
        """
        lane, now = self._lanes.get(namespace), asyncio.get_running_loop().time()
        if lane is None or lane.under_way or (lane.limited and now < lane.paused_until + QUOTA_REMEMBERED_S):
            return
        del self._lanes[namespace]
