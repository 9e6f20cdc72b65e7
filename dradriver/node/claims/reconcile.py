"""Giving back what nobody uses: claims whose unprepare never came, because the kubelet or the node lost its memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.node import metrics
from dradriver.node.claims import gpu_processes
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.claim_reader import AnotherError, ClaimReader, GetClaim, GoneError
from dradriver.node.claims.gpu_processes import Processes
from dradriver.node.claims.prepare import Preparer
from dradriver.node.errors import ClaimError
from dradriver.node.journal import Stamp

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
_AT_ONCE: Final = 16  # questions to the API server
AGAIN_S: Final = 5.0  # after a pass that failed: of a disk that is full or read-only


class Reconciler:
    """Compares what is prepared with what is allocated, again and again.

    The kubelet's own unprepare comes seconds after a claim is gone, while containers may still run; so a claim is given
    back only when it looked unused in two passes in a row and was not prepared again in between, and when no process is
    left on its GPUs: one of a pod that was deleted by force may hang in the driver for ever, and its GPU is nobody
    else's until it ends. A GPU that no claim holds is kept from new pods too, while processes are on it, or something
    that was made for a claim which is gone.

    Attributes:
        held: Told after every pass of the GPUs that no new pod should have: why, by uuid.
        stuck: Told after every pass of the GPUs that should be whole and stay in MIG mode: why, by uuid.
        used: Told in every pass of each prepared claim that is in use, as the API server has it.
    """

    def __init__(
        self,
        preparer: Preparer,
        get_claim: GetClaim,
        *,
        node: str,
        processes: Processes,
        gpus: Callable[[], Collection[str]] = tuple,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Compare nothing yet.

        Args:
            preparer: The prepared claims.
            get_claim: Reads a claim from the API server by namespace and name.
            node: This node's pool.
            processes: Says which processes compute on each of some GPUs.
            gpus: Gives the uuids of the GPUs on which nobody may compute but who has a claim.
            interval_s: Time between two passes.
        """
        self._preparer = preparer
        self._reader = ClaimReader(get_claim)
        self._node = node
        self._processes = processes
        self._gpus = gpus
        self._interval_s = interval_s
        self.held: Event[[Mapping[str, str]]] = Event()
        self.stuck: Event[[Mapping[str, str]]] = Event()
        self.used: Event[[ResourceClaim, PreparedClaim]] = Event()
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._suspects: dict[str, Stamp] = {}
        self._held: dict[str, str] = {}
        self._vanished: set[str] = set()
        self._strays: set[str] = set()

    async def run(self) -> None:
        """Compare prepared claims with the API now and after every interval until cancelled."""
        logged = ""
        while True:
            pause_s = self._interval_s
            try:
                await self.once()
                logged = ""
            except (DriverError, OSError) as error:
                pause_s = min(AGAIN_S, self._interval_s)
                if str(error) != logged:
                    logged = str(error)
                    logger.error("prepared claims cannot be compared with the cluster's: %s", logged)
            await asyncio.sleep(pause_s)

    async def once(self) -> None:
        """Compare all prepared claims with the API, release what was unused twice, and repair what is missing.

        It begins with what an agent does at its start, which the disk may not have let it do, and puts back CDI specs
        that somebody removed.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read, written or removed.
        """
        try:
            await self._preparer.recover()
        except OSError:  # what is in one claim's way keeps no other from being given back
            await self._compare()
            raise
        await self._compare()

    async def _compare(self) -> None:
        await self._give_back_vanished(await self._preparer.rebuild())
        suspects: dict[str, Stamp] = {}
        held = {
            uuid: f"what was made on it cannot be undone: {why}" for uuid, why in (await self._preparer.clean()).items()
        }
        entries = await self._preparer.prepared()
        # At the same time, so that one answer that does not come holds up no other.
        reasons = await asyncio.gather(*(self._unused(entry.value) for entry in entries.values()))
        for (uid, entry), reason in zip(entries.items(), reasons, strict=True):
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
        held |= await self._without_claim()
        for uuid in sorted(held.keys() - self._held.keys()):
            logger.error("GPU %s is kept from new pods: %s", uuid, held[uuid])
        self._held = held
        self.held(held)
        metrics.GPUS_HELD.set(len(held))
        try:
            self.stuck(await self._preparer.rest())
        except (DriverError, OSError) as error:
            logger.warning("GPUs that should be whole cannot be looked after now: %s", error)
        used = [entry.value for entry, reason in zip(entries.values(), reasons, strict=True) if reason is None]
        await asyncio.gather(*map(self._made_anew, used))

    async def _made_anew(self, prepared: PreparedClaim) -> None:
        """Make again what is gone of a claim in use: the kubelet does not ask for it when a container starts again."""
        try:
            if await self._preparer.again(prepared):
                logger.warning("claim %s/%s was made anew: its devices were gone", prepared.namespace, prepared.name)
        except DriverError as error:
            what = f"claim {prepared.namespace}/{prepared.name}"
            logger.error("%s: what was made for it is gone, or cannot be looked at: %s", what, error)

    async def _give_back_vanished(self, vanished: set[str]) -> None:
        """Give back what was prepared for claims whose entries are lost, and that were gone in two passes in a row."""
        before, self._vanished = self._vanished, vanished
        for uid in sorted(vanished & before):
            try:
                await self._preparer.unprepare(uid)
                metrics.ORPHANS.inc()
                logger.warning("gave back claim %s, whose entry cannot be read: it does not exist", uid)
            except ClaimError as error:
                logger.error("claim %s, whose entry cannot be read, stays prepared: %s", uid, error)

    async def _users(self, prepared: PreparedClaim) -> dict[str, str]:
        """Return why GPUs of a claim cannot be given to anybody else now, by uuid."""
        # On a part's GPU are others' processes; a MIG device refuses to go while one is on it.
        owned = [device.uuid for device in prepared.devices if not device.admin and not device.part]
        what = f"claim {prepared.namespace}/{prepared.name}"
        try:
            pids = await self._processes(owned)
        except (DriverError, TimeoutError) as error:
            trouble = str(error) or "no answer"
            return dict.fromkeys(owned, f"{what}: whether a process is on it cannot be known: {trouble}")
        return {uuid: f"{what}: {gpu_processes.text(pids[uuid])}" for uuid in owned if pids.get(uuid)}

    async def _without_claim(self) -> dict[str, str]:
        """Return why no new pod should have a GPU although no claim holds it, by uuid: in two passes in a row."""
        free = set(self._gpus()) - await self._owned()
        try:
            pids = await self._processes(sorted(free)) if free else {}
        except (DriverError, TimeoutError) as error:
            logger.info("whether processes are on GPUs that no claim holds cannot be known: %s", error)
            return {uuid: self._held[uuid] for uuid in self._strays & free & self._held.keys()}
        strays = {uuid for uuid in free - await self._owned() if pids.get(uuid)}
        before, self._strays = self._strays, strays
        return {uuid: f"no claim holds it, {gpu_processes.text(pids[uuid])}" for uuid in strays & before}

    async def _owned(self) -> set[str]:
        prepared = (await self._preparer.prepared()).values()
        return {device.uuid for entry in prepared for device in entry.value.devices if not device.admin}

    async def _unused(self, prepared: PreparedClaim) -> str | None:
        """Return why nobody can be using the claim; None where somebody can, or where nobody knows."""
        try:
            async with self._asking:
                claim = await self._reader.read(prepared.namespace, prepared.name, prepared.uid)
        except GoneError:
            return "it does not exist"
        except AnotherError:
            return "another claim has its name"
        except DriverError:
            return None
        if not claim.status.reserved_for:
            return "no pod uses it"
        allocated = {(r.device, r.share_id) for r in claim.results if r.pool == self._node}
        if not {(d.device, d.share_id) for d in prepared.devices} <= allocated:
            return "it is allocated to other devices"
        now = self._preparer.get(prepared.uid)  # it may have been released, or prepared again, while this waited
        if now is not None:
            self.used(claim, now)
        return None
