"""Does what was decided, for many pods at once, and sees to whatever comes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dradriver.allocator.request import Choice
from dradriver.api.pins import Key, claim_key
from dradriver.cluster.picture import Picture
from dradriver.cluster.placement import Placement
from dradriver.cluster.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.api_writer import ApiWriter
from dradriver.controller.outcome import MovedOnError, Outcome, PausedError, UnsureError, outcome
from dradriver.controller.reasons import Reasons
from dradriver.controller.review import Settle, Wait, Withdraw
from dradriver.controller.withdraw_reasons import WithdrawReason
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import ApiError, Unreachable
from dradriver.queue.entries import Entry
from dradriver.queue.limiter import SLOW_S, Limiter

logger = logging.getLogger(__name__)

SERVER_BACKOFF_S: Final = 1.0  # for one entry; the limiter pauses all
ALONE: Final = 3  # times that one entry met the server's trouble while others' writes went well
OBJECT_BACKOFF_S: Final = 1.0
PROMISE_BACKOFF_S: Final = 5.0
MOVED_S: Final = 0.1  # usually an event comes first
LONGEST_MOVED_S: Final = 6.4
QUICK: Final = 0.25  # of the time that a write hangs: a server that reads in less is not what holds it up
OWN_ERROR: Final = "an error in the controller, see its log"

Action = Coroutine[Any, Any, None]


class Executor:
    """One task for each entry that is written; the entry is busy until it ends, and is then looked at again.

    Whatever goes wrong with one entry (a refusal, somebody's webhook, a bug) costs that entry a pause and a reason, and
    nobody else anything. Only trouble with the server stops all.
    """

    def __init__(
        self,
        writer: ApiWriter,
        limiter: Limiter,
        picture: Picture,
        reasons: Reasons,
        *,
        touch: Callable[[Key], None],
        at: Callable[[float, Key], None],
        alive: Callable[[Entry], bool],
        newest: Callable[[], str],
    ) -> None:
        """Make an executor with nothing to do.

        Args:
            writer: Makes single writes.
            limiter: Says how many may be under way; ask it before each step.
            picture: The cluster.
            reasons: Told why an entry has to wait.
            touch: Called with the key of an entry that has to be looked at again.
            at: The same at a time, by the loop's clock.
            alive: Whether an entry is still looked after.
            newest: When the newest pod was created.
        """
        self._writer = writer
        self._limiter = limiter
        self._picture = picture
        self._reasons = reasons
        self._touch = touch
        self._at = at
        self._alive = alive
        self._newest = newest
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def one_done(self) -> None:
        """Wait until one of the tasks has ended; raises what is meant to end the process."""
        for task in (await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()

    async def stop(self) -> None:
        """End all that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Steps.

    def place(self, entry: Entry, placement: Placement) -> None:
        """Create an entry's claim, or let it share the one of others, and let the scheduler have the pod.

        Its GPUs are promised from now on.
        """
        if placement.joins:
            self._picture.joins(entry.key, placement.node)
            self._start(entry, self._join(entry, placement))
            return
        self._picture.promise(entry.wish.claim, placement)
        self._start(entry, self._place(entry, placement))

    def hand_over(self, entry: Entry, why: str, *, has_claim: bool = False) -> None:
        """Let the scheduler have an entry for which there is no place, with a new claim, unless it has one for that."""
        self._start(entry, self._hand_over(entry, why, has_claim=has_claim))

    def lift(self, entry: Entry, claim: ClaimRecord, placement: Placement) -> None:
        """Lift the gate of an entry that has its claim."""
        self._start(entry, self._lift(entry, claim, placement))

    def withdraw(self, entry: Entry, step: Withdraw) -> None:
        """End a promise."""
        self._start(entry, self._withdraw(entry, step))

    def settle(self, entry: Entry, step: Settle | Wait) -> None:
        """Put annotations right, and who shares a claim."""
        self._start(entry, self._settle(entry, step))

    def ask(self, entry: Entry) -> None:
        """Find out whether an entry's claim was created."""
        self._start(entry, self._ask(entry))

    def fail(self, entry: Entry, reason: str, *, first_s: float = OBJECT_BACKOFF_S, in_turn: bool = False) -> None:
        """Let an entry wait, each time twice as long, and say why; then it is behind all others, or in its turn."""
        behind = None if in_turn else self._newest()
        entry.fail(asyncio.get_running_loop().time(), first_s=first_s, behind=behind)
        self._wait(entry, reason)

    def _wait(self, entry: Entry, reason: str) -> None:
        self._at(entry.not_before, entry.key)
        pod = self._picture.pods.get(entry.key)
        if pod is not None and pod.metadata.uid == entry.uid and not pod.spec.node_name:
            self._reasons.want(pod, reason)

    # What comes of them.

    def _start(self, entry: Entry, action: Action) -> None:
        entry.busy = True
        # At once: when the task begins, the next one may have been decided on.
        give_back = self._limiter.take(entry.key[0], lambda: self._spawn(self._let_go(entry, while_=task)))
        task = self._spawn(self._run(entry, action))
        task.add_done_callback(lambda _: give_back())

    def _spawn(self, action: Action) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, entry: Entry, action: Action) -> None:
        try:
            await action
            self._limiter.succeeded()
            entry.moved = entry.alone = 0
        except MovedOnError as error:
            logger.info("pod %s/%s: %s; looking again", *entry.key, error)
            self._limiter.succeeded()
            # A gated pod may go on with what was read since; the claim of a lifted one the scheduler may be allocating.
            if entry.moved or not entry.pod.gated:
                wait = wait_s(entry.moved, first_s=MOVED_S, longest_s=LONGEST_MOVED_S)
                entry.not_before = asyncio.get_running_loop().time() + wait
            entry.moved += 1
        except PausedError as error:
            logger.info("pod %s/%s: %s; going on after it", *entry.key, error)
        except UnsureError as error:
            logger.warning("pod %s/%s: %s; asking the server what became of it", *entry.key, error)
            if isinstance(error.__cause__, DriverError) and outcome(error.__cause__) is Outcome.SERVER:
                self._limiter.failed(error.__cause__)
            entry.unsure = True
            if not self._alive(entry) and (claim := claim_key(entry.pod)) is not None:
                self._picture.release(claim)  # nobody asks any more; if it is there, the reflector shows it
            entry.not_before = asyncio.get_running_loop().time() + SERVER_BACKOFF_S
        except (ApiError, Unreachable) as error:
            logger.warning("pod %s/%s: %s", *entry.key, error)
            found = outcome(error)
            if found is Outcome.SERVER:
                self._limiter.failed(error)
                # The pause of all is its own, too, and then it is in its turn; unless it goes on meeting it alone.
                if entry.meets_trouble(self._limiter.successes) >= ALONE:
                    entry.not_before = asyncio.get_running_loop().time() + SERVER_BACKOFF_S
            else:
                if isinstance(error, ApiError) and error.status < 500:
                    self._limiter.succeeded()
                text = error.message if isinstance(error, ApiError) and error.message else str(error)
                self.fail(entry, text, in_turn=found is Outcome.MOMENT)
        except DriverError as error:
            self.fail(entry, str(error))
        except Exception:
            logger.exception("pod %s/%s: an error in this program; trying again later", *entry.key)
            self.fail(entry, OWN_ERROR)
        finally:
            entry.busy = False
            self._touch(entry.key)

    async def _let_go(self, entry: Entry, *, while_: asyncio.Task[None]) -> None:
        """Keep for nobody what an entry is to have whose writes hang: somebody's webhook may hold them up for long.

        Unless it is the server that is slow, for all: then nobody else could have it sooner, and a pod that is lifted
        after all would have lost its GPUs. No webhook is asked about reading, so reading tells the two apart.
        """
        clock = asyncio.get_running_loop().time
        hangs_since, pause_s = clock() - SLOW_S, SLOW_S
        while not while_.done():
            began = clock()
            try:
                if await self._writer.lifted(entry.pod) and entry.pod.gated:
                    return  # only the answer is late
                quick = clock() - began < (began - hangs_since) * QUICK
                if quick and not (while_.done() or self._limiter.paused()):
                    await self._take_back(entry)
                    return
            except DriverError as error:
                logger.warning("pod %s/%s: a write hangs, and %s", *entry.key, error)
                if outcome(error) is Outcome.SERVER:
                    self._limiter.failed(error)
                pause_s *= 2
            await asyncio.sleep(pause_s)

    async def _take_back(self, entry: Entry) -> None:
        if (key := claim_key(entry.pod)) is None:
            return
        self._picture.release(key)
        claim = self._picture.claims.get(key)
        if (
            entry.pod.gated
            and claim is not None
            and not claim.handed_over  # it keeps nothing from anybody
            and claim.owned_by(entry.uid)
            and claim.devices is None
            and not claim.deleting
        ):
            await self._writer.withdraw(claim)

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
            self._picture.release(wish.claim)
            raise
        self._lifted(entry, placement, began)

    async def _join(self, entry: Entry, placement: Placement) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._writer.join(entry.pod, placement)
        finally:
            self._picture.joined(entry.key)
        self._lifted(entry, placement, began)

    async def _hand_over(self, entry: Entry, why: str, *, has_claim: bool) -> None:
        reason = f"handed over to the scheduler: {why}"
        await self._writer.hand_over(entry.pod, entry.wish, reason, has_claim=has_claim)
        if entry.pod.gated:
            self._reasons.taken_away(entry.key)
        else:
            self._reasons.want(entry.pod, reason)
        logger.info("pod %s/%s: handed over to the scheduler: %s", *entry.key, why)

    async def _lift(self, entry: Entry, claim: ClaimRecord, placement: Placement) -> None:
        began = asyncio.get_running_loop().time()
        await self._writer.lift_or_withdraw(entry.pod, claim, placement)
        self._lifted(entry, placement, began)

    def _lifted(self, entry: Entry, placement: Placement, began: float) -> None:
        self._reasons.taken_away(entry.key)
        if entry.pod.gated:
            choice = placement.choice
            metrics.PLACEMENTS.labels(choice.level.value if isinstance(choice, Choice) else metrics.PART).inc()
            metrics.DURATION.observe(asyncio.get_running_loop().time() - began)

    async def _withdraw(self, entry: Entry, step: Withdraw) -> None:
        await self._writer.withdraw(step.claim)
        entry.claim_uid, entry.said = "", entry.pod.refused
        entry.renewed = step.cause is WithdrawReason.OVERLOOKED
        metrics.WITHDRAWALS.labels(step.cause.value).inc()
        if step.cause is WithdrawReason.BYPASSED:
            logger.info("pod %s/%s: its GPUs are free again: %s", *entry.key, step.reason)
            return  # it is told why when it is looked at again
        if step.claim.pin is not None and step.reason:
            node = step.claim.pin.choice.node
            logger.info("pod %s/%s: its GPUs on node %s are free again: %s", *entry.key, node, step.reason)
            if (
                step.cause is not WithdrawReason.UNSCHEDULABLE
            ):  # the scheduler may just be slow there, with a volume perhaps
                self.fail(entry, step.reason, first_s=PROMISE_BACKOFF_S)
                return
            entry.tried.append(node)
            now = asyncio.get_running_loop().time()
            self._picture.refusals.add(entry.pod, node, now)
            # While it goes through its nodes for the first time it keeps little from others; after that it would much.
            first_s = PROMISE_BACKOFF_S if entry.failures else OBJECT_BACKOFF_S
            entry.step_back(now, first_s=first_s, behind=self._newest())
            self._wait(entry, step.reason)

    async def _settle(self, entry: Entry, step: Settle | Wait) -> None:
        if step.joins is not None:
            await self._writer.owners.adopt(entry.pod, step.joins.uid)
        await self._writer.annotate(entry.pod, step.texts)

    async def _ask(self, entry: Entry) -> None:
        claim = claim_key(entry.pod)
        if claim is not None and await self._writer.look(claim) is None:
            self._picture.release(claim)
        entry.unsure = False
