"""Checks at an interval whether the GPUs of prepared claims work, and knows since when each claim is idle.

A claim is idle if its GPUs did nothing at every check for five minutes (``QUIET_S``). The idle time ends if a check saw
work, failed, or was missed, because there may have been work. After a restart, the agent measures all claims again from
the start.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.discovery import Discovery
from dradriver.node.gpu_work import GpuWork
from dradriver.node.idle.claim_work import PodOf, worked
from dradriver.node.idle.pod_of_process import pod_of
from dradriver.node.journal import Entry
from dradriver.node.threads import Thread
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 20.0
QUIET_S: Final = 300.0  # of no work in a row before a claim is called idle
GAP_S: Final = 60.0  # between two looks; what was in a longer one nobody knows
ANSWER_S: Final = 10.0  # a driver that hangs holds nobody up but this
_US: Final = 1_000_000
_ALL: Final = 100.0

Work = Callable[[Mapping[str, int]], Awaitable[Mapping[str, GpuWork]]]
"""Gives what GPUs did, by uuid, each asked with the moment since when, in microseconds since the epoch."""


def asked_of(discovery: Discovery) -> Work:
    """Return a function that measures the work of GPUs by ``discovery``.

    If queries of ``discovery`` can hang in the GPU driver (``discovery.slow``), the function makes them in a thread
    with a time limit.
    """
    thread = Thread("work")

    async def work(gpus: Mapping[str, int]) -> Mapping[str, GpuWork]:
        if not discovery.slow:
            return discovery.work(gpus)
        async with asyncio.timeout(ANSWER_S):
            return await thread.run(lambda: discovery.work(gpus), question=True)

    return work


class _Quiet(msgspec.Struct):
    """A claim whose GPUs do nothing: the first and the last check that saw no work, by the monotonic clock."""

    since: float
    seen: float
    idle_since: datetime.datetime | None = None


class IdleWatch:
    """Watches how much the GPUs of this node's prepared claims work."""

    def __init__(
        self,
        work: Work,
        prepared: Callable[[], Awaitable[Mapping[str, Entry[PreparedClaim]]]],
        machine: Callable[[], Machine | None],
        *,
        pod_of: PodOf = pod_of,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; check nothing yet.

        Args:
            work: Returns the work of GPUs.
            prepared: Returns the claims that are prepared, by uid.
            machine: Returns the machine as it is now; None if it is unknown.
            pod_of: Returns the pod of a process.
            interval_s: Seconds between two checks.
            clock: Returns seconds that never go back.
        """
        self._work, self._prepared, self._machine = work, prepared, machine
        self._pod_of, self._interval_s, self._clock = pod_of, interval_s, clock
        self._quiet: dict[str, _Quiet] = {}
        self._users: dict[str, tuple[str, ...]] = {}
        self._until_us: dict[str, int] = {}
        self._said = ""

    def used_by(self, claim: ResourceClaim, prepared: PreparedClaim) -> None:
        """Store which pods use a prepared claim, so that a process on its GPUs can be assigned to the claim."""
        self._users[prepared.uid] = tuple(one.uid for one in claim.status.reserved_for)

    def forget(self, uid: str) -> None:
        """Stop watching the idle time of a claim that is not prepared any more."""
        self._quiet.pop(uid, None)
        self._users.pop(uid, None)

    def idle_since(self, uid: str) -> datetime.datetime | None:
        """Return since when a claim's GPUs have been idle; None if they are not, or if unknown."""
        quiet = self._quiet.get(uid)
        if quiet is None or self._clock() - quiet.seen > GAP_S:
            return None
        return quiet.idle_since

    async def run(self) -> None:
        """Check after every interval which claims are idle, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                try:
                    await self.once()
                    failure = ""
                except (DriverError, OSError, TimeoutError) as error:
                    failure = str(error) or "the GPU driver does not answer"
                if failure and failure != self._said:
                    logger.warning("The node agent cannot measure whether GPUs are idle: %s", failure)
                self._said = failure
        finally:
            metrics.GPUS_BUSY.set({})
            metrics.GPUS_IDLE.set({})

    async def once(self) -> None:
        """Check once which claims are idle.

        Raises:
            DriverError: The driver does not report the work, or another agent does not release the lock of the records
                of claims.
            OSError: A file cannot be read.
            TimeoutError: The driver does not answer.
        """
        began, now_us = self._clock(), int(time.time() * _US)
        claims: dict[str, PreparedClaim] = {}
        work: Mapping[str, GpuWork] = {}
        try:
            claims = {uid: entry.value for uid, entry in (await self._prepared()).items()}
            gpus = {device.uuid for claim in claims.values() for device in claim.devices if not device.admin}

            # Since when each GPU's work is asked for: the newest sample of the last look, else one interval ago.
            before_us = now_us - int(self._interval_s * _US)
            since = {uuid: min(self._until_us.get(uuid, before_us), now_us) for uuid in gpus}
            work = await self._work(since) if since else {}
            # A GPU that did nothing has no newest sample: then the same is asked again.
            self._until_us = {uuid: max(since[uuid], did.until_us) for uuid, did in work.items() if uuid in since}
        finally:
            self._take(claims, work, began)

    def _take(self, claims: Mapping[str, PreparedClaim], work: Mapping[str, GpuWork], now: float) -> None:
        for uid in (self._quiet.keys() | self._users.keys()) - claims.keys():
            self.forget(uid)
        sharing: dict[str, list[str]] = {}
        for uid, claim in claims.items():
            for gpu in {device.uuid for device in claim.devices if not device.admin}:
                sharing.setdefault(gpu, []).append(uid)
        machine = self._machine()
        for uid, claim in claims.items():
            did = worked(claim, work, users=self._users, sharing=sharing, machine=machine, pod_of=self._pod_of)
            if did is False:
                self._saw_quiet(uid, now)
            else:
                self._quiet.pop(uid, None)
        self._count(claims, work, sharing)

    def _saw_quiet(self, uid: str, now: float) -> None:
        quiet = self._quiet.get(uid)
        if quiet is None or now - quiet.seen > GAP_S:
            quiet = self._quiet[uid] = _Quiet(now, now)
        quiet.seen = now
        if quiet.idle_since is None and now - quiet.since >= QUIET_S:
            ago = datetime.timedelta(seconds=now - quiet.since)
            quiet.idle_since = (datetime.datetime.now(datetime.UTC) - ago).replace(microsecond=0)

    def _count(
        self, claims: Mapping[str, PreparedClaim], work: Mapping[str, GpuWork], sharing: Mapping[str, list[str]]
    ) -> None:
        """Set the metrics that say how many GPUs of claims are busy or idle, by namespace.

        A GPU with several claims counts for each claim as an equal fraction, for example 1/2.
        """
        busy: dict[str, float] = {}
        idle: dict[str, float] = {}
        unread = 0
        for gpu, uids in sharing.items():
            gpu_work = work.get(gpu)
            known = gpu_work is not None and gpu_work.works is not None
            unread += not known
            # Each claim of a shared GPU counts for an equal part.
            for uid in uids:
                namespace, part = claims[uid].namespace, 1 / len(uids)
                if gpu_work is not None and gpu_work.percent is not None:
                    busy[namespace] = busy.get(namespace, 0.0) + part * gpu_work.percent / _ALL
                if known or self.idle_since(uid) is not None:  # 0 says that they work, nothing that nobody knows
                    idle[namespace] = idle.get(namespace, 0.0) + part * (self.idle_since(uid) is not None)
        metrics.GPUS_BUSY.set(busy)
        metrics.GPUS_IDLE.set(idle)
        metrics.GPUS_UNREAD.set(unread)
