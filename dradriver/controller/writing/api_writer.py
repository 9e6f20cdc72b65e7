"""Makes single writes of claims. Each is safe to repeat, and the server refuses it if the object has changed.

``Commit``, the executor and the garbage collector call it.

The *write lanes* limit for how many workloads the controller writes objects at once. A *slot* is the right to write the
objects of one workload. A claim is *pinned* to the GPUs that the controller chose: the scheduler can allocate only
these.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder, claim_templates
from dradriver.api.claims.pins import Claim, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord, claim_record
from dradriver.controller.writing.pod_writer import PodWriter
from dradriver.controller.writing.shared_claim_owners import Owners
from dradriver.controller.writing.write_outcome import (
    CrowdedError,
    MovedOnError,
    Outcome,
    PausedError,
    UnsureError,
    outcome,
)
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, PatchKind, Unreachable
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.write_lanes import Lanes, Slot

logger = logging.getLogger(__name__)

UNPROTECT_S: Final = 1.0


class ApiWriter:
    """Writes claims to the API server, and puts each answer into the cluster cache.

    An operation with several writes calls ``go_on`` before each further write. It stops there if the server wants a
    pause.

    Attributes:
        pods: Writes pods.
        owners: Adds pods to the owners of the claims that they share.
    """

    def __init__(self, client: Client, picture: Picture, lanes: Lanes, *, tells_nvsentinel: bool = False) -> None:
        """Make a writer that has written nothing.

        Args:
            client: The API server.
            picture: The cluster cache.
            lanes: Say whether the server wants a pause. The writer tells them of failures that it does not raise.
            tells_nvsentinel: Whether pods that get GPUs also get NVSentinel's annotation.
        """
        self._client, self._picture, self._paused, self._failed = client, picture, lanes.paused, lanes.failed
        self.pods = PodWriter(client, picture, tells_nvsentinel=tells_nvsentinel)
        self.owners = Owners(client, picture, look=self.look, check_pause=self._check_pause)

    def go_on(self, slot: Slot) -> None:
        """Check that the next write of an operation may begin, and note its beginning.

        ``slot`` is the operation's right to write.

        Raises:
            PausedError: The server wants a pause first.
            MovedOnError: A claim was revoked while the previous write hung.
        """
        self._check_pause()
        if slot.revoked:
            raise MovedOnError("a claim was taken back while a write hung")
        slot.begin()

    def _check_pause(self) -> None:
        if self._paused():
            raise PausedError("the API server wants a pause")

    async def look(self, key: Key) -> ClaimRecord | None:
        """Read a claim from the API server into the cluster cache.

        Returns None if the claim does not exist.
        """
        namespace, name = key
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=Claim)
        except ApiError as error:
            if not error.not_found:
                raise
            return None
        record = claim_record(claim)
        self._picture.assume_claim(record)
        return record

    async def withdraw(self, claim: ClaimRecord) -> None:
        """Delete a claim at the API server, unless it has changed since it was read.

        Raises:
            MovedOnError: The claim was replaced or changed: the scheduler may be allocating it.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        namespace, name = claim.key
        try:
            await self._client.delete(
                RESOURCE_CLAIMS,
                name,
                namespace=namespace,
                uid=claim.uid,
                resource_version=claim.metadata.resource_version,
            )
        except ApiError as error:
            if not error.conflict:
                raise
            await self.look(claim.key)
            raise MovedOnError(f"claim {namespace}/{name} was changed meanwhile") from None
        self._picture.assume_deleted(claim)
        if claim.devices is None:
            await self._unprotect(claim)

    async def _unprotect(self, claim: ClaimRecord) -> None:
        """Try to remove Kubernetes' finalizer from a deleted claim.

        Then the next claim with the same name can be created at once. If the removal fails, kube-controller-manager
        does it later. The removal is safe: no scheduler allocates devices to a claim that is being deleted.
        """
        if self._paused():
            return
        try:
            async with asyncio.timeout(UNPROTECT_S):
                await self.unprotect(claim)
        except (ApiError, Unreachable, TimeoutError) as error:
            if isinstance(error, DriverError) and outcome(error) is Outcome.SERVER:
                self._failed(error)
            logger.debug("claim %s/%s is deleted and may stay for a while: %s", *claim.key, error)

    async def unprotect(self, claim: ClaimRecord) -> None:
        """Remove Kubernetes' finalizer from a deleted claim that no pod uses.

        Raises:
            ApiError: The server refuses: the claim was replaced or changed.
            Unreachable: No answer.
        """
        namespace, name = claim.key
        patch = Patch().test("metadata", "uid", value=claim.uid)
        patch.test("metadata", "finalizers", 0, value=names.FINALIZER).remove("metadata", "finalizers", 0)
        await self._client.patch(RESOURCE_CLAIMS, name, patch, kind=PatchKind.JSON, namespace=namespace, type=Claim)

    async def release(self, claim: ClaimRecord) -> None:
        """Remove all finalizers from a deleted claim without devices that no pod uses.

        Raises:
            MovedOnError: The claim is gone, or was changed.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        namespace, name = claim.key
        seen = {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}
        body = {"metadata": seen | {"finalizers": None}}
        try:
            await self._client.patch(RESOURCE_CLAIMS, name, body, kind=PatchKind.MERGE, namespace=namespace, type=Claim)
        except ApiError as error:
            if not (error.conflict or error.not_found):
                raise
            raise MovedOnError(f"claim {namespace}/{name} was changed meanwhile") from None

    async def create(self, pod: Pod, wish: PlacementRequest, placement: Placement) -> ClaimRecord:
        """Create a pod's claim at the API server, pinned to the GPUs of ``placement``.

        Raises:
            MovedOnError: Another claim has got its GPUs meanwhile, or a claim with its name exists.
            CrowdedError: Other programs kept changing the namespace's quota.
            UnsureError: The claim may exist; read it from the server before any other write.
            ApiError: The server refuses.
            Unreachable: No answer; nothing was created.
        """
        # Other claims can have been created since the placement was decided.
        if conflicts.overtaken(self._picture, wish.claim, placement):
            raise MovedOnError(f"GPUs chosen on node {placement.node} were given to another claim meanwhile")
        body = claim_builder.pinned(
            pod,
            placement.choice,
            uuids=placement.uuids,
            addresses=placement.addresses,
            compute=placement.compute,
            placed=placement.placed,
            keep_env=wish.keep_env,
            nccl=wish.nccl,
            # Only whole GPUs can be shared by the pods of a set.
            shared=wish.request if wish.shared and isinstance(wish.request, Whole) else None,
            planned=placement.planned,
            seat=placement.seat,
            # The names of these requests: ``completed`` adds the requests themselves below.
            other_requests=() if wish.template is None else tuple(wish.template.nic_entries),
            preempting=placement.preempts,
            vendor=wish.request.vendor,
        )
        if wish.template is not None:
            body = claim_templates.completed(body, wish.template, placement.nics)
        claim = await self._make(wish, body)  # also counts it in the cluster cache
        logger.info(
            "pod %s/%s: claim %s pinned to GPUs %s of node %s",
            *(*wish.pod, claim.metadata.name, list(placement.choice.gpus), placement.node),
        )
        return claim

    async def create_handed_over(self, pod: Pod, wish: PlacementRequest) -> None:
        """Create the claim of a pod that is handed over to kube-scheduler.

        The claim names no GPU, so the scheduler chooses. The method raises the same errors as ``create``.
        """
        assert wish.alone is not None, "the pod says so"
        body = claim_builder.handed_over(pod, wish.alone)
        await self._make(wish, body if wish.template is None else claim_templates.marked(body, wish.template))

    async def _make(self, wish: PlacementRequest, body: dict[str, Any]) -> ClaimRecord:
        namespace, name = wish.claim
        try:
            created = await self._client.create(RESOURCE_CLAIMS, body, namespace=namespace, type=Claim)
        except ApiError as error:
            if error.already_exists:
                await self.look(wish.claim)
                raise MovedOnError(f"claim {namespace}/{name} exists already") from None
            if error.conflict and outcome(error) is Outcome.MOMENT:
                raise CrowdedError(f"a quota of namespace {namespace} was changed meanwhile") from None
            if error.status < 500:
                self._picture.release(wish.claim)
            else:
                await self._made_after_all(wish.claim)
            raise
        except Unreachable:
            await self._made_after_all(wish.claim)
            raise
        claim = claim_record(created)
        self._picture.assume_claim(claim)
        return claim

    async def _made_after_all(self, key: Key) -> None:
        """Check whether a claim exists after the answer to its creation was lost.

        It returns if the claim does not exist.

        Raises:
            MovedOnError: The claim exists.
            UnsureError: The server does not answer this either.
        """
        try:
            claim = await self.look(key)
        except (ApiError, Unreachable) as error:
            raise UnsureError(str(error)) from error
        if claim is not None:
            raise MovedOnError(f"claim {'/'.join(key)} was created, but the answer was lost")
