"""Deletes this driver's claims that nothing else removes. ``Worker`` runs it.

An *orphan* is a claim that no pod needs any more. The *write lanes* limit for how many workloads the controller writes
objects at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.records import ClaimRecord, claim_record
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.write_outcome import MovedOnError, Outcome, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.errors import Unreadable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.kube.workqueue import WorkQueue
from dradriver.queue.write_lanes import Lanes

logger = logging.getLogger(__name__)

SWEEP_S: Final = 10.0
MOST: Final = 16  # assumptions that are asked about at once
LONGEST_PAUSE_S: Final = 40.0  # of a claim that cannot be deleted


class Collector:
    """Deletes claims whose pods are gone, if Kubernetes does not delete them.

    It also finishes deletions that Kubernetes cannot finish. And it checks old assumptions: writes of the controller
    that the cluster cache counts although no reflector has shown them.
    """

    def __init__(self, client: Client, picture: Picture, writer: ApiWriter, lanes: Lanes, *, grace_s: float) -> None:
        """Make a collector that has found no orphans yet.

        Args:
            client: The API server.
            picture: The cluster cache.
            writer: Makes single writes.
            lanes: Limit how many writes run at once.
            grace_s: How many seconds a claim may be without its pod before it is deleted. After the same time, the
                server is asked about a write that no reflector has shown.
        """
        self._client = client
        self._picture = picture
        self._writer = writer
        self._lanes = lanes
        self._grace_s = grace_s
        self._orphans: dict[str, float] = {}  # since when each is one, by uid
        self._due = WorkQueue(self._collect, pause_s=SWEEP_S, longest_s=LONGEST_PAUSE_S)

    async def run(self) -> None:
        """Delete orphaned claims, and check unconfirmed writes, at intervals until cancelled.

        No pod needs an orphaned claim. An unconfirmed write is one that no reflector has shown.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._due.run())
            while True:
                try:
                    await self._look()
                except (ApiError, Unreachable) as error:
                    logger.warning(
                        "Claims whose pods are gone cannot be deleted: %s. The controller tries again.", error
                    )
                await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """Delete claims that no pod needs, and check writes that no reflector has shown, once."""
        await self._look()
        await self._due.flush()

    async def _look(self) -> None:
        await self._end_assumptions()
        now = asyncio.get_running_loop().time()
        orphans = [claim for claim in self._picture.claims.values() if self._orphaned(claim)]
        self._orphans = {claim.uid: self._orphans.get(claim.uid, now) for claim in orphans}
        for claim in orphans:
            if now - self._orphans[claim.uid] >= self._grace_s:
                self._due.put(claim.key)

    async def _collect(self, key: Key) -> None:
        """Delete a claim if it is still an orphan.

        This can take long: a webhook for the claim's namespace can delay the deletion.
        """
        claim = self._picture.claims.get(key)
        if claim is None or claim.uid not in self._orphans or not self._orphaned(claim):
            self._due.done(key)
            return
        if self._lanes.paused():
            self._due.done(key)  # the next sweep finds it again if it still exists
            return
        try:
            if claim.deleting:
                await self._writer.release(claim)
                logger.info("Claim %s/%s: its pod is gone. Its finalizers are removed.", *key)
            elif not await self._wanted(claim):
                await self._writer.withdraw(claim)
                logger.info("Claim %s/%s: its pod is gone. The claim is deleted.", *key)
            self._due.done(key)
        except MovedOnError:
            self._due.done(key)  # the next sweep sees what became of it
        except DriverError as error:
            logger.warning("Claim %s/%s: its pod is gone, and the claim cannot be deleted: %s", *key, error)
            if outcome(error) is Outcome.SERVER:
                self._lanes.failed(error)
            else:
                self._due.fail(key)

    def _orphaned(self, claim: ClaimRecord) -> bool:
        """Return whether no pod needs a claim of this driver any more.

        Some facts behind the rule:

        * A claim that any pod uses is no orphan.
        * A claim that is being deleted and still has its devices is no orphan: Kubernetes' claim controller handles it.
        * Once a deleted claim has no devices, it must disappear. While it exists, the scheduler keeps the devices of a
          deleted pod, up to its binding timeout. A dependent object or a finalizer could keep the claim.
        * ``kubectl delete pod --cascade=orphan`` leaves a claim without an owner.
        """
        if not (claim.ours or claim.handed_over) or claim.users or (claim.deleting and claim.devices is not None):
            return False
        return not any(_wants(pod, claim) for pod in self._picture.claim_users.owners(claim))

    async def _wanted(self, claim: ClaimRecord) -> bool:
        """Return whether the API server has a pod that needs a claim.

        The server is asked because the reflector of pods may be behind the reflector of claims.
        """
        for name, uid in claim.owners:
            try:
                pod = await self._client.get(PODS, name, namespace=claim.metadata.namespace, type=Pod)
            except ApiError as error:
                if error.not_found:
                    continue
                raise
            # Without our label it is nobody's of ours any more, and nothing would ever look at its promise again.
            if pod.metadata.uid == uid and pod.placed and _wants(pod, claim):
                return True
        return False

    async def _end_assumptions(self) -> None:
        """Ask the server about claims written long ago that no reflector has shown.

        There are two possible causes. A claim may have been created and deleted between two lists of the reflector. Or
        another owner's claim has the name of a shared claim: the reflector does not keep it, and any user can create
        thousands of these.
        """
        now = asyncio.get_running_loop().time()
        due = (key for key, since in list(self._picture.accounts.assumed.items()) if now - since >= self._grace_s)

        async def some() -> None:
            for key in due:
                await self._end_assumption(key)

        for error in await asyncio.gather(*(some() for _ in range(MOST)), return_exceptions=True):
            if error is not None:
                raise error

    async def _end_assumption(self, key: Key) -> None:
        claim: ClaimRecord | None = None
        try:
            stored = await self._client.get(RESOURCE_CLAIMS, key[1], namespace=key[0], type=Claim)
            claim = claim_record(stored)
        except Unreadable as error:  # what is there holds nothing that is known
            logger.warning("Claim %s/%s cannot be read: %s", *key, error)
        except ApiError as error:
            if not error.not_found:
                raise
        assumed = self._picture.claims.get(key)
        if claim is None or assumed is None or claim.uid != assumed.uid:
            self._picture.correct_claim(key, claim)


def _wants(pod: Pod, claim: ClaimRecord) -> bool:
    """Return whether a pod names a claim, and has not finished.

    False for a pod that is being deleted and was never bound.
    """
    ending = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return not pod.finished and not ending and pod.claim_name == claim.metadata.name
