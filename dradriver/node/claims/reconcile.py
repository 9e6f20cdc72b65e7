"""Releases prepared claims that no pod uses any more.

This is needed if the kubelet or the node lost its state, because the kubelet then never calls unprepare for these
claims.
"""

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
    """Compares the prepared claims with the claims of the API server, at an interval.

    The kubelet calls unprepare seconds after a claim is deleted, while containers may still run. So the reconciler
    releases a claim only if all of this is true:

    * The claim looked unused in two passes in a row, and was not prepared again in between.
    * No process is left on its whole GPUs. A process of a pod that was deleted by force may hang in the driver for
      ever.

    For a claim with an unreadable checkpoint entry, two passes without the claim in the API are enough.

    The reconciler also keeps new pods off some GPUs that no claim has: a GPU with a process on it, and a GPU with a MIG
    instance or share of a claim that does not exist any more.

    Attributes:
        held: An ``event.Event`` that occurs after every pass. Its argument says why certain GPUs should get no new pod,
            by uuid.
        stuck: An ``event.Event`` that occurs after every pass. Its argument says why certain GPUs stay in MIG mode
            although they should be whole, by uuid.
        used: An ``event.Event`` that occurs in every pass for each claim that pods use. Its arguments are the claim as
            the API server has it, and as prepared.
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
        """Store the arguments; compare nothing yet.

        Args:
            preparer: Returns the prepared claims, and unprepares them.
            get_claim: Reads a claim from the API server by namespace and name.
            node: The name of this node's pool.
            processes: Returns the processes that compute on GPUs, by uuid.
            gpus: Returns the uuids of GPUs that only pods with a claim may use. Processes on other GPUs are not
                checked.
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
        """Compare prepared claims with the API (``once``) now and after every interval, until cancelled."""
        logged_error = ""
        while True:
            pause_s = self._interval_s
            try:
                await self.once()
                logged_error = ""
            except (DriverError, OSError) as error:
                pause_s = min(AGAIN_S, self._interval_s)
                if str(error) != logged_error:
                    logged_error = str(error)
                    logger.error(
                        "The prepared claims cannot be compared with those of the API server: %s", logged_error
                    )
            await asyncio.sleep(pause_s)

    async def once(self) -> None:
        """Compare all prepared claims with the API once: release unused claims and repair missing devices.

        A claim is released if it was unused in two passes in a row. A pass begins with ``Preparer.recover``, for two
        reasons. At the agent's start ``recover`` may have failed because of the disk. And it writes CDI specs again
        that another program removed.

        Raises:
            DriverError: Another instance of the agent does not release the lock.
            OSError: A file cannot be read, written or removed.
        """
        try:
            await self._preparer.recover()
        except OSError:  # what is in one claim's way keeps no other from being given back
            await self._compare()
            raise
        await self._compare()

    async def _compare(self) -> None:
        """Compare all prepared claims with the API in one pass: the main part of ``once``."""
        # 1. Claims whose entries cannot be read, and devices that claims left on the hardware.
        vanished = await self._preparer.rebuild()  # uids of claims that do not exist
        await self._give_back_vanished(vanished)
        left_devices = await self._preparer.clean()
        held = {uuid: f"the changes of a former claim cannot be undone: {why}" for uuid, why in left_devices.items()}

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
            logger.error("GPU %s gets no new pods: %s", uuid, held[uuid])
        self._held = held
        self.held(held)
        metrics.GPUS_HELD.set(len(held))

        # 4. GPUs that should leave MIG mode, and devices of used claims that disappeared.
        try:
            reasons_of_stuck_gpus = await self._preparer.rest()  # ends MIG mode where no instance is left
            self.stuck(reasons_of_stuck_gpus)
        except (DriverError, OSError) as error:
            logger.warning("The MIG mode of unused GPUs cannot be checked now: %s", error)
        used = [entry.value for entry, reason in zip(entries.values(), reasons, strict=True) if reason is None]
        await asyncio.gather(*map(self._prepare_again, used))

    async def _release(self, uid: str, entry: Entry[PreparedClaim], reason: str) -> bool:
        """Unprepare a claim that no pod uses, unless it was prepared again; return whether it was unprepared.

        Args:
            uid: The claim's uid.
            entry: The claim's checkpoint entry in this pass. If its file has changed since, the claim was prepared
                again.
            reason: Why no pod uses the claim, for the log.
        """
        try:
            if not await self._preparer.unprepare_if(uid, entry.stamp):
                return False
        except ClaimError as error:
            logger.error("Claim %s cannot be unprepared: %s", uid, error)
            return False
        metrics.ORPHANS.inc()
        logger.warning(
            "Claim %s/%s (%s) was unprepared without a call of the kubelet: %s",
            entry.value.namespace,
            entry.value.name,
            uid,
            reason,
        )
        return True

    async def _prepare_again(self, prepared: PreparedClaim) -> None:
        """Make missing devices of a used claim again.

        The kubelet does not call the agent when a container restarts, so the agent does this on its own.
        """
        try:
            if await self._preparer.again(prepared):
                logger.warning(
                    "Claim %s/%s: its devices were gone, and were made again.", prepared.namespace, prepared.name
                )
        except DriverError as error:
            what = f"Claim {prepared.namespace}/{prepared.name}"
            logger.error("%s: its devices are gone or cannot be checked: %s", what, error)

    async def _give_back_vanished(self, vanished: set[str]) -> None:
        """Unprepare claims that were missing in the API in two passes in a row and have unreadable entries.

        Args:
            vanished: Uids of claims with unreadable checkpoint entries that the API server does not have in this pass.
        """
        before, self._vanished = self._vanished, vanished
        for uid in sorted(vanished & before):
            try:
                await self._preparer.unprepare(uid)
                metrics.ORPHANS.inc()
                logger.warning(
                    "Claim %s, which has an unreadable checkpoint entry, was unprepared because it does not "
                    "exist any more.",
                    uid,
                )
            except ClaimError as error:
                logger.error("Claim %s, which has an unreadable checkpoint entry, cannot be unprepared: %s", uid, error)

    async def _users(self, prepared: PreparedClaim) -> dict[str, str]:
        """Return why a claim's whole GPUs cannot be given to other pods yet, by the GPU's uuid.

        The reason is that processes are, or may be, on the GPU. GPUs without a process are not in the result.
        """
        # The GPU of a part has processes of other claims. The driver does not remove a MIG device that is in use.
        owned = [device.uuid for device in prepared.devices if not device.admin and not device.part]
        what = f"Claim {prepared.namespace}/{prepared.name}"
        try:
            pids = await self._processes(owned)
        except (DriverError, TimeoutError) as error:
            trouble = str(error) or "no answer"
            return dict.fromkeys(owned, f"{what}: whether a process is on it cannot be known: {trouble}")
        return {uuid: f"{what}: {gpu_processes.text(pids[uuid])}" for uuid in owned if pids.get(uuid)}

    async def _without_claim(self) -> dict[str, str]:
        """Return why no new pod should get certain GPUs without a claim, by uuid.

        These are the GPUs that had processes in two passes in a row, although no claim has them. If the driver does not
        list the processes now, the result has the reasons of the last pass.
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
        """Return why no pod can be using a claim; None if a pod may use it.

        If the API server does not answer, the result is None, too. The event ``used`` occurs only if the API server
        confirms that pods use the claim.
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
