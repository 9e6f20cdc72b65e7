"""Giving back what nobody uses: claims whose unprepare never came, because the kubelet or the node lost its memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError
from dradriver.node import metrics
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import GET_S, GetClaim, Preparer
from dradriver.node.errors import ClaimError
from dradriver.node.records import Stamp

logger = logging.getLogger(__name__)

# Counts the processes that compute on each of some GPUs, given by uuid; one that it does not name is not there.
Processes = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]

INTERVAL_S: Final = 60.0


class Reconciler:
    """Compares what is prepared with what is allocated, again and again.

    The kubelet's own unprepare comes seconds after a claim is gone, while containers may still run; so a claim is given
    back only when it looked unused in two passes in a row and was not prepared again in between, and when no process is
    left on its GPUs: one of a pod that was deleted by force may hang in the driver for ever, and its GPU is nobody
    else's until it ends.
    """

    def __init__(
        self,
        preparer: Preparer,
        get_claim: GetClaim,
        *,
        node: str,
        processes: Processes,
        on_held: Callable[[Mapping[str, str]], None] = lambda _: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Keep what is needed.

        Args:
            preparer: The prepared claims.
            get_claim: Reads a claim from the API server by namespace and name.
            node: This node's pool.
            processes: Counts the processes on each of some GPUs.
            on_held: Told after every pass of the GPUs that are kept although their claims look unused: why, by uuid.
            interval_s: Time between two passes.
        """
        self._preparer = preparer
        self._get_claim = get_claim
        self._node = node
        self._processes = processes
        self._interval_s = interval_s
        self._on_held = on_held
        self._suspects: dict[str, Stamp] = {}
        self._held: dict[str, str] = {}

    async def run(self) -> None:
        """Look now and after every interval, until cancelled."""
        while True:
            try:
                await self.once()
            except (DriverError, OSError) as error:
                logger.error("prepared claims cannot be compared with the cluster's: %s", error)
            await asyncio.sleep(self._interval_s)

    async def once(self) -> None:
        """Make one pass.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: The same.
        """
        await self._preparer.rebuild()
        await self._preparer.clean()
        suspects: dict[str, Stamp] = {}
        held: dict[str, str] = {}
        for uid, entry in (await self._preparer.prepared()).items():
            reason = await self._unused(entry.value)
            if reason is None:
                continue
            self._preparer.doubt(uid)
            suspects[uid] = entry.stamp
            if self._suspects.get(uid) != entry.stamp:
                continue
            users = await self._users(entry.value)
            if users:
                held |= users
                continue
            try:
                if await self._preparer.unprepare_if(uid, entry.stamp):
                    del suspects[uid]
                    metrics.ORPHANS.inc()
                    logger.warning(
                        "gave back claim %s/%s (%s): %s", entry.value.namespace, entry.value.name, uid, reason
                    )
            except ClaimError as error:
                logger.error("claim %s stays prepared: %s", uid, error)
        self._suspects = suspects
        for uuid in sorted(held.keys() - self._held.keys()):
            logger.error("GPU %s stays with a claim that nobody uses: %s", uuid, held[uuid])
        self._held = held
        self._on_held(held)
        metrics.GPUS_HELD.set(len(held))

    async def _users(self, prepared: PreparedClaim) -> dict[str, str]:
        """Return why GPUs of a claim cannot be given to anybody else now, by uuid."""
        # On a part's GPU are others' processes; a MIG device refuses to go while one is on it.
        owned = [device.uuid for device in prepared.devices if not device.admin and not device.part]
        what = f"claim {prepared.namespace}/{prepared.name}"
        try:
            counts = await self._processes(owned)
        except (DriverError, TimeoutError) as error:
            said = str(error) or "no answer"
            return dict.fromkeys(owned, f"{what}: whether a process is on it cannot be known: {said}")
        return {
            uuid: f"{what}: processes still on it: {counts[uuid]}; end them, or restart the node if they cannot end"
            for uuid in owned
            if counts.get(uuid)
        }

    async def _unused(self, prepared: PreparedClaim) -> str | None:
        """Return why nobody can be using the claim; None where somebody can, or where nobody knows."""
        try:
            async with asyncio.timeout(GET_S):
                claim = await self._get_claim(prepared.namespace, prepared.name)
        except ApiError as error:
            return "it does not exist" if error.not_found else None
        except (DriverError, TimeoutError):
            return None
        if claim.metadata.uid != prepared.uid:
            return "another claim has its name"
        if not claim.status.reserved_for:
            return "no pod uses it"
        allocated = {(r.device, r.share_id) for r in claim.results if r.pool == self._node}
        if not {(d.device, d.share_id) for d in prepared.devices} <= allocated:
            return "it is allocated to other devices"
        return None
