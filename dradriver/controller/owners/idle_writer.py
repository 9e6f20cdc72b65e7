"""Ends idle workloads: a pod by the Eviction API, a gang or the pods of a Job by suspending their owner.

A workload is *idle* if the node agents report that the GPUs of all its claims are idle. ``IdlePods`` calls this module.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims import idleness
from dradriver.api.claims.pins import Claim, Key
from dradriver.api.gangs import suspendable_owners
from dradriver.cluster.derived.workloads import Workload, suspendable_owner
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.owners.disruption_budgets import ask_budgets
from dradriver.controller.owners.evict_pods import evict, not_permitted
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.topmost_owner import Top, top_of
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS

logger = logging.getLogger(__name__)

CHART_VALUE: Final = "controller.idleEviction"


class IdleWriter:
    """Writes warnings on idle pods and ends idle workloads, for ``IdlePods``."""

    def __init__(
        self, client: Client, kinds: OwnerKinds, pods: Mapping[Key, Pod], *, clock: Callable[[], float]
    ) -> None:
        """Make a writer that has written nothing.

        Args:
            client: The API server.
            kinds: The versions in which the server has kinds of owners.
            pods: All current pods that request GPUs.
            clock: Gives seconds since the epoch, to write on a suspended owner when it was suspended.
        """
        self._client, self._kinds, self._pods, self._clock = client, kinds, pods, clock

    async def mark(self, pod: Pod, claim: ClaimRecord, end: datetime.datetime | None) -> None:
        """Write on an idle pod and its claim at which time the pod will end.

        ``end`` is this time; None removes the warning. The claim is written last: the annotation on the claim is the
        one that counts. It also makes the node agent confirm that the GPUs are idle.

        Raises:
            ApiError: The server refuses; ``conflict`` if the pod or the claim was replaced.
            Unreachable: No answer.
        """
        change = idleness.question(end)
        for resource, metadata in ((PODS, pod.metadata), (RESOURCE_CLAIMS, claim.metadata)):
            body = {"metadata": change["metadata"] | {"uid": metadata.uid}}
            await self._client.patch(
                resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, type=msgspec.Raw
            )

    async def still_idle(self, workload: Workload) -> bool:
        """Return whether the API server shows all claims of a workload as idle.

        The idle periods must have begun at the same times as in the cluster cache.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        for known in (member.claim for member in workload.pods):
            if known is None or known.idle is None:
                return False
            try:
                claim = await self._client.get(
                    RESOURCE_CLAIMS, known.metadata.name, namespace=known.metadata.namespace, type=Claim
                )
            except ApiError as error:
                if error.not_found:
                    return False
                raise
            idle = idleness.idle_of(claim)
            if claim.metadata.uid != known.uid or idle is None or idle.since != known.idle.since:
                return False
        return True

    async def end(self, workload: Workload, why: str, *, ending: Collection[str]) -> bool:
        """End all pods of a workload, and return whether this call did it.

        It returns False if the pods of a group are no longer idle, or if their owner was already suspended as idle. A
        single pod is evicted without another check.

        Args:
            workload: The workload.
            why: The reason that users see.
            ending: Uids of all pods that must end now, of all workloads. An owner is suspended only if all of its pods
                are among them.

        Raises:
            RefusedError: The pods cannot be ended, or not now. Its text says why, and what helps.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        pods = [member.pod for member in workload.pods]
        # 1. A pod alone: one request, at once. The caller has asked ``still_idle`` a short time ago.
        if not workload.is_group:
            await self._evict(pods[0], why)
            return True

        # 2. A group ends by suspending its topmost owner (``top_of`` reads it), for example the JobSet of a Job.
        #    ``suspendable_owner`` returns the uid of what made a pod; empty if that cannot be suspended.
        if not all(map(suspendable_owner, pods)):
            raise RefusedError(
                "A gang ends as a whole when its owner is suspended. This owner cannot be suspended. Delete it."
            )
        top = await top_of(self._client, self._kinds, pods)
        owner_kind, metadata = top.resource.kind, top.owner.metadata
        # ``_suspend`` has suspended it already, for this workload or another one of the owner.
        if top.owner.suspended and names.IDLE in metadata.annotations:
            return False
        if refusal := suspendable_owners.obstacle(owner_kind, top.owner):
            raise RefusedError(refusal)
        # 3. Suspending the owner ends all of its pods. So all must be about to end, and all budgets must allow it.
        owned_pods = [
            pod
            for pod in self._pods.values()
            if not pod.finished and suspendable_owners.belongs(pod, owner_kind, metadata)
        ]
        if any(pod.metadata.uid not in ending for pod in owned_pods):
            raise RefusedError(f"{top} has other pods, which must not end now.")
        # If the cluster cache has no pod of the owner any more, the server is asked about those that the workload had.
        await ask_budgets(self._client, owned_pods or pods)
        # 4. The requests above may have taken long: the pods may be busy again.
        if not await self.still_idle(workload):
            return False
        await self._suspend(top, why)
        return True

    async def _suspend(self, top: Top, why: str) -> None:
        """Suspend the owner ``top``, with a note of the reason ``why``.

        The controller does not resume an owner that it suspended for idle GPUs.
        """
        metadata = top.owner.metadata
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        body = suspendable_owners.rest(top.resource.kind, top.owner, why=why, now=now)
        try:
            await self._client.patch(
                top.resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, type=msgspec.Raw
            )
        except ApiError as error:
            if not error.forbidden:
                raise
            right = suspendable_owners.grant(top.resource.kind, "suspend")
            raise not_permitted(error, f"suspend {top}", f"{right}, or suspend it yourself") from None
        logger.info("%s of namespace %s is suspended: %s", top, metadata.namespace, why)

    async def _evict(self, pod: Pod, why: str) -> None:
        refused = "its PodDisruptionBudget does not let it end now"
        if await evict(self._client, pod, as_seen=False, chart_value=CHART_VALUE, refused=refused):
            logger.info("pod %s/%s is evicted: %s", pod.metadata.namespace, pod.metadata.name, why)
