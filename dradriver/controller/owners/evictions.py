"""Ends pods for workloads that need their GPUs: by the Eviction API, or by suspending the owner of a gang.

Preemption calls this module. Each call is safe to repeat: an eviction applies only to the pod version that was read, so
a pod that ends already is not evicted again, and an owner has a record of why it was suspended. Disruption budgets
count for both.
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

REASON_S: Final = 60.0  # how long a workload is told why others could not be ended for it
ASKED_S: Final = 1.0  # after which the suspension of an owner is checked
AGAIN_S: Final = 5.0  # after which an eviction that was refused is tried again
TOLD_S: Final = 30.0  # for which a reflector may not show an eviction yet
CHART_VALUE: Final = "controller.preemption"
AT_ONCE: Final = 16  # writes of one plan
LATE: Final = (
    "the pods that must end for it need longer than its tentative placement lasts. If this repeats, look for a webhook "
    "that answers slowly, or raise queue.preemption.marginSeconds"
)


class Evictions:
    """Evicts pods for other workloads, and remembers which could not be evicted.

    All times are seconds of the event loop's clock.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        restarts: OwnerRestarts,
        *,
        suspendable: Collection[str] = (),
        record: Record | None = None,
    ) -> None:
        """Begin with no evictions.

        Args:
            client: The API server.
            picture: The cluster cache.
            restarts: Suspends and resumes owners.
            suspendable: Kinds of owners that the controller may suspend.
            record: Writes an Event about an evicted pod; None for none.
        """
        self._client, self._picture, self._restarts, self._record = client, picture, restarts, record
        self._suspendable = frozenset(suspendable)
        self._refusals = EvictionRefusals()
        self._not_before: dict[str, float] = {}  # by pods' uids: when an eviction may be tried again
        self._evicted_until: dict[str, float] = {}  # by pods' uids: until when the cache may not show the eviction
        self._evicted_at: dict[tuple[Key, str], float] = {}  # first time by workload, and uid if it is a single pod
        self._failures: dict[Key, tuple[float, str]] = {}  # by preempting workload: until when to tell why it failed

    def may_end(self, workload: Workload) -> bool:
        """Return whether all pods of a workload can be evicted for others, as far as is known."""
        if workload.key not in self._picture.gangs:
            return True
        owner_kinds = {_suspended_by(member.pod) for member in workload.pods}
        if owner_kinds == {()}:  # the Eviction API ends all of them
            return True
        if any(suspendable_owners.of_kueue(member.pod.metadata) for member in workload.pods):
            return False
        return all(not self._suspendable.isdisjoint(kinds) for kinds in owner_kinds)

    def refused_for(self, workload: Key) -> float:
        """Return for how many seconds more a workload is not evicted because it could not be ended; 0 for none."""
        return self._refusals.left_alone_s(workload, asyncio.get_running_loop().time())

    def ended(self) -> tuple[tuple[Key, float], ...]:
        """Return the workloads that were evicted within the last minute, each with how many seconds ago."""
        now = asyncio.get_running_loop().time()
        self._evicted_at = {workload: at for workload, at in self._evicted_at.items() if now < at + MINUTE_S}
        return tuple((workload, now - at) for (workload, _), at in self._evicted_at.items())

    def begin(self, workload: Key) -> None:
        """Begin the evictions for a workload: forget why earlier ones failed."""
        self._failures.pop(workload, None)

    async def ask(self, pods: Collection[Pod]) -> None:
        """Raise unless disruption budgets let all of these pods be evicted now.

        Raises:
            RefusedError: They do not, or the controller may not read them.
            ApiError: The server refuses for another reason than a missing permission.
            Unreachable: No answer.
        """
        try:
            await self._ask(pods)
        except RefusedError:
            metrics.PREEMPTION_REFUSALS.inc()
            raise

    async def _ask(self, pods: Collection[Pod]) -> None:
        """Do the same without counting a refusal in the metrics."""
        by_namespace: dict[str, list[Pod]] = {}
        for pod in pods:
            by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
        evicted = {pod.metadata.uid for pod in pods if self._suspended_with(pod) is None}
        for namespace_pods in by_namespace.values():
            try:
                await ask_budgets(self._client, namespace_pods, evicted=evicted)
            except RefusedError as error:
                refused_uids = error.pods or {pod.metadata.uid for pod in namespace_pods}
                for workload in {self._workload(pod) for pod in pods if pod.metadata.uid in refused_uids}:
                    self.refuse(workload)
                raise

    def refuse(self, workload: Key) -> None:
        """Note that a workload could not be evicted."""
        self._refusals.add(workload, asyncio.get_running_loop().time())

    def why_not(self, workload: Key) -> str:
        """Return why a recent eviction for a workload failed; empty if none did."""
        until, why = self._failures.get(workload, (0.0, ""))
        return why if asyncio.get_running_loop().time() < until else ""

    def has_begun(self, pods: Iterable[Pod]) -> bool:
        """Return whether one of these pods was evicted, or its owner suspended, even if no pod shows it yet."""
        suspended = self._restarts.suspended()
        for pod in pods:
            if (gang := self._suspended_with(pod)) is not None:
                if gang in suspended:
                    return True
            elif pod.metadata.uid in self._evicted_until:
                return True
        return False

    def untold(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return those pods whose eviction may be tried now: it was not tried a moment ago."""
        now = asyncio.get_running_loop().time()
        self._not_before = {uid: until for uid, until in self._not_before.items() if now < until}
        self._evicted_until = {uid: until for uid, until in self._evicted_until.items() if now < until}
        return tuple(pod for pod in pods if pod.metadata.uid not in self._not_before)

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
        """End pods that make room for a workload, by suspending their owners or by the Eviction API.

        1. A dry run of every write must succeed, and the pods must be able to end before ``until``.
        2. Owners are suspended. An owner that refuses stops everything, so no other pod ends for nothing.
        3. Once their pods go (this is called again then), the other pods are evicted, those in ``last`` at the end.
           Once those are gone, the plan is fulfilled, and no call would come for the rest of their gangs.

        Args:
            workload: The workload that needs the GPUs.
            pods: The pods.
            last: Uids of the pods that use these GPUs.
            stands: Returns whether the pods still have to end; called before each eviction.
            begun: Whether other pods of the plan have begun to end. A refusal is then tried again later.
            until: When the workload's tentative placement ends, by the loop's clock.
            why: The text about the workload for messages.
            go_on: Called before each further write.

        Raises:
            RefusedError: A budget forbids it, or the controller may not end a pod, and no pod has begun to end.
            MovedOnError: A pod is not as it was seen.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        try:
            # If some pods end already, the workload waits for the place however long it takes: no deadline then. The
            # dry runs are still made, so that no other pod ends for nothing.
            await self._check(pods, until=math.inf if begun else until, why=why, go_on=go_on)
            await self._end(pods, last=last, stands=stands, why=why, go_on=go_on)
        except RefusedError as error:
            metrics.PREEMPTION_REFUSALS.inc()
            if not (begun or self.has_begun(pods)):
                self._failures = _noted(self._failures, workload, str(error))
                raise
            logger.info("%s/%s: %s; trying again", *workload, error)
            self._wait_with(pods, AGAIN_S)

    def _wait_with(self, pods: Iterable[Pod], seconds: float) -> None:
        """Have ``untold`` leave out pods for some seconds."""
        not_before = asyncio.get_running_loop().time() + seconds
        self._not_before |= dict.fromkeys((pod.metadata.uid for pod in pods), not_before)

    async def _check(self, pods: Sequence[Pod], *, until: float, why: str, go_on: Callable[[], None]) -> None:
        """Raise unless all of these pods can end in time, as far as the API server can tell.

        A single write needs no dry run: if the server refuses it, no pod has ended. The real writes take as long as the
        dry runs did: a webhook that is slow or dead delays each of them.

        Raises:
            RefusedError: They cannot, or not before ``until``.
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
        gangs, single_pods = self._split(pods)
        # Pods may use their whole grace period after the last write.
        last_write = until - max(pod.grace_s for pod in pods)
        try:
            if len(gangs) + len(single_pods) > 1:
                async with asyncio.timeout_at(None if math.isinf(last_write) else last_write):
                    await self._ask(pods)
                    suspensions = [functools.partial(suspend, gang, members) for gang, members in gangs.items()]
                    await several_writes.each(suspensions, at_once=AT_ONCE)
                    evictions = [functools.partial(evict_one, pod) for pod in single_pods]
                    await several_writes.each(evictions, at_once=AT_ONCE)
                go_on()
            duration_s = loop.time() - began
            is_late = loop.time() + duration_s > last_write
        except TimeoutError:
            is_late = True
        if is_late:
            for workload in {self._workload(pod) for pod in pods}:
                self.refuse(workload)
            raise RefusedError(LATE)

    def _split(self, pods: Iterable[Pod]) -> tuple[dict[Key, list[Pod]], list[Pod]]:
        """Return the pods that end by suspending an owner, by gang, and those that the Eviction API ends."""
        gangs: dict[Key, list[Pod]] = {}
        single_pods: list[Pod] = []
        for pod in pods:
            if (gang := self._suspended_with(pod)) is not None:
                gangs.setdefault(gang, []).append(pod)
            else:
                single_pods.append(pod)
        return gangs, single_pods

    async def _end(
        self,
        pods: Sequence[Pod],
        *,
        last: Collection[str],
        stands: Callable[[], bool],
        why: str,
        go_on: Callable[[], None],
    ) -> None:
        """Suspend owners, or, if there are none, evict pods. ``end`` documents the arguments.

        Raises:
            RefusedError: An owner cannot be suspended, or a pod cannot be evicted.
            MovedOnError: The pods need not end any more, or a pod is not as it was seen.
        """
        gangs, single_pods = self._split(pods)
        for gang, members in gangs.items():
            self._suspend(gang, members, stands, why)
        if gangs:
            # The single pods are evicted in a later call, once the pods of the gangs go.
            self._wait_with(single_pods, ASKED_S)
            return

        async def evict_one(pod: Pod) -> None:
            go_on()
            if not stands():
                raise MovedOnError("nobody need end for it any more")
            await self._evict(pod, why)

        # The pods in ``last`` are evicted after all others.
        for is_last in (False, True):
            evictions = [functools.partial(evict_one, pod) for pod in pods if (pod.metadata.uid in last) == is_last]
            await several_writes.each(evictions, at_once=AT_ONCE)

    def _suspend(self, gang: Key, members: Sequence[Pod], stands: Callable[[], bool], why: str) -> None:
        """Have the owner of a gang's pods suspended, if it is not already.

        Raises:
            RefusedError: It cannot be suspended.
        """
        self._wait_with(members, ASKED_S)
        answer = self._restarts.ask(gang, members, why, wanted=stands, at_once=True)
        if answer and answer != DONE:
            self._restarts.take_back(gang)
            self.refuse(gang)
            self._evicted_at.pop((gang, ""), None)
            raise RefusedError(answer)
        if answer:
            self._refusals.forget(gang)
        self._evicted_at.setdefault((gang, ""), asyncio.get_running_loop().time())

    def _suspended_with(self, pod: Pod) -> Key | None:
        """Return the gang of a pod that ends by suspending its owner; None if the Eviction API ends the pod."""
        membership = self._picture.gangs.of(_key(pod))
        return membership.gang if membership is not None and _suspended_by(pod) else None

    def _workload(self, pod: Pod) -> Key:
        """Return the key of the workload that a pod belongs to: of its gang, or its own."""
        membership = self._picture.gangs.of(_key(pod))
        return _key(pod) if membership is None else membership.gang

    async def _evict(self, pod: Pod, why: str, *, dry_run: bool = False) -> None:
        """Evict a pod unless it is gone or ends already; note the eviction, or its refusal.

        Raises:
            RefusedError: It cannot be evicted.
            MovedOnError: It has changed since it was read.
        """
        namespace, name = key = _key(pod)
        current = self._picture.pods.get(key)
        if (
            current is None
            or current.metadata.uid != pod.metadata.uid
            or current.metadata.deletion_timestamp is not None
        ):
            return
        workload = self._workload(pod)
        refused = f"pod {shown(f'{namespace}/{name}')} may not be evicted"
        try:
            existed = await evict(
                self._client, current, as_seen=True, chart_value=CHART_VALUE, refused=refused, dry_run=dry_run
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

        # The cluster cache may not show the eviction yet. Until then the pod counts as evicted, and is left alone.
        now = asyncio.get_running_loop().time()
        self._not_before[pod.metadata.uid] = self._evicted_until[pod.metadata.uid] = now + TOLD_S
        self._refusals.forget(workload)
        if not existed:  # the cluster cache will soon show that it is gone
            return
        self._evicted_at.setdefault((workload, pod.metadata.uid if workload == key else ""), now)
        logger.info("pod %s/%s is evicted %s", namespace, name, why)
        metrics.PREEMPTED_PODS.inc()
        if self._record is not None:
            await self._record(pod, f"evicted {why}")


def _noted(failures: dict[Key, tuple[float, str]], workload: Key, why: str) -> dict[Key, tuple[float, str]]:
    """Return the failures that are still told, and a new one of a workload."""
    now = asyncio.get_running_loop().time()
    current = {key: failure for key, failure in failures.items() if now < failure[0]}
    return current | {workload: (now + REASON_S, why)}


def _suspended_by(pod: Pod) -> tuple[str, ...]:
    """Return the possible kinds of the owner that is suspended to end a pod; empty if the pod is evicted instead.

    The Jobs of a JobSet make its pods, and a TrainJob can have made the JobSet.
    """
    kind = next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")
    if kind == "Job" and gang_owners.JOBSET + "jobset-name" in pod.metadata.labels:
        return "JobSet", "TrainJob"
    return (kind,) if kind in suspendable_owners.FIELDS else ()


def _key(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name
