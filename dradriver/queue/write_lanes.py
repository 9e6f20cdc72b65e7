"""Who may write now: so many at once, a lane for each namespace that delays no other, and a line of those that wait."""

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
    """What a workload waits for that could go on; its pod is told so where that is no matter of moments."""

    SLOT = "waits until other pods are written, or until the API server has had the pause that it asked for"
    QUOTA = "a quota of this namespace is too busy for another claim"
    NAMESPACE = "earlier writes in this namespace are not answered; a webhook may hold them up"
    SCHEDULER = "waits until its scheduler has bound other pods of this namespace"
    UNKNOWN_SCHEDULER = (
        "no scheduler of the name that the pod says has bound a pod with a claim yet: workloads for unknown schedulers "
        "are tried one at a time, with a pause after each"
    )

    @property
    def why(self) -> Reason:
        """Return why a pod waits for its write lane."""
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
    """One workload's right to write, one write after another.

    Attributes:
        since: When the write that is under way began, by the loop's clock; None once the slot was given back.
        slow: Whether one of the writes was, so that the slot is another's.
        revoked: Whether what was written meanwhile is being taken back: nothing more is to be written.
    """

    def __init__(self, lanes: Lanes, namespace: str, on_slow: Callable[[Slot], object]) -> None:
        self.since: float | None = None
        self.slow = self.revoked = False
        self._lanes, self._namespace, self._on_slow = lanes, namespace, on_slow
        self._timer: asyncio.TimerHandle | None = None  # rings when the write becomes slow
        self.begin()

    def begin(self) -> None:
        """Note that a write begins in the slot; it is slow when it takes long, however long earlier ones took."""
        self._stop()
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        self._timer = loop.call_later(SLOW_S, self._overdue)

    def give_back(self) -> None:
        """Release the slot for writes; call it once."""
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
    """How many workloads may be written at once: trouble makes it one, and each success lets one more in.

    Trouble also pauses all, twice as long with each in a row; what was under way when the pause began says nothing new.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self.most = MOST  # workloads that may be written at once
        self.paused_until = 0.0  # the end of the last pause, by the loop's clock
        self._failures = 0  # pauses since the last success

    @property
    def limited(self) -> bool:
        """Return whether writes of a lane are limited: there was trouble, and too few writes went well since."""
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
    """A namespace: how many of its workloads are written, and of how many a write is slow."""

    def __init__(self) -> None:
        super().__init__(longest_s=LONGEST_QUOTA_S)
        self.under_way = self.slow = 0  # workloads that are written, and those with a slow write


class Lanes:
    """Slots for the writes of workloads, and the workloads that wait for one, oldest first.

    Trouble with the server is all lanes', trouble with a namespace's quota is its own.

    Attributes:
        successes: Writes that were answered well.
    """

    def __init__(
        self,
        on_room: Callable[[], None],
        turn: Callable[[Key, Order], Turn] = lambda _, order: turn_of(order),
        tenant: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Make lanes where nobody waits.

        Args:
            on_room: Called whenever there may be room again.
            turn: Gives a workload's turn among all, by its order among its tenant's.
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
        """Return whether no write is under way except slow ones."""
        return not self._fast

    def paused(self) -> bool:
        """Return whether writes are paused: the server is in trouble, or has asked for it."""
        return asyncio.get_running_loop().time() < self._server.paused_until

    @property
    def troubled(self) -> bool:
        """Return whether the server was in trouble lately, so that fewer writes may run at once."""
        return self._server.limited

    def room(self) -> bool:
        """Return whether another write may begin now, in a namespace that holds none up."""
        return self._fast < self._server.most and not self.paused()

    def writable(self, key: Key, order: Order) -> bool:
        """Return whether a lane is open for writes to a workload's objects, other than new claims."""
        return self.obstacle(key, order, creates=False) is None

    def obstacle(
        self, key: Key, order: Order, *, creates: bool = True, schedulers: Iterable[Waits] = ()
    ) -> WaitReason | None:
        """Return what prevents a workload's writes now; ``next`` returns the workload when they may begin.

        Args:
            key: The workload.
            order: Its position among the workloads of its tenant that wait.
            creates: Whether a claim is to be created, which counts for a quota.
            schedulers: The schedulers that its pods would wait for next; none for writes that make no pod wait for one.
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
        """Return the oldest workload whose writes need not wait any longer; None if there is none.

        Args:
            head: Returns the position of the first workload in the queue. A workload that waited for a quota, a
                namespace or a scheduler goes on only once it is before that one.
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
        """Forget that a workload's writes wait; an unknown one is no error."""
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
        """Return why the next writes in a namespace must wait, if they must; a quota counts those that create."""
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
        """Return the line of pods for the first of some schedulers without room for another; None if all have room."""
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
        """Return whether an obstacle is gone and it is the turn of the first workload that waits for it."""
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
        """Return the heap of the workloads that wait for an obstacle, with a current entry at its top."""
        lot = self._lots[cause]
        while not self._here(lot[0], cause):
            heapq.heappop(lot)
        return lot

    def _here(self, item: tuple[Order, Key], cause: Obstacle) -> bool:
        """Return whether an entry of a heap is current: its workload still waits for this obstacle, in this order."""
        return self._waiting.get(item[1]) == (cause, item[0])

    # What is written.

    def take(self, namespace: str, on_slow: Callable[[Slot], object]) -> Slot:
        """Return a slot for the writes of one workload; ask ``obstacle`` first.

        Args:
            namespace: The workload's.
            on_slow: Called once a write has taken so long that the slot is another's, for each such write.
        """
        self._fast += 1
        self._lanes.setdefault(namespace, _Lane()).under_way += 1
        return Slot(self, namespace, on_slow)

    def slowed(self, namespace: str) -> None:
        """Note that a slow write's slot was given to another."""
        self._fast -= 1
        self._slow += 1
        self._lanes[namespace].slow += 1
        self._on_room()

    def left(self, namespace: str, *, slow: bool) -> None:
        """Note that a slot for writes was released, and whether it was another's already."""
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
        """Note for the write lanes that a pod's gate was removed and the pod waits for its scheduler."""
        self._pace.lifted(key, waits)

    def answered(self, key: Key, *, bound: bool) -> None:
        """Note for the write lanes that a pod was bound, or waits for its scheduler no more."""
        self._pace.answered(key, asyncio.get_running_loop().time(), bound=bound)

    def allocates(self, scheduler: str) -> None:
        """Note for the write lanes that a scheduler allocated a claim and bound its pod."""
        self._pace.allocates(scheduler)

    def silent(self, keys: Iterable[Key]) -> None:
        """Note for the write lanes that pods of one workload were not bound in time, as far as they wait for that."""
        loop = asyncio.get_running_loop()
        if (until := self._pace.silent(keys, loop.time())) > loop.time():
            loop.call_at(until + EARLY_S, self._on_room)

    def succeeded(self, *, created_in: str = "") -> None:
        """Note that the server answered a write well; of a creation, in which namespace."""
        self.successes += 1
        self._server.succeeded()
        if created_in:
            self._lanes[created_in].succeeded()

    def failed(self, error: DriverError) -> None:
        """Note that a write failed because the server is in trouble."""
        loop = asyncio.get_running_loop()
        self._server.failed(loop.time(), asked_s(error, LONGEST_ASKED_S))
        loop.call_at(self._server.paused_until + EARLY_S, self._on_room)

    def crowded(self, namespace: str) -> None:
        """Note for the write lanes that a namespace's quota was too busy for a creation, whose slot is still taken."""
        loop = asyncio.get_running_loop()
        lane = self._lanes[namespace]
        lane.failed(loop.time())
        loop.call_at(lane.paused_until + EARLY_S, self._on_room)
        loop.call_at(lane.paused_until + QUOTA_REMEMBERED_S + EARLY_S, self._tidy, namespace)

    def _tidy(self, namespace: str) -> None:
        """Keep nothing of a namespace where no write is under way, and whose quota was not busy lately."""
        lane, now = self._lanes.get(namespace), asyncio.get_running_loop().time()
        if lane is None or lane.under_way or (lane.limited and now < lane.paused_until + QUOTA_REMEMBERED_S):
            return
        del self._lanes[namespace]
