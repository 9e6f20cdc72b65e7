"""Ends pods for whom others need their GPUs: by the Eviction API, gangs of Jobs and the like by suspending their owner.

Whatever is asked here is safe to repeat: a pod that was told to end has another version, and is not told again; of an
owner its own record says what it was suspended for. Disruption budgets count for both.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_owners, suspendable_owners
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload
from dradriver.controller import metrics
from dradriver.controller.owners.evict_pods import ask_budgets, evict
from dradriver.controller.owners.eviction_refusals import EvictionRefusals
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.owners.owner_suspension import DONE
from dradriver.controller.writing import several_writes
from dradriver.controller.writing.outcome import MovedOnError, RefusedError
from dradriver.controller.writing.reasons import Record
from dradriver.kube.client import ApiError, Client
from dradriver.queue.namespace_tenants import MINUTE_S

logger = logging.getLogger(__name__)

REASON_S: Final = 60.0  # for which it is known why others could not be ended for a workload
ASKED_S: Final = 1.0  # after which it is asked what became of the suspension of an owner
AGAIN_S: Final = 5.0  # after which those are told again whose end was refused
TOLD_S: Final = 30.0  # that a reflector may be behind
CHART_VALUE: Final = "controller.preemption"
AT_ONCE: Final = 16  # writes of one plan
LATE: Final = (
    "the pods that must end for it need longer than its tentative placement lasts. If this repeats, look for a webhook "
    "that answers slowly, or raise queue.preemption.marginSeconds"
)


class Evictions:
    """Ends pods, and knows whom it could not end."""

    def __init__(
        self,
        client: Client,
        picture: Picture,
        restarts: OwnerRestarts,
        *,
        suspendable: Collection[str] = (),
        record: Record | None = None,
    ) -> None:
        """Make one that has ended nobody.

        Args:
            client: The API server.
            picture: The cluster.
            restarts: Suspends and resumes owners.
            suspendable: Kinds of owners that the controller may suspend.
            record: Writes an Event about a pod that has to end.
        """
        self._client, self._picture, self._restarts, self._record = client, picture, restarts, record
        self._suspendable = frozenset(suspendable)
        self._refusals = EvictionRefusals()
        self._told: dict[str, float] = {}  # by pods' uids, until when they need not be told again: it is not seen yet
        self._evicted: dict[str, float] = {}  # the same of those that were evicted
        self._ended: dict[tuple[Key, str], float] = {}  # when each workload was told first, by its uid if it is a pod
        self._stopped: dict[Key, tuple[float, str]] = {}  # of those for whom they had to end: until when, and why

    def may_end(self, workload: Workload) -> bool:
        """Return whether all pods of a workload can be ended for others, as far as is known."""
        kinds = {_suspended_by(member.pod) for member in workload.pods} if workload.key in self._picture.gangs else {()}
        if kinds == {()}:
            return True
        if any(suspendable_owners.of_kueue(member.pod.metadata) for member in workload.pods):
            return False
        return all(not self._suspendable.isdisjoint(owners) for owners in kinds)

    def refused_for(self, workload: Key) -> float:
        """Return for how many seconds more a workload is not evicted because it could not be ended; 0 for none."""
        return self._refusals.left_alone_s(workload, asyncio.get_running_loop().time())

    def ended(self) -> tuple[tuple[Key, float], ...]:
        """Return the workloads that were evicted within the last minute, each with how many seconds ago."""
        now = asyncio.get_running_loop().time()
        self._ended = {workload: at for workload, at in self._ended.items() if now < at + MINUTE_S}
        return tuple((workload, now - at) for (workload, _), at in self._ended.items())

    def begin(self, workload: Key) -> None:
        """Begin the evictions for a workload, whatever was so of earlier ones."""
        self._stopped.pop(workload, None)

    async def ask(self, pods: Collection[Pod]) -> None:
        """Raise unless disruption budgets let all of these pods be evicted now.

        Raises:
            RefusedError: They do not, or nobody can tell.
            ApiError: The server refuses, other than for want of the right.
            Unreachable: No answer.
        """
        try:
            await self._ask(pods)
        except RefusedError:
            metrics.PREEMPTION_REFUSALS.inc()
            raise

    async def _ask(self, pods: Collection[Pod]) -> None:
        spaces: dict[str, list[Pod]] = {}
        evicted = {pod.metadata.uid for pod in pods if self._suspended_with(pod) is None}
        for pod in pods:
            spaces.setdefault(pod.metadata.namespace, []).append(pod)
        for some in spaces.values():
            try:
                await ask_budgets(self._client, some, evicted=evicted)
            except RefusedError as error:
                about = error.pods or {pod.metadata.uid for pod in some}
                for workload in {self._workload(pod) for pod in pods if pod.metadata.uid in about}:
                    self.refuse(workload)
                raise

    def refuse(self, workload: Key) -> None:
        """Note that a workload could not be evicted."""
        self._refusals.add(workload, asyncio.get_running_loop().time())

    def why_not(self, workload: Key) -> str:
        """Return why a recent eviction for a workload failed; empty if none did."""
        until, why = self._stopped.get(workload, (0.0, ""))
        return why if asyncio.get_running_loop().time() < until else ""

    def has_begun(self, pods: Iterable[Pod]) -> bool:
        """Return whether one of some pods was evicted, or its owner suspended, though no pod shows it yet."""
        suspended = self._restarts.suspended()
        for pod in pods:
            if (gang := self._suspended_with(pod)) is not None:
                if gang in suspended:
                    return True
            elif pod.metadata.uid in self._evicted:
                return True
        return False

    def untold(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return those of some pods that were not evicted a moment ago."""
        now = asyncio.get_running_loop().time()
        self._told = {uid: until for uid, until in self._told.items() if now < until}
        self._evicted = {uid: until for uid, until in self._evicted.items() if now < until}
        return tuple(pod for pod in pods if pod.metadata.uid not in self._told)

    async def end(
        self,
        workload: Key,
        pods: Sequence[Pod],
        *,
        last: Collection[str],
        stands: Callable[[], bool],
        begun: bool,
        until: float,
        why: str,
        go_on: Callable[[], None],
    ) -> None:
        """Evict pods that were not evicted yet.

        Nobody is told before the API server has accepted, in dry runs, every write that ends these pods, and unless
        they can end in time.

        Owners first, and nobody else before their pods go: what an owner refuses would have others end in vain. Those
        whose GPUs are wanted are last: once they are gone nobody would tell the others of their gangs.

        Args:
            workload: For whom.
            pods: The pods.
            last: Uids of those that have what is wanted.
            stands: Whether they have to end still: asked before each.
            begun: Whether others have begun to end: then it is tried again for as long as there is time.
            until: When the tentative placement for which they end is over, by the loop's clock.
            why: For whom, in words.
            go_on: Called before each further write.

        Raises:
            RefusedError: A pod's budget forbids it, or the controller may not end it, and nobody has begun to end.
            MovedOnError: A pod is not as it was seen.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        try:
            # If some have begun to end, the place is waited for in any case, but nobody else ends in vain.
            await self._check(pods, until=math.inf if begun else until, why=why, go_on=go_on)
            await self._end(pods, last=last, stands=stands, why=why, go_on=go_on)
        except RefusedError as error:
            metrics.PREEMPTION_REFUSALS.inc()
            if not (begun or self.has_begun(pods)):
                self._stopped = _noted(self._stopped, workload, str(error))
                raise
            logger.info("%s/%s: %s; trying again", *workload, error)
            again_at = asyncio.get_running_loop().time() + AGAIN_S
            self._told |= dict.fromkeys((pod.metadata.uid for pod in pods), again_at)

    async def _check(self, pods: Sequence[Pod], *, until: float, why: str, go_on: Callable[[], None]) -> None:
        """Raise unless all of these pods can end in time, as far as the API server can tell.

        A single write needs no dry run: if the server refuses it, nobody has ended. The real writes take as long as the
        dry runs did: a webhook that is slow or dead holds up each of them.
        """

        async def suspend(gang: Key, members: Sequence[Pod]) -> None:
            go_on()
            try:
                await self._restarts.check(gang, members, why)
            except RefusedError:
                self.refuse(gang)
                raise

        async def evict_one(pod: Pod) -> None:
            go_on()
            await self._evict(pod, why, dry_run=True)

        loop = asyncio.get_running_loop()
        began = loop.time()
        gangs, alone = self._split(pods)
        latest = until - max(pod.grace_s for pod in pods)
        try:
            if len(gangs) + len(alone) > 1:
                async with asyncio.timeout_at(None if math.isinf(latest) else latest):
                    await self._ask(pods)
                    dry_runs = [functools.partial(suspend, gang, members) for gang, members in gangs.items()]
                    await several_writes.each(dry_runs, at_once=AT_ONCE)
                    await several_writes.each((functools.partial(evict_one, pod) for pod in alone), at_once=AT_ONCE)
                go_on()
            late = 2 * loop.time() - began > latest
        except TimeoutError:
            late = True
        if late:
            for workload in {self._workload(pod) for pod in pods}:
                self.refuse(workload)
            raise RefusedError(LATE)

    def _split(self, pods: Iterable[Pod]) -> tuple[dict[Key, list[Pod]], list[Pod]]:
        """Return the pods that end by suspending an owner, by gang, and those that the Eviction API ends."""
        gangs: dict[Key, list[Pod]] = {}
        alone: list[Pod] = []
        for pod in pods:
            if (gang := self._suspended_with(pod)) is not None:
                gangs.setdefault(gang, []).append(pod)
            else:
                alone.append(pod)
        return gangs, alone

    async def _end(
        self,
        pods: Sequence[Pod],
        *,
        last: Collection[str],
        stands: Callable[[], bool],
        why: str,
        go_on: Callable[[], None],
    ) -> None:
        gangs, alone = self._split(pods)
        now = asyncio.get_running_loop().time()
        for gang, members in gangs.items():
            self._told |= dict.fromkeys((pod.metadata.uid for pod in members), now + ASKED_S)
            answer = self._restarts.ask(gang, members, why, wanted=stands, at_once=True)
            if answer and answer != DONE:
                self._restarts.take_back(gang)
                self.refuse(gang)
                self._ended.pop((gang, ""), None)
                raise RefusedError(answer)
            if answer:
                self._refusals.forget(gang)
            self._ended.setdefault((gang, ""), now)
        if gangs:
            self._told |= dict.fromkeys((pod.metadata.uid for pod in alone), now + ASKED_S)
            return  # it is looked at again

        async def evict_one(pod: Pod) -> None:
            go_on()
            if not stands():
                raise MovedOnError("nobody need end for it any more")
            await self._evict(pod, why)

        for is_last in (False, True):
            some = [pod for pod in alone if (pod.metadata.uid in last) == is_last]
            await several_writes.each((functools.partial(evict_one, pod) for pod in some), at_once=AT_ONCE)

    def _suspended_with(self, pod: Pod) -> Key | None:
        """Return the gang of a pod that ends by suspending its owner; None if the Eviction API ends the pod."""
        of = self._picture.gangs.of(_key(pod))
        return of.gang if of is not None and _suspended_by(pod) else None

    def _workload(self, pod: Pod) -> Key:
        """Return the key of the workload that a pod belongs to: of its gang, or its own."""
        of = self._picture.gangs.of(_key(pod))
        return _key(pod) if of is None else of.gang

    async def _evict(self, pod: Pod, why: str, *, dry_run: bool = False) -> None:
        namespace, name = key = _key(pod)
        known = self._picture.pods.get(key)
        if known is None or known.metadata.uid != pod.metadata.uid or known.metadata.deletion_timestamp is not None:
            return
        workload = self._workload(pod)
        refused = f"pod {shown(f'{namespace}/{name}')} may not be evicted"
        try:
            existed = await evict(
                self._client, known, as_seen=True, chart_value=CHART_VALUE, refused=refused, dry_run=dry_run
            )
        except RefusedError:
            self.refuse(workload)
            raise
        except ApiError as error:
            if error.conflict:
                raise MovedOnError(f"pod {namespace}/{name} was changed meanwhile") from None
            raise
        if dry_run:
            return
        self._told[pod.metadata.uid] = self._evicted[pod.metadata.uid] = asyncio.get_running_loop().time() + TOLD_S
        self._refusals.forget(workload)
        if not existed:  # a reflector will show that it is gone
            return
        now = asyncio.get_running_loop().time()
        self._ended.setdefault((workload, pod.metadata.uid if workload == key else ""), now)
        logger.info("pod %s/%s is evicted %s", namespace, name, why)
        metrics.PREEMPTED_PODS.inc()
        if self._record is not None:
            await self._record(pod, f"evicted {why}")


def _noted(known: dict[Key, tuple[float, str]], workload: Key, why: str) -> dict[Key, tuple[float, str]]:
    """Return what is noted for a while, with one more, and without what is over."""
    now = asyncio.get_running_loop().time()
    left = {key: each for key, each in known.items() if now < each[0]}
    return left | {workload: (now + REASON_S, why)}


def _suspended_by(pod: Pod) -> tuple[str, ...]:
    """Return of which kinds what is suspended for a pod can be; none where it is evicted rather.

    A JobSet's pods are made by its Jobs, and it may be a TrainJob's own.
    """
    kind = next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")
    if kind == "Job" and gang_owners.JOBSET + "jobset-name" in pod.metadata.labels:
        return "JobSet", "TrainJob"
    return (kind,) if kind in suspendable_owners.FIELDS else ()


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name
