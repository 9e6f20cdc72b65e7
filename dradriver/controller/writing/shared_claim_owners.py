"""Adds pods to the owners of the claims that they share, before their gates are removed.

Kubernetes deletes a claim when its last owner is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder
from dradriver.api.claims.pins import Claim, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.records import ClaimRecord, claim_record
from dradriver.controller.writing.write_outcome import MovedOnError
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import RESOURCE_CLAIMS


class _Batch(msgspec.Struct):
    """Pods that one write adds to the owners of a claim, and its task."""

    pods: dict[str, Pod]
    task: asyncio.Task[ClaimRecord]


class Owners:
    """Adds pods to the owners of claims that they share.

    Each claim gets one patch at a time, with all pods that wait for it. With one patch for each pod, hundreds of
    patches would conflict with each other. They would also conflict with the scheduler, which writes the claim for each
    pod that it binds.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        *,
        look: Callable[[Key], Awaitable[ClaimRecord | None]],
        check_pause: Callable[[], None],
    ) -> None:
        """Store the arguments; write nothing yet.

        Args:
            client: The API server.
            picture: The cluster cache.
            look: Reads a claim from the server into the cluster cache.
            check_pause: Raises ``PausedError`` while the server wants a pause.
        """
        self._client = client
        self._picture = picture
        self._look = look
        self._check_pause = check_pause
        self._gathering: dict[str, _Batch] = {}  # by the claim's uid: pods that the next write adds
        self._writing: dict[str, asyncio.Task[ClaimRecord]] = {}  # by the claim's uid: the write that runs now

    async def adopt(self, pod: Pod, uid: str) -> ClaimRecord:
        """Add a pod to the owners of the claim that it shares; return the claim.

        ``uid`` is the claim's uid.

        Raises:
            MovedOnError: The claim was replaced or deleted.
            PausedError: The server wants a pause; nothing was written.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        known = self._known(pod, uid)
        if known.owned_by(pod.metadata.uid):
            return known
        batch = self._gathering.get(uid)
        if batch is None or batch.task.done():
            pods: dict[str, Pod] = {}
            batch = _Batch(pods, asyncio.create_task(self._write(uid, pods)))
            self._gathering[uid] = batch
        batch.pods[pod.metadata.uid] = pod
        return await batch.task  # whoever is cancelled is so with all others

    def _known(self, pod: Pod, uid: str) -> ClaimRecord:
        known = self._picture.claim_of(pod)
        if known is None or known.uid != uid:
            raise MovedOnError(f"the claim of pod {pod.metadata.namespace}/{pod.metadata.name} is another by now")
        return known

    async def _write(self, uid: str, pods: dict[str, Pod]) -> ClaimRecord:
        """Write a batch after the previous batch of the same claim is written.

        Until then, ``adopt`` adds more pods to ``pods``. ``uid`` is the claim's uid.
        """
        if (before := self._writing.get(uid)) is not None:
            await asyncio.wait([before])
        self._writing[uid] = self._gathering.pop(uid).task
        try:
            return await self._patch(uid, list(pods.values()))
        finally:
            del self._writing[uid]

    async def _patch(self, uid: str, pods: list[Pod]) -> ClaimRecord:
        """Add pods to the owners of the claim ``uid``, and remove owners that are gone.

        Returns the claim. If no owner is removed, the patch only appends the new ones, so it works even if the claim
        has changed otherwise. If an owner is removed, the patch replaces the list. It then fails if the claim has
        changed since it was read.
        """
        self._check_pause()
        known = self._known(pods[0], uid)
        namespace, name = known.key
        patch = Patch().test("metadata", "uid", value=uid)
        new = [pod for pod in pods if not known.owned_by(pod.metadata.uid)]
        if not new:
            return known
        added = [claim_builder.owner(pod.metadata.name, pod.metadata.uid) for pod in new]
        staying = self._picture.claim_users.staying(known)
        if staying and staying == known.owners:
            for new_owner in added:
                patch.add("metadata", "ownerReferences", "-", value=new_owner)
        else:
            patch.test("metadata", "resourceVersion", value=known.metadata.resource_version)
            patch.add(
                "metadata", "ownerReferences", value=[*(claim_builder.owner(*owner) for owner in staying), *added]
            )
        try:
            owned = await self._client.patch(
                RESOURCE_CLAIMS, name, patch, kind=PatchKind.JSON, namespace=namespace, type=Claim
            )
        except ApiError as error:
            current = await self._look(known.key) if error.invalid or error.conflict else None
            if error.not_found or (current and current.metadata.resource_version != known.metadata.resource_version):
                raise MovedOnError(f"claim {namespace}/{name} was changed meanwhile") from None
            raise
        claim = claim_record(owned)
        self._picture.assume_claim(claim)
        return claim
