"""Starts gangs anew by their owners' own means: suspended and resumed, or, where that is no failure, pods deleted.

What is suspended is always resumed: a record on the object says that it has to be (``suspendable_owners``). Each
leader finds it by its label, and leaves an object that others have changed as they want it. Nothing here evicts a Job's
pods.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspendable_owners
from dradriver.api.gangs.suspendable_owners import Suspendable
from dradriver.controller.owners.evict_pods import ask_budgets, delete
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_suspension import (
    DONE,
    PAUSED,
    digest,
    is_done,
    left_suspended,
    patch,
    pause_s,
    refuse_kueues,
    suspend,
    try_to_suspend,
)
from dradriver.controller.owners.topmost_owner import Top, maker, top_of
from dradriver.controller.writing.outcome import Outcome, RefusedError, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.errors import asked_s
from dradriver.kube.resources import Resource
from dradriver.kube.workqueue import WorkQueue
from dradriver.queue.write_lanes import LONGEST_ASKED_S

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at what is suspended
LONGEST_S: Final = 120.0  # that it may stay so: pods of a node that is lost never go
LIST_S: Final = 300.0  # between two searches for what a predecessor has left suspended
AGAIN_LIST_S: Final = 30.0  # to the second search, and to the next where not all was read
ANSWER_S: Final = 30.0  # for all requests of one step
AGAIN_S: Final = 60.0  # after which what was not permitted is tried again, where somebody still asks
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
# Owners that are suspended at once. A namespace with none always has room for its first.
MOST: Final = 64
MOST_IN_NAMESPACE: Final = 8  # also the most that a namespace counts for, whatever marks its tenant could write
MOST_KEPT: Final = 4096  # answers

UNWANTED: Final = "nobody wants it any more"
NONE_LEFT: Final = "it has no pods"


class _Ask(msgspec.Struct):
    """What was asked for a gang.

    Attributes:
        loss: For which pods, as a digest: what names one restart.
        pods: These, until there is an answer.
        reason: What is noted for people.
        wanted: Whether it is to be still: asked before anything is written.
        at_once: Whether it need not wait until fewer owners are suspended.
        open: Whether there is no answer yet.
        answer: Why it cannot be; empty where it can.
        since: When that was found out, by the loop's clock.
    """

    loss: str
    pods: Sequence[Pod]
    reason: str
    wanted: Callable[[], bool] = lambda: True
    at_once: bool = False
    open: bool = True
    answer: str = ""
    since: float = 0.0


class _Restart(msgspec.Struct):
    """An object that was suspended here, and is to be resumed."""

    resource: Resource
    name: str
    uid: str
    until: float  # when it is resumed whatever there still is
    gang: Key | None  # for which a predecessor suspended it, as its record says
    asks: dict[Key, _Ask]
    left: dict[Key, str] | None = None  # its pods that are still there, with their uids


class OwnerRestarts:
    """Everything that is being started anew. It reads and writes owners; each step is safe to be killed after."""

    def __init__(
        self, client: Client, kinds: OwnerKinds, *, pods: Mapping[Key, Pod], touch: Callable[[Key], None]
    ) -> None:
        """Make one that knows of nothing.

        Args:
            client: The API server.
            kinds: In which versions it has the owners.
            pods: All pods of ours that there are, up to date.
            touch: Has a gang looked at again, whose answer has changed.
        """
        self._client, self._kinds, self._pods, self._touch = client, kinds, pods, touch
        self._asks: dict[Key, _Ask] = {}
        self._refused: dict[Key, tuple[float, str]] = {}  # until when a gang cannot be started anew, and why
        self._restarts: dict[Key, _Restart] = {}
        self._deleted: dict[Key, tuple[float, int]] = {}  # until when the pods of a gang are not deleted again
        self._queue = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def ask(
        self,
        gang: Key,
        pods: Sequence[Pod],
        reason: str,
        *,
        wanted: Callable[[], bool] = lambda: True,
        at_once: bool = False,
    ) -> str:
        """Have a whole gang restarted by its owner, once for these pods. Returns why that cannot be.

        Args:
            gang: The gang; it is looked at again when either is known.
            pods: Its living pods: of an owner that can be suspended all go, also others', of any other owner these.
            reason: What is noted for people.
            wanted: Whether it is to be still: asked before anything is written.
            at_once: Whether it need not wait until fewer owners are suspended: of a plan all are suspended, or none.
        """
        loss, now = digest(pods), asyncio.get_running_loop().time()
        known = self._asks.get(gang)
        until, why = self._refused.get(gang, (0.0, ""))
        if now < until and (known is None or not known.open):
            # Who asks for other pods of the gang is refused the same: two who ask would not let each other know.
            return why
        if known is not None and (known.open or known.loss == loss):
            known.at_once |= at_once
            if not known.open and now - known.since >= AGAIN_S and pods:
                known.open, known.pods = True, tuple(pods)
                self._queue.put(gang)
            return known.answer
        if not pods:
            return NONE_LEFT
        self._asks.pop(gang, None)
        if len(self._asks) >= MOST_KEPT:
            for key in [key for key, ask in self._asks.items() if not ask.open][: MOST_KEPT // 4]:
                del self._asks[key]
        self._asks[gang] = _Ask(loss, tuple(pods), reason, wanted, at_once)
        self._queue.put(gang)
        return ""

    async def check(self, gang: Key, pods: Sequence[Pod], reason: str) -> None:
        """Raise unless the owner of a gang's pods can be suspended now, as far as the API server can tell.

        Args:
            gang: The gang.
            pods: Its living pods.
            reason: What would be noted for people.

        Raises:
            RefusedError: It cannot; the text says why.
            ApiError: The server is in trouble.
            Unreachable: No answer.
        """
        until, why = self._refused.get(gang, (0.0, ""))
        if asyncio.get_running_loop().time() < until:
            raise RefusedError(why)
        try:
            await try_to_suspend(self._client, self._kinds, gang, pods, reason)
        except ApiError as error:
            if error.conflict or not _is_refusal(error):
                raise
            raise RefusedError(f"it cannot be started anew: {error}") from None
        # What was answered before does not count any more.
        if (known := self._asks.get(gang)) is not None:
            known.answer = ""
            if not known.open:
                del self._asks[gang]

    def suspended(self) -> frozenset[Key]:
        """Return the gangs whose owners are suspended now."""
        restarts = self._restarts.values()
        return frozenset(gang for restart in restarts for gang in (restart.gang, *restart.asks) if gang is not None)

    def take_back(self, gang: Key) -> None:
        """Forget a gang's restart; an owner that is suspended already is resumed all the same."""
        if (ask := self._asks.get(gang)) is not None and gang not in self.suspended():
            del self._asks[gang]
            ask.open = False

    async def run(self) -> None:
        """Restart gangs and resume what a predecessor left suspended, until cancelled."""
        self._put_all()  # what was under way when this was cancelled before
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            await self.find()
            await asyncio.sleep(AGAIN_LIST_S)  # until then a predecessor's last request is answered
            while True:
                whole = await self.find()
                await asyncio.sleep(LIST_S if whole else AGAIN_LIST_S)

    async def find(self) -> bool:
        """Find owners that were suspended here and not resumed. Returns whether all were read that may be."""
        left, whole = await left_suspended(self._client, self._kinds)
        for top in left:
            self._take_up(top)
        return whole

    async def settle(self) -> None:
        """Do all restarts that are open once, pauses or not; for callers that drive it by hand."""
        self._put_all()
        await self._queue.flush()

    def _put_all(self) -> None:
        for key in (*self._restarts, *(gang for gang, ask in self._asks.items() if ask.open)):
            self._queue.done(key)
            self._queue.put(key)

    async def _work(self, key: Key) -> None:
        restart, ask, again_at = self._restarts.get(key), self._asks.get(key), None
        try:
            async with asyncio.timeout(ANSWER_S):
                if restart is not None:
                    again_at = await self._go_on(key, restart)
                elif ask is not None and ask.open:
                    again_at = await self._begin(key, ask)
        except RefusedError as error:
            assert ask is not None, "only those who ask are refused"
            self._refuse(key, ask, str(error))
        except (DriverError, TimeoutError) as error:
            conflict = isinstance(error, ApiError) and error.conflict  # somebody was first
            if restart is None and ask is not None and not conflict and _is_refusal(error):
                self._refuse(key, ask, f"it cannot be started anew: {error}")
            else:
                if not conflict:
                    logger.warning("%s/%s, which is started anew: %s; trying again", *key, str(error) or "no answer")
                self._queue.fail(key, least_s=asked_s(error, LONGEST_ASKED_S))
                return
        self._queue.done(key)
        if again_at is not None:
            self._queue.put_at(key, again_at)

    # What is asked for.

    async def _begin(self, gang: Key, ask: _Ask) -> float | None:
        """Begin, or answer; returns when to try again, where it is too early."""
        refuse_kueues(ask.pods)
        if all(maker(pod).kind == suspendable_owners.DELETES for pod in ask.pods):
            return await self._delete(gang, ask)
        top = await top_of(self._client, self._kinds, ask.pods)
        if suspendable_owners.under_way(top.found) is not None:
            self._take_up(top).asks[gang] = ask
            return None
        if is_done(top, ask.loss):
            self._close(gang, ask, DONE)
            return None
        if why := suspendable_owners.obstacle(top.resource.kind, top.found):
            raise RefusedError(why)
        wait_s = pause_s(top)
        if wait_s > 0:
            self._tell(gang, ask, PAUSED)
        if wait_s > 0 or not (ask.at_once or self._has_room(gang[0])):
            return asyncio.get_running_loop().time() + max(LOOK_S, wait_s)
        running = [pod for pod in self._of(top).values() if pod.spec.node_name]
        if running:
            await ask_budgets(self._client, running)
        if not ask.wanted():
            self._close(gang, ask, UNWANTED)
            return None
        await suspend(self._client, top, gang=gang, loss=ask.loss, reason=ask.reason)
        logger.info("%s of namespace %s is suspended, to be resumed: %s", top, gang[0], ask.reason)
        ask.answer = ""
        self._take_up(top).asks[gang] = ask
        return None

    async def _delete(self, gang: Key, ask: _Ask) -> float | None:
        """Delete the pods of a StatefulSet, or of a LeaderWorkerSet's; returns when, where it is too early."""
        if len({suspendable_owners.set_of(pod) for pod in ask.pods}) > 1:
            raise RefusedError("its pods have more than one owner: delete them yourself")
        now = asyncio.get_running_loop().time()
        until, times = self._deleted.get(gang, (0.0, 0))
        if now < until:
            return until
        await delete(self._client, [pod for pod in ask.pods if self._lives(pod)])
        logger.info("%s/%s: its pods are deleted, to be made anew: %s", *gang, ask.reason)
        if now > until + suspendable_owners.LONGEST_PAUSE_S:
            times = 0
        pause_s = min(suspendable_owners.FIRST_PAUSE_S * 2.0 ** min(times, 16), suspendable_owners.LONGEST_PAUSE_S)
        self._deleted.pop(gang, None)
        self._deleted[gang] = now + pause_s, times + 1
        if len(self._deleted) > MOST_KEPT:
            del self._deleted[next(iter(self._deleted))]
        self._close(gang, ask, DONE)
        return None

    def _has_room(self, namespace: str) -> bool:
        """Return whether another owner may be suspended now; one that stays so for too long counts no more."""
        now = asyncio.get_running_loop().time()
        counts = collections.Counter(key[0] for key, restart in self._restarts.items() if now < restart.until)
        if not counts[namespace]:
            return True
        busy = sum(min(count, MOST_IN_NAMESPACE) for count in counts.values())
        return counts[namespace] < MOST_IN_NAMESPACE and busy < MOST

    # What is suspended.

    def _take_up(self, top: Top) -> _Restart:
        """Return what is to be resumed: an object that was suspended just now, or by a predecessor."""
        metadata, now = top.found.metadata, asyncio.get_running_loop().time()
        restart = self._restarts.get(top.key)
        if restart is not None and restart.uid != metadata.uid:
            self._over(top.key, restart)
            restart = None
        if restart is None:
            record = suspendable_owners.under_way(top.found)
            gang = None if record is None else (metadata.namespace, record.gang)
            restart = _Restart(top.resource, metadata.name, metadata.uid, now + LONGEST_S, gang, {})
            self._restarts[top.key] = restart
            self._queue.put_at(top.key, now + LOOK_S / 4)
        return restart

    async def _go_on(self, key: Key, restart: _Restart) -> float | None:
        """Resume an object, if it is time; returns when to look again, where it is too early."""
        try:
            found = await self._client.get(restart.resource, restart.name, namespace=key[0], type=Suspendable)
        except ApiError as error:
            if not error.not_found:
                raise
            self._over(key, restart)
            return None
        top, record = Top(restart.resource, found), suspendable_owners.under_way(found)
        if record is None or found.metadata.uid != restart.uid:
            self._over(key, restart)  # whoever took the record away sees to the rest
            return None
        if not found.suspended or found.kueues:
            await patch(self._client, top, suspendable_owners.let_go(found, record))
            self._over(key, restart)
            return None
        now = asyncio.get_running_loop().time()
        if now < restart.until and not self._gone(top, restart):
            # The controller reads at most MOST_IN_NAMESPACE owners of a namespace in LOOK_S, however many are marked.
            count = sum(namespace == key[0] for namespace, _ in self._restarts)
            return min(now + LOOK_S * max(1.0, count / MOST_IN_NAMESPACE), restart.until)
        await patch(self._client, top, suspendable_owners.resume(top.resource.kind, found, record))
        logger.info("%s of namespace %s is resumed", top, key[0])
        self._over(key, restart)
        return None

    def _gone(self, top: Top, restart: _Restart) -> bool:
        """Return whether an object has no pods any more. Once its controller has seen that, no more can come."""
        if not top.found.rests:
            return False
        if restart.left is None:
            restart.left = {key: pod.metadata.uid for key, pod in self._of(top).items()}
        for key, uid in list(restart.left.items()):
            pod = self._pods.get(key)
            if pod is None or pod.finished or pod.metadata.uid != uid:
                del restart.left[key]
        return not restart.left

    def _lives(self, pod: Pod) -> bool:
        now = self._pods.get((pod.metadata.namespace, pod.metadata.name))
        return now is not None and now.metadata.uid == pod.metadata.uid and now.metadata.deletion_timestamp is None

    def _of(self, top: Top) -> dict[Key, Pod]:
        """Return the pods of ours that an object has made and that have not ended."""
        kind, made_by = top.resource.kind, top.found.metadata
        return {
            k: pod
            for k, pod in self._pods.items()
            if not pod.finished and suspendable_owners.belongs(pod, kind, made_by)
        }

    def _over(self, key: Key, restart: _Restart) -> None:
        if self._restarts.get(key) is restart:  # else another object of that name is being started anew by now
            del self._restarts[key]
        for gang, ask in restart.asks.items():
            self._close(gang, ask, DONE)

    def _refuse(self, gang: Key, ask: _Ask, answer: str) -> None:
        now = asyncio.get_running_loop().time()
        self._refused.pop(gang, None)
        self._refused[gang] = now + AGAIN_S, answer
        if len(self._refused) > MOST_KEPT:
            del self._refused[next(iter(self._refused))]
        self._close(gang, ask, answer)

    def _close(self, gang: Key, ask: _Ask, answer: str) -> None:
        ask.open, ask.pods, ask.since = False, (), asyncio.get_running_loop().time()
        self._tell(gang, ask, answer)

    def _tell(self, gang: Key, ask: _Ask, answer: str) -> None:
        if answer == ask.answer:
            return
        if answer != DONE:
            logger.info("%s/%s is not started anew: %s", *gang, answer)
        ask.answer = answer
        self._touch(gang)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, ApiError) and outcome(error) is Outcome.OBJECT
