"""Ends pods for workloads that need their GPUs: by the Eviction API, or by suspending the owner of a gang.

Preemption calls this module. Each call is safe to repeat. An eviction applies only to the pod version that was read, so
a pod that ends already is not evicted again. A suspended owner has a record of why it was suspended. Both ways respect
PodDisruptionBudgets.

A *workload* is a gang or a single pod. A *plan* is one preemption: the claims for a waiting workload, and its
*victims*, the pods that must end for them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload, lineage_of
from dradriver.controller import metrics
from dradriver.controller.owners.disruption_budgets import ask_budgets
from dradriver.controller.owners.evict_pods import evict
from dradriver.controller.owners.eviction_refusals import EvictionRefusals
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.owners.owner_suspension import DONE
from dradriver.controller.owners.workload_ends import may_end, pod_key, split, suspended_with, workload_of
from dradriver.controller.writing import several_writes
from dradriver.controller.writing.reasons import Record
from dradriver.controller.writing.write_outcome import MovedOnError, RefusedError
from dradriver.kube.client import ApiError, Client
from dradriver.queue.eviction_record import EvictionRecord
from dradriver.queue.namespace_tenants import MINUTE_S

logger = logging.getLogger(__name__)

REASON_S: Final = 60.0  # how long a workload is told why others could not be ended for it
ASKED_S: Final = 1.0  # after which the suspension of an owner is checked
AGAIN_S: Final = 5.0  # after which an eviction that was refused is tried again
TOLD_S: Final = 30.0  # for which a reflector may not show an eviction yet
CHART_VALUE: Final = "controller.preemption"
AT_ONCE: Final = 16  # writes of one plan
_UNSURE: Final = (500, 504)  # statuses that do not say whether the pod ends, as after a timeout of etcd
LATE: Final = (
    "The pods that must end for this one need longer than its tentative placement lasts. If this repeats, look for a "
    "webhook that answers slowly, or raise queue.preemption.marginSeconds."
)


class Evictions:
    """Evicts pods for other workloads, and remembers which workloads could not be evicted.

    All times are by the event loop's clock, in seconds.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        restarts: OwnerRestarts,
        evicted: EvictionRecord,
        *,
        suspendable: Collection[str] = (),
        record: Record | None = None,
    ) -> None:
        """Begin with no evictions.

        Args:
            client: The API server.
            picture: The cluster cache.
            restarts: Suspends and resumes owners.
            evicted: Records the workloads that were evicted.
            suspendable: Kinds of owners, such as Job, that the controller may suspend to end their pods.
            record: Writes an Event about an evicted pod; None for none.
        """
        self._client, self._picture, self._restarts, self._record = client, picture, restarts, record
        self._evicted = evicted
        self._suspendable = frozenset(suspendable)
        self._refusals = EvictionRefusals()  # workloads that could not be ended: how often, and a pause for each
        self._not_before: dict[str, float] = {}  # by pods' uids: when an eviction may be tried again
        self._evicted_until: dict[str, float] = {}  # by pods' uids: until when the cache may not show the eviction
        # By workload, and uid if it is a single pod: when it was first told to end, and the uid that stands for that.
        self._evicted_at: dict[tuple[Key, str], tuple[float, str]] = {}
        self._failures: dict[Key, tuple[float, str]] = {}  # by preempting workload: until when to tell why it failed

    def may_end(self, workload: Workload) -> bool:
        """Return whether the kinds of its owners let all pods of a workload be ended.

        Disruption budgets are not checked.
        """
        return may_end(self._picture, workload, self._suspendable)

    def refused_for(self, workload: Key) -> float:
        """Return how many seconds of a workload's pause are left; 0 without a pause.

        No eviction of the workload is tried during the pause, which follows a refused eviction.
        """
        return self._refusals.left_alone_s(workload, asyncio.get_running_loop().time())

    def refusals(self) -> dict[Key, int]:
        """Return how often in a row the eviction of each workload was refused.

        Old refusals are left out.
        """
        return self._refusals.times(asyncio.get_running_loop().time())

    def ended(self) -> tuple[tuple[Key, float], ...]:
        """Return the workloads that were evicted within the last minute.

        Each is returned with the seconds since its eviction.
        """
        now = asyncio.get_running_loop().time()
        self._evicted_at = {key: noted for key, noted in self._evicted_at.items() if now < noted[0] + MINUTE_S}
        return tuple((workload, now - at) for (workload, _), (at, _) in self._evicted_at.items())

    def _note(self, workload: Key, pod: Pod) -> tuple[Key, str] | None:
        """Record that a pod's workload was told to end; return the key of the record.

        The method ``_forget`` takes this key.

        Returns None if there is a record already. A gang gets one record for all its pods.
        """
        uid = pod.metadata.uid
        key = workload, uid if workload == pod_key(pod) else ""
        if key in self._evicted_at:
            return None
        self._evicted_at[key] = asyncio.get_running_loop().time(), uid
        self._evicted.add(Evicted(time.time(), uid, lineage_of(pod, workload)))
        return key

    def _forget(self, note: tuple[Key, str] | None) -> None:
        """Remove a record that ``_note`` made, because the eviction did not take place.

        Nothing is done for None.
        """
        if note in self._evicted_at:
            self._evicted.remove(self._evicted_at.pop(note)[1])

    def begin(self, workload: Key) -> None:
        """Forget why earlier evictions for a workload failed, because new ones begin."""
        self._failures.pop(workload, None)

    async def ask(self, pods: Collection[Pod]) -> None:
        """Raise unless disruption budgets let all of these pods be evicted now.

        Raises:
            RefusedError: The budgets do not let them, or the controller may not read budgets.
            ApiError: The server refuses for another reason than a missing permission.
            Unreachable: No answer.
        """
        try:
            await self._ask(pods)
        except RefusedError:
            metrics.PREEMPTION_REFUSALS.inc()
            raise

    async def _ask(self, pods: Collection[Pod]) -> None:
        """Do what ``ask`` does, but do not count a refusal in the metrics."""
        by_namespace: dict[str, list[Pod]] = {}
        for pod in pods:
            by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
        refusal: RefusedError | None = None
        for namespace, namespace_pods in by_namespace.items():
            asked = {pod.metadata.uid for pod in namespace_pods}
            others = (pod for pod in self._running(namespace) if pod.metadata.uid not in asked)
            try:
                await ask_budgets(
                    self._client,
                    namespace_pods,
                    is_evicted=lambda pod: suspended_with(self._picture, pod) is None,
                    others=others,
                )
            except RefusedError as error:
                refused = error.pods or asked
                pods_refused = (pod for pod in self._running(namespace) if pod.metadata.uid in refused)
                self.refuse({workload_of(self._picture, pod) for pod in pods_refused})
                refusal = refusal or error  # the other namespaces are asked all the same: the next plan is to know
        if refusal is not None:
            raise refusal

    def _running(self, namespace: str) -> Iterator[Pod]:
        """Yield the pods of a namespace that are bound to nodes and have not finished."""
        for key, pod in self._picture.pods.items():
            if key[0] == namespace and pod.spec.node_name and not pod.finished:
                yield pod

    def refuse(self, workloads: Iterable[Key]) -> None:
        """Note that the evictions of some workloads were refused.

        Preemption then prefers other victims.
        """
        self._refusals.add(workloads, asyncio.get_running_loop().time())

    def why_not(self, workload: Key) -> str:
        """Return why a recent eviction for a preempting workload failed; empty if none did.

        The text is for the workload that needs the GPUs.
        """
        until, why = self._failures.get(workload, (0.0, ""))
        return why if asyncio.get_running_loop().time() < until else ""

    def has_begun(self, pods: Iterable[Pod]) -> bool:
        """Return whether one of these pods was evicted, or its owner suspended.

        This can be true before the cluster cache shows it on any pod.
        """
        suspended = self._restarts.suspended()
        for pod in pods:
            if (gang := suspended_with(self._picture, pod)) is not None:
                if gang in suspended:
                    return True
            elif pod.metadata.uid in self._evicted_until:
                return True
        return False

    def untold(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return the pods among ``pods`` whose eviction may be tried now.

        Pods are left out for a while after a try, because the cluster cache may not show the result yet.
        """
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
        """End pods that make room for a workload.

        1. Dry runs of all writes must succeed, and the pods must be able to end before ``until``. Otherwise nothing is
           written.
        2. If some of the pods end by suspending their gang's owner, this call suspends these owners and evicts no pod.
           So if an owner cannot be suspended, no other pod has ended in vain.
        3. When the pods of these gangs end, the caller calls again with the other pods. This call evicts them. It
           evicts the pods in ``last`` after all others, because the caller does not call again once these are gone.

        Args:
            workload: The workload that needs the GPUs.
            pods: Its victims: pods that were not told to end yet.
            last: Uids of the pods that use the GPUs that the workload gets. Other pods must end only because they
                belong to the same gangs.
            stands: Returns whether the pods still have to end; called before each eviction.
            begun: Whether other pods of the plan have begun to end. A refusal is then tried again later, and ``until``
                does not count.
            until: When the workload's claims are deleted if pods still run, by the event loop's clock.
            why: For whom the pods end, for messages.
            go_on: Called before each further write. It raises PausedError if the API server wants a pause, and
                MovedOnError if a claim of the workload was revoked meanwhile.

        Raises:
            RefusedError: A budget forbids it, or the controller may not end a pod, and no pod has begun to end.
            MovedOnError: A pod has changed since it was read, or ``go_on`` raises it.
            PausedError: ``go_on`` raises it.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        try:
            # If some pods end already, the workload waits for the place however long it takes: no deadline then. The
            # dry runs are still made, so that no other pod ends for nothing. ``_check`` writes nothing, ``_end`` does.
            await self._check(pods, until=math.inf if begun else until, why=why, go_on=go_on)
            await self._end(pods, last=last, stands=stands, why=why, go_on=go_on)
        except RefusedError as error:
            metrics.PREEMPTION_REFUSALS.inc()
            # No pod ends yet: give up. The caller revokes the placement, and ``why_not`` returns the error for it.
            if not (begun or self.has_begun(pods)):
                self._failures = _noted(self._failures, workload, str(error))
                raise
            # Some pods end already, so giving up would waste their GPUs.
            logger.info("%s/%s: %s. It is tried again.", *workload, error)
            self._wait_with(pods, AGAIN_S)

    def _wait_with(self, pods: Iterable[Pod], seconds: float) -> None:
        """Let ``untold`` leave out these pods for some seconds, so that no eviction is tried."""
        not_before = asyncio.get_running_loop().time() + seconds
        self._not_before |= dict.fromkeys((pod.metadata.uid for pod in pods), not_before)

    async def _check(self, pods: Sequence[Pod], *, until: float, why: str, go_on: Callable[[], None]) -> None:
        """Raise unless all of these pods can end in time, according to dry runs.

        A single write needs no dry run: if the server refuses it, no pod has ended. The real writes are expected to
        take as long as the dry runs, because a slow webhook delays both.

        Args:
            pods: The pods that must end.
            until: When the GPUs must be free, by the event loop's clock.
            why: For whom the pods end, for messages.
            go_on: Called before each dry run; raises an error to stop.

        Raises:
            RefusedError: The pods cannot end, or not before ``until``.
        """

        async def try_suspension(gang: Key, members: Sequence[Pod]) -> None:
            go_on()
            try:
                await self._restarts.check(gang, members, why)  # a dry run
            except RefusedError:
                self.refuse([gang])
                raise

        async def try_eviction(pod: Pod) -> None:
            go_on()
            await self._evict(pod, why, dry_run=True)

        loop = asyncio.get_running_loop()
        began = loop.time()
        gangs, single_pods = split(self._picture, pods)  # ended by suspending their owners, and by the Eviction API
        # Pods may use their whole grace period after the last write.
        last_write = until - max(pod.grace_s for pod in pods)
        try:
            if len(gangs) + len(single_pods) > 1:
                async with asyncio.timeout_at(None if math.isinf(last_write) else last_write):
                    await self._ask(pods)  # whether disruption budgets let all of them end together
                    suspensions = [functools.partial(try_suspension, gang, members) for gang, members in gangs.items()]
                    await several_writes.each(suspensions, at_once=AT_ONCE)
                    evictions = [functools.partial(try_eviction, pod) for pod in single_pods]
                    await several_writes.each(evictions, at_once=AT_ONCE)
                go_on()
            duration_s = loop.time() - began
            is_late = loop.time() + duration_s > last_write
        except TimeoutError:
            is_late = True
        if is_late:
            self.refuse(workload_of(self._picture, pod) for pod in pods)
            raise RefusedError(LATE)

    async def _end(
        self,
        pods: Sequence[Pod],
        *,
        last: Collection[str],
        stands: Callable[[], bool],
        why: str,
        go_on: Callable[[], None],
    ) -> None:
        """Suspend the owners of gangs among the pods; if there are no gangs, evict the pods.

        If there are gangs, no pod is evicted now. The caller calls ``end`` again for the other pods.

        Args:
            pods: The pods that must end.
            last: Uids of the pods that are evicted after all others.
            stands: Returns whether the pods still have to end.
            why: For whom the pods end, for messages.
            go_on: Called before each eviction; raises an error to stop.

        Raises:
            RefusedError: An owner cannot be suspended, or a pod cannot be evicted.
            MovedOnError: The pods need not end any more, or a pod has changed since it was read.
        """
        gangs, single_pods = split(self._picture, pods)  # ended by suspending their owners, and by the Eviction API
        for gang, members in gangs.items():
            self._suspend(gang, members, stands, why)  # only requests it: ``OwnerRestarts`` suspends the owner later
        if gangs:
            # The single pods are evicted in a later call, once the pods of the gangs go. ``untold`` has them again
            # after ``ASKED_S``, and the caller calls ``end`` for those.
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
        """Ask to suspend the owner of a gang's pods, unless that has been done.

        ``why`` is written on the owner. ``stands`` returns whether the pods still have to end.

        Raises:
            RefusedError: The owner cannot be suspended.
        """
        self._wait_with(members, ASKED_S)
        answer = self._restarts.ask(gang, members, why, is_needed=stands, at_once=True)
        if answer and answer != DONE:
            self._restarts.take_back(gang)
            self.refuse([gang])
            self._forget((gang, ""))
            raise RefusedError(answer)
        if answer:
            self._refusals.forget(gang)
        self._note(gang, members[0])

    async def _evict(self, pod: Pod, why: str, *, dry_run: bool = False) -> None:
        """Evict a pod, and note the eviction or its refusal.

        Nothing is done if the pod is gone or is being deleted. ``why`` says for whom the pod ends, for messages. With
        ``dry_run`` the server only checks the eviction.

        Raises:
            RefusedError: The pod cannot be evicted.
            MovedOnError: The pod has changed since it was read.
        """
        # ``pod`` is as the plan saw it. Only the current version of the same pod is evicted (``as_seen``).
        namespace, name = key = pod_key(pod)
        current = self._picture.pods.get(key)
        if (
            current is None
            or current.metadata.uid != pod.metadata.uid
            or current.metadata.deletion_timestamp is not None
        ):
            return
        workload = workload_of(self._picture, pod)  # the key of its gang, or its own
        refused = f"Pod {shown(f'{namespace}/{name}')} cannot be evicted"
        # The eviction counts against those of this minute, once for a gang, from before it is sent: the answer can be
        # late or lost.
        note = None if dry_run else self._note(workload, pod)
        try:
            existed = await evict(
                self._client, current, as_seen=True, chart_value=CHART_VALUE, refused=refused, dry_run=dry_run
            )
        except RefusedError:
            self._forget(note)
            self.refuse([workload])
            raise
        except ApiError as error:
            if error.status not in _UNSURE:
                self._forget(note)
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
            self._forget(note)
            return
        self._note(workload, pod)  # again, in case another pod of its gang was refused meanwhile
        logger.info("pod %s/%s is evicted %s", namespace, name, why)
        metrics.PREEMPTED_PODS.inc()
        if self._record is not None:
            await self._record(pod, f"The controller evicted this pod {why}.")


def _noted(failures: dict[Key, tuple[float, str]], workload: Key, why: str) -> dict[Key, tuple[float, str]]:
    """Return the reasons for failed evictions, with a new one added and old ones removed.

    The reasons are kept by the workload that needed the GPUs. ``why`` is the new reason, for ``workload``. A reason is
    old once it need not be shown to users any more.
    """
    now = asyncio.get_running_loop().time()
    current = {key: failure for key, failure in failures.items() if now < failure[0]}
    return current | {workload: (now + REASON_S, why)}
