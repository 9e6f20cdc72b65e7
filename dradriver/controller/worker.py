"""Queue, decide, commit: looks at pods that changed, gives places to those that wait, and keeps writers busy."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.errors import WordError
from dradriver.api.pins import Key, claim_key
from dradriver.controller import metrics
from dradriver.controller.collecting import Collector
from dradriver.controller.commit import MovedOnError, UnsureError, Writer
from dradriver.controller.decide import FEW_NODES, MOST_NODES, decide, keep
from dradriver.controller.entries import Entry
from dradriver.controller.limiter import Limiter, of_server
from dradriver.controller.pace import Pace
from dradriver.controller.picture import Picture
from dradriver.controller.placement import Placement
from dradriver.controller.queue import Queue, Rows
from dradriver.controller.reasons import Reasons, Record
from dradriver.controller.review import PROMISE_S, UNSCHEDULABLE_S, Keep, Place, Settle, Wait, Withdraw, refusal, review
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable

logger = logging.getLogger(__name__)

SWEEP_S: Final = 10.0
SLICE_S: Final = 0.01  # of work before others get the loop
SERVER_BACKOFF_S: Final = 1.0  # for one entry; the limiter pauses all
OBJECT_BACKOFF_S: Final = 1.0
PROMISE_BACKOFF_S: Final = 5.0
MOVED_S: Final = 0.1  # usually an event comes first
RECHECK_S: Final = 0.5
MANY: Final = 16  # waiting pods, from which on the scheduler's time counts more than a choice of nodes
REST: Final = 4.0  # times as long as blocked kinds took to be asked
_LOOK: Final = 64  # blocked kinds that are asked between two looks at the clock


class Worker:
    """Decides by itself, one entry at a time and the oldest first; writes for many at once.

    Whatever goes wrong with one entry (its words, a refusal, a webhook, a bug) costs that entry a pause and a reason,
    and nobody else anything. Only trouble with the server stops all.

    Attributes:
        picture: The cluster, for reflectors to fill.
    """

    def __init__(
        self,
        client: Client,
        *,
        promise_s: float = PROMISE_S,
        unschedulable_s: float = UNSCHEDULABLE_S,
        grace_s: float = 10.0,
        record: Record | None = None,
    ) -> None:
        """Make a worker with an empty picture of the cluster.

        Args:
            client: The API server.
            promise_s: How long a promise may last that the scheduler does not keep.
            unschedulable_s: How long once the scheduler says that it finds no room.
            grace_s: How long a claim may outlive its pod.
            record: Writes an Event about a pod that waits.
        """
        self._woken = asyncio.Event()
        self._touched: OrderedDict[Key, None] = OrderedDict()
        self.picture = Picture(self._touch, self._woken.set)
        self._queue = Queue(self.picture.nodes, self.picture.inventory.free)
        self._limiter = Limiter(self._make_room)
        self._writer = Writer(client, self.picture)
        self.reasons = Reasons(self._writer, pods=self.picture.pods.get, limiter=self._limiter, record=record)
        self._collector = Collector(client, self.picture, self._writer, grace_s=grace_s)
        self._promise_s = promise_s
        self._unschedulable_s = unschedulable_s
        self._entries: dict[Key, Entry] = {}
        self._timers: list[tuple[float, Key]] = []
        self._deferred: OrderedDict[Key, None] = OrderedDict()  # wait for a writer
        self._clogged: dict[str, OrderedDict[Key, None]] = {}  # wait for slow writes, by namespace
        self._pace = Pace()
        self._crowded: dict[str, OrderedDict[Key, None]] = {}  # wait for a scheduler, by its name
        self._ask_after = 0.0
        self._asking_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.reasons.run())
                group.create_task(self._sweep())
                group.create_task(self._recheck())
                self._touched.update(dict.fromkeys(self.picture.pods))
                while True:
                    self._woken.clear()
                    try:
                        await self.turn()
                    except Exception:  # a bug that is nobody's in particular: what can be done without it goes on
                        logger.exception("an error in this program; going on")
                        await asyncio.sleep(OBJECT_BACKOFF_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(self._timers[0][0] if self._timers else None):
                            await self._woken.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def turn(self) -> None:
        """Look at all that changed and give places while there are places and writers."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            now = loop.time()
            if now - begun > SLICE_S:
                await asyncio.sleep(0)
                begun = now = loop.time()
            while self._timers and self._timers[0][0] <= now:
                self._touch(heapq.heappop(self._timers)[1])
            if not self._touched and self._deferred and self._limiter.room():
                self._touch(self._deferred.popitem(last=False)[0])
            if self._touched:
                self._guarded(self._touched.popitem(last=False)[0])
            elif not (self._asked() or self._next()):
                break
        metrics.WAITING.set(len(self._queue))

    async def rest(self) -> None:
        """Work until nothing is left to do now, reasons included; for tests, and for those who drive it by hand."""
        while True:
            await self.turn()
            if self._tasks:
                for task in (await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                    task.result()
            elif self._queue.recheck(self.picture.version, float("inf")) or self._touched:
                continue
            elif not await self.reasons.flush(float("inf"), 1000):
                return

    @property
    def busy(self) -> bool:
        """Whether writers are at work, or pods have to be looked at."""
        return bool(self._tasks or self._touched)

    async def sweep(self) -> None:
        """Delete what has been an orphan for long, and end assumptions that the server does not share."""
        await self._collector.sweep()

    # Looking at one entry.

    def _touch(self, key: Key) -> None:
        self._touched[key] = None
        self._woken.set()

    def _make_room(self) -> None:
        for namespace in [n for n in self._clogged if not self._limiter.clogged(n)]:
            self._touched.update(self._clogged.pop(namespace))
        self._woken.set()

    def _defer(self, key: Key) -> None:
        """Look again when a writer has time for it."""
        if self._limiter.clogged(key[0]):
            self._clogged.setdefault(key[0], OrderedDict())[key] = None
        else:
            self._deferred[key] = None

    def _guarded(self, key: Key) -> None:
        try:
            self._look(key)
        except Exception:  # a bug in what one pod meets must not stop the others
            logger.exception("pod %s/%s: an error in this program; trying again later", *key)
            if (entry := self._entries.get(key)) is not None:
                self._queue.drop(key)
                self._fail(entry, "an error in the controller, see its log", first_s=OBJECT_BACKOFF_S)

    def _look(self, key: Key) -> None:
        pod, entry = self.picture.pods.get(key), self._entries.get(key)
        if pod is None or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._forget(key)
            return
        if entry is None or entry.uid != pod.metadata.uid:
            self._forget(key)
            entry = Entry(key, pod)
            if not pod.spec.node_name:
                self._entries[key] = entry
        elif entry.busy:
            return  # its writer looks again when it is done
        elif entry.update(pod):
            entry.forgive()
        now = asyncio.get_running_loop().time()
        self._count(entry)
        if now < entry.not_before:
            self._queue.drop(key)
            self._at(entry.not_before, key)
            return
        if entry.unsure:
            self._write(entry, self._ask(entry))
            return
        step = review(entry, self.picture, now, promise_s=self._promise_s, unschedulable_s=self._unschedulable_s)
        match step:
            case Place():
                self._want(entry)
                return
            case Keep():
                self._keep(entry, step)
            case Withdraw():
                self._write(entry, self._withdraw(entry, step))
            case Settle():
                if not step.texts:
                    self._forget(key)
                else:
                    self._entries[key] = entry
                    self._write(entry, self._settle(entry, step.texts))
            case Wait():
                if step.texts:
                    self._write(entry, self._settle(entry, step.texts))
                elif step.until is not None:
                    self._at(step.until, key)
                if step.reason is not None:
                    self.reasons.want(pod, step.reason)
        self._queue.drop(key)

    def _want(self, entry: Entry) -> None:
        try:
            reason = self._queue.put(entry)
        except WordError as error:
            self._queue.drop(entry.key)
            self.reasons.want(entry.pod, str(error))
            return
        if reason:
            self.reasons.want(entry.pod, reason)

    def _keep(self, entry: Entry, step: Keep) -> None:
        try:
            placement = keep(self.picture, entry.wish, step.claim.pin) if step.claim.pin is not None else None
        except WordError as error:
            self._write(entry, self._withdraw(entry, Withdraw(step.claim, step.cause, str(error))))
            return
        if placement is None:
            self._write(entry, self._withdraw(entry, Withdraw(step.claim, step.cause)))
        else:
            self._write(entry, self._lift(entry, placement))

    def _forget(self, key: Key) -> None:
        self._queue.drop(key)
        self.reasons.forget(key)
        entry = self._entries.pop(key, None)
        if entry is not None and entry.unsure and (claim := claim_key(entry.pod)) is not None:
            self.picture.release(claim)  # if it is there all the same, the reflector shows it
        self._answered(key, bound=False)

    def _count(self, entry: Entry) -> None:
        """Keep up to date who waits for a scheduler."""
        pod = entry.pod
        if pod.spec.node_name or pod.gated or self.picture.claim_of(pod) is None or refusal(pod) is not None:
            self._answered(entry.key, bound=bool(pod.spec.node_name))
        else:
            self._pace.lifted(entry.key, pod.spec.scheduler_name)

    def _answered(self, key: Key, *, bound: bool) -> None:
        scheduler = self._pace.answered(key, asyncio.get_running_loop().time(), bound=bound)
        if scheduler is not None and scheduler in self._crowded:
            crowd = self._crowded[scheduler]
            self._touch(crowd.popitem(last=False)[0])
            if not crowd:
                del self._crowded[scheduler]

    def _at(self, when: float, key: Key) -> None:
        heapq.heappush(self._timers, (when, key))

    # Giving places.

    def _asked(self) -> bool:
        """Ask some of the blocked kinds whether they may find a place by now. Returns whether there are more to ask.

        Thousands of kinds take long to ask, and something becomes free all the time: most of the time is for others.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._ask_after or not self._queue.outdated:
            return False
        more = self._queue.look(_LOOK)
        self._asking_s += loop.time() - began
        if not more:
            self._ask_after = loop.time() + self._asking_s * REST
            if self._asking_s > SLICE_S:
                loop.call_at(self._ask_after, self._woken.set)
            else:
                self._ask_after = 0.0
            self._asking_s = 0.0
        return True

    def _next(self) -> bool:
        """Give the next entry its place. Returns whether there may be another one to serve."""
        if not self._limiter.room():
            return False
        found = self._queue.next()
        if found is None:
            return False
        entry, rows = found
        if self._limiter.clogged(entry.key[0]):
            self._queue.leave(entry)
            self._defer(entry.key)
            self.reasons.want(
                entry.pod, "earlier writes in this namespace are not answered; a webhook may hold them up"
            )
            return True
        scheduler = entry.pod.spec.scheduler_name
        if not self._pace.room(scheduler, asyncio.get_running_loop().time()):
            self._queue.leave(entry)
            self._crowded.setdefault(scheduler, OrderedDict())[entry.key] = None
            return True
        try:
            placement = self._decide(entry, rows)
        except NoPlaceError as error:
            reason = "" if rows is not None else _why(entry, error)
            for other in self._queue.block(entry, reason):
                self.reasons.want(other.pod, reason)
            return True
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *entry.key)
            self._queue.leave(entry)
            self._fail(entry, "an error in the controller, see its log", first_s=OBJECT_BACKOFF_S)
            return True
        self._queue.leave(entry)
        self.picture.promise(entry.wish.claim, placement)
        self._write(entry, self._place(entry, placement))
        return True

    def _decide(self, entry: Entry, rows: Rows | None) -> Placement:
        most = MOST_NODES if len(self._queue) <= MANY else FEW_NODES
        if entry.tried:
            try:
                return decide(self.picture, entry.wish, avoid=entry.tried, only=rows, most=most)
            except NoPlaceError:
                entry.tried.clear()  # all have had their turn
        return decide(self.picture, entry.wish, only=rows, most=most)

    # Writing.

    def _write(self, entry: Entry, action: Coroutine[Any, Any, None]) -> None:
        """Let a writer do it, or wait for one."""
        if not self._limiter.room() or self._limiter.clogged(entry.key[0]):
            action.close()
            self._defer(entry.key)
            return
        entry.busy = True
        task = asyncio.get_running_loop().create_task(self._run(entry, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, entry: Entry, action: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._limiter.slot(entry.key[0], lambda: self._slow(entry)):
                await action
            self._limiter.succeeded()
            entry.moved = 0
        except MovedOnError as error:
            logger.info("pod %s/%s: %s; looking again", *entry.key, error)
            self._limiter.succeeded()
            # A gated pod may go on with what was read since; the claim of a lifted one the scheduler may be allocating.
            if entry.moved or not entry.pod.gated:
                entry.not_before = asyncio.get_running_loop().time() + MOVED_S * 2.0 ** min(entry.moved, 6)
            entry.moved += 1
        except UnsureError as error:
            logger.warning("pod %s/%s: %s; asking the server what became of it", *entry.key, error)
            entry.unsure = True
            entry.not_before = asyncio.get_running_loop().time() + SERVER_BACKOFF_S
        except (ApiError, Unreachable) as error:
            logger.warning("pod %s/%s: %s", *entry.key, error)
            if of_server(error):
                self._limiter.failed(error)
                entry.not_before = asyncio.get_running_loop().time() + SERVER_BACKOFF_S
            else:
                if isinstance(error, ApiError) and error.status < 500:
                    self._limiter.succeeded()
                text = error.message if isinstance(error, ApiError) and error.message else str(error)
                self._fail(entry, text, first_s=OBJECT_BACKOFF_S)
        except DriverError as error:
            self._fail(entry, str(error), first_s=OBJECT_BACKOFF_S)
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *entry.key)
            self._fail(entry, "an error in the controller, see its log", first_s=OBJECT_BACKOFF_S)
        finally:
            entry.busy = False
            self._touch(entry.key)

    def _slow(self, entry: Entry) -> None:
        """Keep for nobody what a claim is to hold whose creation hangs: somebody's webhook may hold it up for long."""
        if (claim := claim_key(entry.pod)) is not None:
            self.picture.release(claim)

    def _fail(self, entry: Entry, reason: str, *, first_s: float) -> None:
        entry.fail(asyncio.get_running_loop().time(), first_s=first_s)
        self._at(entry.not_before, entry.key)
        if (pod := self.picture.pods.get(entry.key)) is not None and pod.metadata.uid == entry.uid:
            self.reasons.want(pod, reason)

    async def _place(self, entry: Entry, placement: Placement) -> None:
        began = asyncio.get_running_loop().time()
        pod, wish = entry.pod, entry.wish
        try:
            if pod.gated:
                await self._writer.place(pod, wish, placement)
            else:
                await self._writer.place_again(pod, wish, placement)
        except UnsureError:
            raise
        except BaseException:
            self.picture.release(wish.claim)
            raise
        self._lifted(entry, placement, began)

    async def _lift(self, entry: Entry, placement: Placement) -> None:
        began = asyncio.get_running_loop().time()
        await self._writer.lift(entry.pod, placement)
        self._lifted(entry, placement, began)

    def _lifted(self, entry: Entry, placement: Placement, began: float) -> None:
        self.reasons.taken_away(entry.key)
        if entry.pod.gated:
            metrics.PLACEMENTS.labels(placement.choice.level.value).inc()
            metrics.DURATION.observe(asyncio.get_running_loop().time() - began)

    async def _withdraw(self, entry: Entry, step: Withdraw) -> None:
        await self._writer.withdraw(step.claim)
        metrics.WITHDRAWALS.labels(step.cause.value).inc()
        if step.claim.pin is not None and step.reason:
            node = step.claim.pin.choice.node
            logger.info("pod %s/%s: its GPUs on node %s are free again: %s", *entry.key, node, step.reason)
            entry.tried.append(node)
            self._fail(entry, step.reason, first_s=PROMISE_BACKOFF_S)

    async def _settle(self, entry: Entry, texts: dict[str, str | None]) -> None:
        await self._writer.annotate(entry.pod, texts)

    async def _ask(self, entry: Entry) -> None:
        if await self._writer.look(entry.wish.claim) is None:
            self.picture.release(entry.wish.claim)
        entry.unsure = False

    async def _recheck(self) -> None:
        """Ask blocked kinds again, a few at a time: their reasons get old, and an event might have been missed."""
        while True:
            await asyncio.sleep(RECHECK_S)
            if self._queue.recheck(self.picture.version, asyncio.get_running_loop().time()):
                self._woken.set()

    async def _sweep(self) -> None:
        while True:
            try:
                await self._collector.sweep()
            except (ApiError, Unreachable) as error:
                logger.warning("claims without pods: %s; trying again", error)
            await asyncio.sleep(SWEEP_S)


def _why(entry: Entry, error: NoPlaceError) -> str:
    if entry.pod.gated:
        return str(error)
    return (
        f"the nodes that this pod was placed for have no other GPUs for it: {error}; delete it to have it placed anew"
    )
