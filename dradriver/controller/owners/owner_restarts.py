"""Restarts gangs through their owners: suspends and resumes an owner, or deletes the pods if its kind allows that.

A suspended owner is always resumed. An annotation on the owner, its *record*, says that it must be resumed
(``api/gangs/suspendable_owners.py``). Each leader finds the owner by its label. If others change the owner meanwhile,
their change stays. Pods are deleted only if their owner does not count that as a failure. No pod of a Job is evicted
here.

An *owner* is the object that creates a gang's pods, such as a Job. To *restart* a gang is to end all its pods, so that
their owner creates them again.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspendable_owners
from dradriver.api.gangs.suspendable_owners import Suspendable
from dradriver.controller.owners.disruption_budgets import ask_budgets
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_restart_state import RestartRequest, SuspendedOwner
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
from dradriver.controller.owners.pod_deletions import PodDeletions
from dradriver.controller.owners.topmost_owner import Top, maker, top_of
from dradriver.controller.writing.write_outcome import Outcome, RefusedError, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.errors import asked_s
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

UNWANTED: Final = "The restart is not needed any more."
NONE_LEFT: Final = "The gang has no pods."


class OwnerRestarts:
    """The restarts of gangs that were requested or are in progress.

    The process can be killed after each step: the next leader continues.
    """

    def __init__(
        self, client: Client, kinds: OwnerKinds, *, pods: Mapping[Key, Pod], touch: Callable[[Key], None]
    ) -> None:
        """Begin with no restarts.

        Args:
            client: The API server.
            kinds: The versions in which the server has kinds of owners.
            pods: All current pods that request GPUs.
            touch: Called with a gang when the result of ``ask`` for it has changed.
        """
        self._client, self._kinds, self._pods, self._touch = client, kinds, pods, touch
        # By gang: its last request, the oldest first. It is *open* until it has an answer, and is kept after that, so
        # that the same request gets the same answer.
        self._requests: dict[Key, RestartRequest] = {}
        self._refused: dict[Key, tuple[float, str]] = {}  # until when a gang cannot be restarted, and why
        self._restarts: dict[Key, SuspendedOwner] = {}  # by owner (``Top.key``): owners to resume
        self._deletions = PodDeletions(client, pods)
        # Calls ``_work`` with a gang or an owner: soon after ``put``, at a time after ``put_at``.
        self._queue = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def ask(
        self,
        gang: Key,
        pods: Sequence[Pod],
        reason: str,
        *,
        is_needed: Callable[[], bool] = lambda: True,
        at_once: bool = False,
    ) -> str:
        """Request that a gang's owner restarts it; return why that is impossible, if known.

        The call only stores the request. When the result changes, ``touch`` is called, and the caller asks again. So an
        empty text means: no obstacle is known so far. Requests for the same pods restart the gang once.

        Args:
            gang: The gang.
            pods: Its living pods. If the owner is suspended, all its pods end. If pods are deleted instead, only these
                are.
            reason: The text that is written on the owner.
            is_needed: Returns whether the restart is still needed; called before anything is written.
            at_once: Whether to suspend the owner even if many are suspended already. A preemption plan sets it, because
                it must suspend all of its owners or none.
        """
        loss, now = digest(pods), asyncio.get_running_loop().time()  # ``loss`` identifies the lost pods
        request = self._requests.get(gang)
        refused_until, why = self._refused.get(gang, (0.0, ""))
        # A refusal holds for any pods of the gang. Else two callers with different pods would replace each other's
        # request, and neither would get its answer.
        if now < refused_until and (request is None or not request.open):
            return why

        # The same request, or one that is being worked on: return its answer. An old answer is looked for again.
        if request is not None and (request.open or request.loss == loss):
            request.at_once |= at_once
            if not request.open and now - request.since >= AGAIN_S and pods:
                request.open, request.pods = True, tuple(pods)
                self._queue.put(gang)
            return request.answer
        if not pods:
            return NONE_LEFT

        # A new request. If there are too many, some of the oldest answers are forgotten.
        self._requests.pop(gang, None)
        if len(self._requests) >= MOST_KEPT:
            answered = [key for key, known in self._requests.items() if not known.open]
            for key in answered[: MOST_KEPT // 4]:
                del self._requests[key]
        self._requests[gang] = RestartRequest(loss, tuple(pods), reason, is_needed, at_once)
        self._queue.put(gang)
        return ""

    async def check(self, gang: Key, pods: Sequence[Pod], reason: str) -> None:
        """Raise unless the owner of a gang's pods can be suspended now.

        The API server answers a dry run of the suspension.

        Args:
            gang: The gang.
            pods: Its living pods.
            reason: The text that would be written on the owner.

        Raises:
            RefusedError: The owner cannot be suspended; the text says why.
            ApiError: The server is in trouble.
            Unreachable: No answer.
        """
        refused_until, why = self._refused.get(gang, (0.0, ""))
        if asyncio.get_running_loop().time() < refused_until:
            raise RefusedError(why)
        try:
            await try_to_suspend(self._client, self._kinds, gang, pods, reason)
        except ApiError as error:
            if error.conflict or not _is_refusal(error):
                raise
            raise RefusedError(f"The gang cannot be restarted: {error}") from None
        # An earlier answer is out of date: the next ``ask`` begins again.
        if (request := self._requests.get(gang)) is not None:
            request.answer = ""
            if not request.open:
                del self._requests[gang]

    def suspended(self) -> frozenset[Key]:
        """Return the gangs whose owners are suspended now."""
        restarts = self._restarts.values()
        return frozenset(gang for restart in restarts for gang in (restart.gang, *restart.asks) if gang is not None)

    def take_back(self, gang: Key) -> None:
        """Cancel the requested restart of a gang.

        If its owner is suspended already, nothing is cancelled: the owner is resumed later.
        """
        if (request := self._requests.get(gang)) is not None and gang not in self.suspended():
            del self._requests[gang]
            request.open = False

    async def run(self) -> None:
        """Restart gangs, and resume owners that a previous leader left suspended, until cancelled."""
        self._put_all()  # what was under way when this was cancelled before
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            await self.find()
            await asyncio.sleep(AGAIN_LIST_S)  # until then a predecessor's last request is answered
            while True:
                whole = await self.find()
                await asyncio.sleep(LIST_S if whole else AGAIN_LIST_S)

    async def find(self) -> bool:
        """Find owners that the controller has suspended and must resume.

        Returns whether all kinds of owners could be listed.
        """
        left, whole = await left_suspended(self._client, self._kinds)
        for top in left:
            self._take_up(top)
        return whole

    async def settle(self) -> None:
        """Do the next step of all open restarts once, without pauses.

        Callers that drive the controller step by step use it.
        """
        self._put_all()
        await self._queue.flush()

    def _put_all(self) -> None:
        for key in (*self._restarts, *(gang for gang, request in self._requests.items() if request.open)):
            self._queue.done(key)
            self._queue.put(key)

    async def _work(self, key: Key) -> None:
        """Do the next step for a suspended owner or a gang's requested restart.

        ``key`` is that of the owner or of the gang.
        """
        restart, request, again_at = self._restarts.get(key), self._requests.get(key), None
        try:
            async with asyncio.timeout(ANSWER_S):
                if restart is not None:
                    again_at = await self._go_on(key, restart)
                elif request is not None and request.open:
                    again_at = await self._begin(key, request)
        except RefusedError as error:
            assert request is not None, "only those who ask are refused"
            self._refuse(key, request, str(error))
        except (DriverError, TimeoutError) as error:
            is_conflict = isinstance(error, ApiError) and error.conflict  # another writer was faster
            if restart is None and request is not None and not is_conflict and _is_refusal(error):
                self._refuse(key, request, f"The gang cannot be restarted: {error}")
            else:
                if not is_conflict:
                    logger.warning(
                        "Gang %s/%s cannot be restarted yet: %s. The controller tries again.",
                        *key,
                        str(error) or "no answer",
                    )
                self._queue.fail(key, least_s=asked_s(error, LONGEST_ASKED_S))
                return
        self._queue.done(key)
        if again_at is not None:
            self._queue.put_at(key, again_at)

    # What is asked for.

    async def _begin(self, gang: Key, request: RestartRequest) -> float | None:
        """Begin a restart: suspend the owner of a gang's pods, or delete the pods.

        It is too early while the pause after the last restart runs, or while many owners are suspended. Then the result
        is when to try again, by the event loop's clock; else None. ``request`` has the pods that must end, and the
        reason.

        Raises:
            RefusedError: The gang cannot be restarted.
        """
        # 1. What needs no new suspension. Pods of StatefulSets are deleted (``delete`` returns when, if too early).
        #    Or the controller has suspended the owner already, or restarted it for these very pods.
        refuse_kueues(request.pods)
        if all(maker(pod).kind == suspendable_owners.DELETES for pod in request.pods):
            again_at = await self._deletions.delete(gang, request.pods, request.reason)
            if again_at is None:
                self._close(gang, request, DONE)
            return again_at
        top = await top_of(self._client, self._kinds, request.pods)
        if suspendable_owners.under_way(top.owner) is not None:
            self._take_up(top).asks[gang] = request  # answered once the owner is resumed
            return None
        if is_done(top, request.loss):
            self._close(gang, request, DONE)
            return None

        # 2. What forbids or delays one: the owner, a pause after its last restart, too many suspended owners, budgets.
        if why := suspendable_owners.obstacle(top.resource.kind, top.owner):
            raise RefusedError(why)
        wait_s = pause_s(top)  # from the record of its last restart; 0 or less for no pause
        if wait_s > 0:
            self._tell(gang, request, PAUSED)
        if wait_s > 0 or not (request.at_once or self._has_room(gang[0])):
            return asyncio.get_running_loop().time() + max(LOOK_S, wait_s)
        running = [pod for pod in self._pods_of(top).values() if pod.spec.node_name]
        if running:
            await ask_budgets(self._client, running)

        # 3. The suspension. All requests above took time, so whether it is still wanted is asked last.
        if not request.is_needed():
            self._close(gang, request, UNWANTED)
            return None
        await suspend(self._client, top, gang=gang, loss=request.loss, reason=request.reason)
        logger.info("%s of namespace %s is suspended, to be resumed: %s", top, gang[0], request.reason)
        request.answer = ""
        self._take_up(top).asks[gang] = request  # ``_go_on`` resumes the owner and answers the request
        return None

    def _has_room(self, namespace: str) -> bool:
        """Return whether another owner of a namespace may be suspended now.

        The number of suspended owners is limited. Owners that have been suspended for ``LONGEST_S`` seconds do not
        count. A namespace without a suspended owner always has room for one.
        """
        now = asyncio.get_running_loop().time()
        counts = collections.Counter(key[0] for key, restart in self._restarts.items() if now < restart.until)
        if not counts[namespace]:
            return True
        total = sum(min(count, MOST_IN_NAMESPACE) for count in counts.values())
        return counts[namespace] < MOST_IN_NAMESPACE and total < MOST

    # What is suspended.

    def _take_up(self, top: Top) -> SuspendedOwner:
        """Return this process's record of the suspended owner ``top``; make it if there is none.

        This replica or an earlier leader has suspended the owner. ``run`` resumes each owner that has a record.
        """
        metadata, now = top.owner.metadata, asyncio.get_running_loop().time()
        restart = self._restarts.get(top.key)
        if restart is not None and restart.uid != metadata.uid:
            self._over(top.key, restart)
            restart = None
        if restart is None:
            record = suspendable_owners.under_way(top.owner)
            gang = None if record is None else (metadata.namespace, record.gang)
            restart = SuspendedOwner(top.resource, metadata.name, metadata.uid, now + LONGEST_S, gang, {})
            self._restarts[top.key] = restart
            self._queue.put_at(top.key, now + LOOK_S / 4)
        return restart

    async def _go_on(self, key: Key, restart: SuspendedOwner) -> float | None:
        """Resume a suspended owner once its pods have ended, or after ``LONGEST_S`` seconds.

        If the owner is not resumed yet, returns when to look again, by the event loop's clock; else None. ``restart``
        is the record of the suspension.
        """
        try:
            owner = await self._client.get(restart.resource, restart.name, namespace=key[0], type=Suspendable)
        except ApiError as error:
            if not error.not_found:
                raise
            self._over(key, restart)
            return None
        top, record = Top(restart.resource, owner), suspendable_owners.under_way(owner)
        # Another object has the name, or somebody removed the record and is responsible for the owner now.
        if record is None or owner.metadata.uid != restart.uid:
            self._over(key, restart)
            return None
        # Somebody else has resumed it, or Kueue has taken it over: only the record is closed.
        if not owner.suspended or owner.kueues:
            await patch(self._client, top, suspendable_owners.let_go(owner, record))
            self._over(key, restart)
            return None
        now = asyncio.get_running_loop().time()
        if now < restart.until and not self._are_pods_gone(top, restart):
            # The controller reads at most MOST_IN_NAMESPACE owners of a namespace in LOOK_S, however many are marked.
            count = sum(namespace == key[0] for namespace, _ in self._restarts)
            return min(now + LOOK_S * max(1.0, count / MOST_IN_NAMESPACE), restart.until)
        await patch(self._client, top, suspendable_owners.resume(top.resource.kind, owner, record))
        logger.info("%s of namespace %s is resumed", top, key[0])
        self._over(key, restart)
        return None

    def _are_pods_gone(self, top: Top, restart: SuspendedOwner) -> bool:
        """Return whether the suspended owner ``top`` has no pods left and creates no more.

        It creates no more once its own controller has seen the suspension. ``restart`` is the record of the suspension.
        """
        if not top.owner.rests:
            return False
        if restart.remaining is None:
            restart.remaining = {key: pod.metadata.uid for key, pod in self._pods_of(top).items()}
        for key, uid in list(restart.remaining.items()):
            pod = self._pods.get(key)
            if pod is None or pod.finished or pod.metadata.uid != uid:
                del restart.remaining[key]
        return not restart.remaining

    def _pods_of(self, top: Top) -> dict[Key, Pod]:
        """Return the unfinished pods with GPUs that belong to the owner ``top``."""
        kind, metadata = top.resource.kind, top.owner.metadata
        return {
            key: pod
            for key, pod in self._pods.items()
            if not pod.finished and suspendable_owners.belongs(pod, kind, metadata)
        }

    def _over(self, key: Key, restart: SuspendedOwner) -> None:
        """Forget a finished restart of an owner, and answer all requests for it."""
        # If it is not the same, another owner of that name is being restarted by now.
        if self._restarts.get(key) is restart:
            del self._restarts[key]
        for gang, request in restart.asks.items():
            self._close(gang, request, DONE)

    def _refuse(self, gang: Key, request: RestartRequest, answer: str) -> None:
        """Answer that a gang cannot be restarted. The answer holds for ``AGAIN_S`` seconds."""
        now = asyncio.get_running_loop().time()
        # Inserted at the end: the oldest entry is forgotten if there are too many.
        self._refused.pop(gang, None)
        self._refused[gang] = now + AGAIN_S, answer
        if len(self._refused) > MOST_KEPT:
            del self._refused[next(iter(self._refused))]
        self._close(gang, request, answer)

    def _close(self, gang: Key, request: RestartRequest, answer: str) -> None:
        request.open, request.pods, request.since = False, (), asyncio.get_running_loop().time()
        self._tell(gang, request, answer)

    def _tell(self, gang: Key, request: RestartRequest, answer: str) -> None:
        if answer == request.answer:
            return
        if answer != DONE:
            logger.info("%s/%s is not started again: %s", *gang, answer)
        request.answer = answer
        self._touch(gang)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, ApiError) and outcome(error) is Outcome.OBJECT
