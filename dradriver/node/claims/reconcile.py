"""Giving back what nobody uses: claims whose unprepare never came, because the kubelet or the node lost its memory."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError
from dradriver.node import metrics
from dradriver.node.claims.checkpoint import Entry, PreparedClaim
from dradriver.node.claims.prepare import GET_S, GetClaim, Preparer
from dradriver.node.errors import ClaimError

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0


class Reconciler:
    """Compares what is prepared with what is allocated, again and again.

    The kubelet's own unprepare comes seconds after a claim is gone, while containers may still run; so a claim is given
    back only when it looked unused in two passes in a row and was not prepared again in between.
    """

    def __init__(self, preparer: Preparer, get_claim: GetClaim, *, node: str, interval_s: float = INTERVAL_S) -> None:
        self._preparer = preparer
        self._get_claim = get_claim
        self._node = node
        self._interval_s = interval_s
        self._suspects: dict[str, Entry] = {}

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
            DriverError: The checkpoint cannot be read.
            OSError: The same.
        """
        suspects: dict[str, Entry] = {}
        for uid, entry in (await self._preparer.prepared()).items():
            reason = await self._unused(entry.claim)
            if reason is None:
                continue
            before = self._suspects.get(uid)
            if before is None or before.stamp != entry.stamp:
                suspects[uid] = entry
                continue
            try:
                if await self._preparer.unprepare_if(uid, entry):
                    metrics.ORPHANS.inc()
                    logger.warning(
                        "gave back claim %s/%s (%s): %s", entry.claim.namespace, entry.claim.name, uid, reason
                    )
            except ClaimError as error:
                suspects[uid] = entry
                logger.error("claim %s stays prepared: %s", uid, error)
        self._suspects = suspects

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
