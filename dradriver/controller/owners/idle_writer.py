"""Ends units for being idle: a pod by the Eviction API, a gang or a Job's pods by suspending what made them."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims import idleness
from dradriver.api.claims.pins import Claim, Key
from dradriver.api.gangs import suspends
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.owners.budgets import ask_budgets, evict, not_permitted
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_tops import Top, top_of
from dradriver.controller.steps.idle_units import Unit, suspended_owner
from dradriver.controller.writing.outcome import RefusedError
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS

logger = logging.getLogger(__name__)

CHART_VALUE: Final = "controller.evictions"


class IdleWriter:
    """What is written for idle pods."""

    def __init__(self, client: Client, kinds: OwnerKinds, pods: Mapping[Key, Pod]) -> None:
        """Write nothing yet.

        Args:
            client: The API server.
            kinds: In which versions it has owners.
            pods: All pods of ours that there are, up to date.
        """
        self._client, self._kinds, self._pods = client, kinds, pods

    async def mark(self, pod: Pod, claim: ClaimRecord, end: datetime.datetime | None) -> None:
        """Say on a pod and its claim when the pod is ended; None takes it away.

        The claim is written last: only there it counts, and only there its agent sees that it is asked.

        Raises:
            ApiError: The server refuses; ``conflict`` where one of them is another by now.
            Unreachable: No answer.
        """
        change = idleness.question(end)
        for resource, metadata in ((PODS, pod.metadata), (RESOURCE_CLAIMS, claim.metadata)):
            body = {"metadata": change["metadata"] | {"uid": metadata.uid}}
            await self._client.patch(
                resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, type=msgspec.Raw
            )

    async def still_idle(self, unit: Unit) -> bool:
        """Return whether the claims of a unit say now, by the server itself, what they are known here to say.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        for _, known in unit.pods:
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
            said = idleness.idle_of(claim)
            if claim.metadata.uid != known.uid or said is None or said.since != known.idle.since:
                return False
        return True

    async def end(self, unit: Unit, why: str, *, ripe: Collection[str]) -> bool:
        """End all pods of a unit. Returns whether they were to end still, and not with another unit already.

        Args:
            unit: The unit.
            why: Why, for people.
            ripe: Uids of all pods that are to end now, of this unit and others: an owner may have several.

        Raises:
            RefusedError: They cannot be ended, or not now; it says why, and what to do.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        pods = [pod for pod, _ in unit.pods]
        if not unit.suspended:
            await self._evict(pods[0], why)
            return True
        if not all(map(suspended_owner, pods)):
            raise RefusedError(
                "a gang ends as a whole, by suspending what made it, which cannot be: delete that yourself"
            )
        top = await top_of(self._client, self._kinds, pods)
        kind, metadata = top.resource.kind, top.found.metadata
        if top.found.suspended and names.IDLE in metadata.annotations:
            return False
        if refusal := suspends.obstacle(kind, top.found):
            raise RefusedError(refusal)
        every = [pod for pod in self._pods.values() if not pod.finished and suspends.belongs(pod, kind, metadata)]
        if any(pod.metadata.uid not in ripe for pod in every):
            raise RefusedError(f"{top} has other pods, which are not to end now")
        await ask_budgets(self._client, every or pods)
        if not await self.still_idle(unit):  # all of this may have taken long
            return False
        await self._rest(top, why)
        return True

    async def _rest(self, top: Top, why: str) -> None:
        metadata = top.found.metadata
        body = suspends.rest(top.resource.kind, top.found, why=why, now=datetime.datetime.now(datetime.UTC))
        try:
            await self._client.patch(
                top.resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, type=msgspec.Raw
            )
        except ApiError as error:
            if not error.forbidden:
                raise
            right = suspends.grant(top.resource.kind, "suspend")
            raise not_permitted(error, f"suspend {top}", f"{right}, or suspend it yourself") from None
        logger.info("%s of namespace %s is suspended: %s", top, metadata.namespace, why)

    async def _evict(self, pod: Pod, why: str) -> None:
        refused = "its PodDisruptionBudget does not let it end now"
        if await evict(self._client, pod, as_seen=False, chart_value=CHART_VALUE, refused=refused):
            logger.info("pod %s/%s is evicted: %s", pod.metadata.namespace, pod.metadata.name, why)
