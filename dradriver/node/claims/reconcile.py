"""Releases prepared claims that no pod uses: the kubelet or the node lost its state, so unprepare was never called."""

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
from dradriver.node.journal import Entry, Stamp

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
_AT_ONCE: Final = 16  # questions to the API server
AGAIN_S: Final = 5.0  # after a pass that failed: of a disk that is full or read-only


class Reconciler:
    """Compares the prepared claims with the allocated ones, at an interval.

    The kubelet calls unprepare seconds after a claim is deleted, while containers may still run. So a claim is released
    here only if all of this holds:

    * It looked unused in two passes in a row, and was not prepared again in between.
    * No process is left on its GPUs. A process of a pod that was deleted by force may hang in the driver for ever.

    A GPU that no claim has is also kept from new pods while a process is on it, or a device that was made for a claim
    that does not exist any more.

    Attributes:
        held: Called after every pass with the GPUs that no new pod should have: the reasons, by uuid.
        stuck: Called after every pass with the GPUs that should be whole and stay in MIG mode: the reasons, by uuid.
        used: Called in every pass with each prepared claim that is in use: as the API server has it, and as prepared.
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
            processes: Gives the processes that compute on GPUs, by uuid.
            gpus: Gives the uuids of GPUs that only pods with a claim may use.
            interval_s: Seconds between two passes.
        """
        self._preparer = preparer
        self._reader = ClaimReader(get_claim)
        self._node = node
        self._processes = processes
        self._gpus = gpus
        self._interval_s = interval_s

        # Called after each pass: GPUs kept from new pods and GPUs that should leave MIG mode, with the reasons by uuid;
        # and each claim that is in use.
        self.held: Event[[Mapping[str, str]]] = Event()
        self.stuck: Event[[Mapping[str, str]]] = Event()
        self.used: Event[[ResourceClaim, PreparedClaim]] = Event()
        # How many claims are read at the same time.
        self._asking = asyncio.Semaphore(_AT_ONCE)
        # Of the last pass:
        self._suspects: dict[str, Stamp] = {}  # claims that looked unused, by uid
        self._held: dict[str, str] = {}  # GPUs kept from new pods, by uuid
        self._vanished: set[str] = set()  # uids of claims that do not exist and whose entries cannot be read
        self._strays: set[str] = set()  # uuids of GPUs with processes and without a claim

    async def run(self) -> None:
        """Reconcile prepared claims with the API now and after every interval until cancelled."""
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
        """Reconcile all prepared claims with the API once: release what was unused twice, and repair what is missing.

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
        """Make one pass; see ``once``."""
        # 1. Claims whose entries cannot be read, and devices that claims left on the hardware.
        vanished = await self._preparer.rebuild()  # uids of claims that do not exist
        await self._give_back_vanished(vanished)
        left_devices = await self._preparer.clean()
        held = {uuid: f"what was made on it cannot be undone: {why}" for uuid, why in left_devices.items()}

        # 2. Claims that no pod uses. All are asked for at the same time, so that a missing answer delays no other. A
        # claim is released when two passes in a row see it unused, with the same entry. ``doubt``: a prepare call must
        # compare its entry with the API server first.
        entries = await self._preparer.prepared()
        reasons = await asyncio.gather(*(self._unused(entry.value) for entry in entries.values()))
        suspects: dict[str, Stamp] = {}
        for (uid, entry), reason in zip(entries.items(), reasons, strict=True):
            if reason is None:
                continue
            self._preparer.doubt(uid)
            suspects[uid] = entry.stamp
            looked_unused_before = self._suspects.get(uid) == entry.stamp
            if not looked_unused_before:
                continue
            processes_on_gpus = await self._users(entry.value)
            if processes_on_gpus:
                held |= processes_on_gpus
            elif await self._release(uid, entry, reason):
                del suspects[uid]
        self._suspects = suspects

        # 3. GPUs that no new pod should have.
        held |= await self._without_claim()
        for uuid in sorted(held.keys() - self._held.keys()):
            logger.error("GPU %s is kept from new pods: %s", uuid, held[uuid])
        self._held = held
        self.held(held)
        metrics.GPUS_HELD.set(len(held))

        # 4. GPUs that should leave MIG mode, and devices of used claims that disappeared.
        try:
            reasons_of_stuck_gpus = await self._preparer.rest()  # ends MIG mode where no instance is left
            self.stuck(reasons_of_stuck_gpus)
        except (DriverError, OSError) as error:
            logger.warning("GPUs that should be whole cannot be looked after now: %s", error)
        used = [entry.value for entry, reason in zip(entries.values(), reasons, strict=True) if reason is None]
        await asyncio.gather(*map(self._prepare_again, used))

    async def _release(self, uid: str, entry: Entry[PreparedClaim], reason: str) -> bool:
        """Unprepare a claim that no pod uses, unless it was prepared again; return whether it was unprepared."""
        try:
            if not await self._preparer.unprepare_if(uid, entry.stamp):
                return False
        except ClaimError as error:
            logger.error("claim %s stays prepared: %s", uid, error)
            return False
        metrics.ORPHANS.inc()
        logger.warning("gave back claim %s/%s (%s): %s", entry.value.namespace, entry.value.name, uid, reason)
        return True

    async def _prepare_again(self, prepared: PreparedClaim) -> None:
        """Make missing devices of a used claim again: the kubelet does not ask for them when a container restarts."""
        try:
            if await self._preparer.again(prepared):
                logger.warning("claim %s/%s was made anew: its devices were gone", prepared.namespace, prepared.name)
        except DriverError as error:
            what = f"claim {prepared.namespace}/{prepared.name}"
            logger.error("%s: what was made for it is gone, or cannot be looked at: %s", what, error)

    async def _give_back_vanished(self, vanished: set[str]) -> None:
        """Unprepare claims whose entries cannot be read, if they did not exist in two passes in a row."""
        before, self._vanished = self._vanished, vanished
        for uid in sorted(vanished & before):
            try:
                await self._preparer.unprepare(uid)
                metrics.ORPHANS.inc()
                logger.warning("gave back claim %s, whose entry cannot be read: it does not exist", uid)
            except ClaimError as error:
                logger.error("claim %s, whose entry cannot be read, stays prepared: %s", uid, error)

    async def _users(self, prepared: PreparedClaim) -> dict[str, str]:
        """Return why GPUs of a claim cannot be released now, by uuid: processes are on them."""
        # The GPU of a part has processes of other claims. The driver does not remove a MIG device that is in use.
        owned = [device.uuid for device in prepared.devices if not device.admin and not device.part]
        what = f"claim {prepared.namespace}/{prepared.name}"
        try:
            pids = await self._processes(owned)
        except (DriverError, TimeoutError) as error:
            trouble = str(error) or "no answer"
            return dict.fromkeys(owned, f"{what}: whether a process is on it cannot be known: {trouble}")
        return {uuid: f"{what}: {gpu_processes.text(pids[uuid])}" for uuid in owned if pids.get(uuid)}

    async def _without_claim(self) -> dict[str, str]:
        """Return why no new pod should have a GPU that no claim has, by uuid: it had processes in two passes in a row.

        If the processes are unknown now, the reasons of the last pass stay.
        """
        free = set(self._gpus()) - await self._owned()
        try:
            pids = await self._processes(sorted(free)) if free else {}
        except (DriverError, TimeoutError) as error:
            logger.info("whether processes are on GPUs that no claim holds cannot be known: %s", error)
            return {uuid: self._held[uuid] for uuid in self._strays & free & self._held.keys()}
        # A claim may have been prepared while the processes were read.
        strays = {uuid for uuid in free - await self._owned() if pids.get(uuid)}
        before, self._strays = self._strays, strays
        return {uuid: f"no claim holds it, {gpu_processes.text(pids[uuid])}" for uuid in strays & before}

    async def _owned(self) -> set[str]:
        prepared = (await self._preparer.prepared()).values()
        return {device.uuid for entry in prepared for device in entry.value.devices if not device.admin}

    async def _unused(self, prepared: PreparedClaim) -> str | None:
        """Return why no pod can be using a claim; None if one can, or if unknown.

        The reason is unknown if the API server does not answer.

        If one can, ``used`` is called.
        """
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

        # ``reservedFor`` are the pods that may use the claim. It may have been allocated again since it was prepared.
        allocated = {(result.device, result.share_id) for result in claim.results if result.pool == self._node}
        if not {(device.device, device.share_id) for device in prepared.devices} <= allocated:
            return "it is allocated to other devices"
        # The claim may have been released, or prepared again, while the API server was asked.
        prepared_now = self._preparer.get(prepared.uid)
        if prepared_now is not None:
            self.used(claim, prepared_now)
        return None
