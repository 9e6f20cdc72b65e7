"""Prepares and unprepares claims, for the kubelet's calls.

Two locks exclude other calls in this agent and in other instances of the agent on the node:

* The node's lock protects the ledgers. The code never awaits in the middle of a change of the ledgers. So if the
  kubelet cancels its call after 45 s, a change either has not begun or is complete. Changes of hardware happen between
  two changes of the ledgers, see ``claim_hardware``.
* The claim's lock is held for the whole call, so that two calls for one claim never overlap. What a call has read about
  the claim stays true until the call ends. If a cancelled call left work running, the next call waits for its end.

The ledgers are the agent's records of claims on disk. The checkpoint has the prepared claims, with the answers that the
kubelet got. The hardware journal has the MIG instances and shares that the agent made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.slices import mig_devices
from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.node.claims import gpu_processes, missing_devices
from dradriver.node.claims.allocated_claim import request_of
from dradriver.node.claims.checkpoint import PreparedClaim, checked_uid
from dradriver.node.claims.claim_hardware import Making
from dradriver.node.claims.claim_lock import EarlierCallError, claim_locked
from dradriver.node.claims.claim_reader import GET_S, ClaimReader, GetClaim
from dradriver.node.claims.container_env import ContainerEnv
from dradriver.node.claims.gpu_processes import Processes
from dradriver.node.claims.ledgers import Ledgers
from dradriver.node.claims.nccl_settings import Nccl
from dradriver.node.claims.prepare_plan import Plan, plan
from dradriver.node.claims.rebuild import Rebuilder
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.errors import ClaimError, NotYetError
from dradriver.node.journal import Entry, Stamp
from dradriver.node.lock import locked
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

BUDGET_S: Final = 40.0  # the kubelet gives up after 45 s, and after an error the pod waits more than a minute
RETRY_S: Final = 1.0
_LEAST_MAKE_S: Final = 3.0
_DOUBT_S: Final = 2.0  # longest wait for the API server to confirm the allocation of a claim that is prepared already

Below = Callable[[], Awaitable[Machine | None]]


class Preparer:
    """Prepares and unprepares the claims of this node.

    In a rolling update, two instances of the agent work on the same folders. So the state is on disk, not in memory.

    Attributes:
        made_ready: An ``event.Event`` that occurs for each claim that was prepared and can be used now.
        given_back: An ``event.Event`` that occurs, with the claim's uid, for each claim that was unprepared.
    """

    def __init__(
        self,
        *,
        node: str,
        state_dir: Path,
        cdi_root: Path,
        get_claim: GetClaim,
        machine: Callable[[], Machine | None],
        device_manager: DeviceManager,
        boot: str,
        processes: Processes = gpu_processes.nobody,
        exclusive: Callable[[str], bool] = lambda _: False,
        nccl: Nccl | None = None,
        below: Below | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        """Store the arguments; prepare nothing and touch no file yet.

        Args:
            node: This node's name.
            state_dir: Folder of the records of claims and of the locks; shared with other instances of the agent on
                this node.
            cdi_root: The container runtime's folder of CDI specs.
            get_claim: Reads a claim from the API server by namespace and name.
            machine: Returns the machine as it is now; None until it was read.
            device_manager: Finds devices, and makes MIG instances and shares.
            boot: Id of this boot.
            processes: Returns the processes that compute on GPUs. A GPU with such a process is not given to a claim.
            exclusive: For a GPU's uuid, returns whether only one namespace at a time may use fractions of the GPU.
            nccl: Makes NCCL's settings for containers; None for an ``Nccl`` with its defaults.
            below: Returns the physical server below a virtual machine.
            budget_s: Seconds that one prepare call may take.
        """
        self._node = node
        self._boot = boot
        self._lock = state_dir / "serialize.lock"  # the node's lock, of the ledgers
        self._calls = state_dir / "calls.lock"  # the claims' locks
        self._ledgers = Ledgers(
            state_dir, cdi_root, boot=boot, driver=device_manager.driver, machine=machine, exclusive=exclusive
        )
        self._device_manager = device_manager
        self._processes = processes
        self._container_env = ContainerEnv(self._ledgers.mounted.path, nccl or Nccl())
        self._below = below
        # Called when a claim can be used for the first time, and with the uid of a claim that was released.
        self.made_ready: Event[[ResourceClaim, PreparedClaim]] = Event()
        self.given_back: Event[[str]] = Event()

        self._making = Making(state_dir, self._lock, self._ledgers, device_manager)
        self._reader = ClaimReader(get_claim)
        self._rebuilder = Rebuilder(
            self._ledgers, self._lock, self._reader, device_manager, machine, node=node, boot=boot
        )
        self._machine = machine
        self._budget_s = budget_s
        self._changed = asyncio.Event()  # set to have waiting prepare calls try again
        self._machine_changed = asyncio.Event()  # set to have the CDI specs compared with the machine
        self._confirmed: dict[str, Stamp] = {}  # entries that this process compared with the API, by claim uid
        self._not_ready: set[str] = set()  # uids of claims that this process prepared and that cannot be used yet

    async def recover(self) -> None:
        """Write the CDI specs that prepared claims need and remove all others, after a crash or reboot.

        ``Ledgers.recover`` says which claims need a spec. This method does not change hardware. ``clean`` does that,
        because a change may have to wait for the GPU driver.

        Raises:
            DriverError: Another instance of the agent does not release the lock.
            OSError: A file cannot be read, written or removed.
        """
        async with locked(self._lock):
            self._ledgers.recover()

    async def run(self) -> None:
        """Update the CDI specs of prepared claims after each change of the machine, until cancelled.

        The agent calls ``recover`` before it calls this method.
        """
        while True:
            await self._machine_changed.wait()
            self._machine_changed.clear()
            try:
                await self.recover()
            except (DriverError, OSError) as error:
                logger.error("The CDI files cannot be updated after a change of the machine: %s", error)

    def machine_changed(self) -> None:
        """Make waiting prepare calls try again after a change of the machine, and have the CDI specs updated."""
        self._machine_changed.set()
        self.poke()

    def poke(self) -> None:
        """Make every waiting prepare call try again now, because a device became free or the machine changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def doubt(self, uid: str) -> None:
        """Make the next prepare call compare a prepared claim with the API server.

        Without this, the call may take its answer from the checkpoint alone, although the claim has been allocated to
        other devices since.
        """
        self._confirmed.pop(uid, None)

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Prepare a claim and return it; a claim that is prepared already is read from the checkpoint.

        If the reason of a failure may pass (``NotYetError``), the call tries again until its time budget is spent.
        Examples: the API server does not answer, another claim or a process still uses a device, a GPU is lost.

        Args:
            namespace: The claim's namespace.
            name: The claim's name.
            uid: The claim's uid.

        Raises:
            DriverError: The claim cannot be prepared; the message is for the pod's owner.
        """
        checked_uid(uid)
        loop = asyncio.get_running_loop()
        started = loop.time()
        logged = ""
        while True:
            # Taken before the attempt, so that a change during the attempt ends the pause below at once.
            changed = self._changed
            try:
                async with claim_locked(self._calls, uid, until=started + self._budget_s) as lock_fd:
                    return await self._attempt(namespace, name, uid, lock_fd, until=started + self._budget_s)
            except NotYetError as error:
                left_s = started + min(self._budget_s, error.patience_s) - loop.time()
                if left_s <= 0:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    logger.info("claim %s/%s waits: %s", namespace, name, logged)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(RETRY_S, left_s)):
                    await changed.wait()

    async def again(self, prepared: PreparedClaim) -> bool:
        """Make the devices of a prepared claim again if one disappeared; return whether they were made again.

        The method does nothing in these cases:

        * Another call for the claim runs.
        * The claim was prepared in an earlier boot: the kubelet prepares it again.
        * A GPU of the claim is missing.
        * The missing device is a MIG instance that another program had made.

        Raises:
            DriverError: The device cannot be made now, or the hardware does not say whether it exists.
        """
        uid, loop = prepared.uid, asyncio.get_running_loop()
        try:
            async with claim_locked(self._calls, uid, until=loop.time()) as lock_fd:
                machine = self._machine()
                if missing_devices.is_away(prepared, machine):
                    return False
                # The last reading may be older than the claim's devices: then look at the hardware itself.
                if missing_devices.doubtful(prepared, machine):
                    await self._making.look(uid)
                if missing_devices.awaited(prepared, machine):
                    return False
                async with locked(self._lock):
                    entry = self._ledgers.claims.get(uid)
                    if entry is None or entry.value.boot != self._boot or self._ledgers.is_complete(entry.value):
                        return False
                await self._attempt(prepared.namespace, prepared.name, uid, lock_fd, until=loop.time() + self._budget_s)
        except EarlierCallError:
            return False
        except OSError as error:
            raise NotYetError(
                f"the node agent cannot read or write its records of MIG instances and shares: {error}"
            ) from error
        return True

    async def unprepare(self, uid: str) -> None:
        """Unprepare a claim: release its devices; a claim that is not prepared is no error.

        Raises:
            ClaimError: The uid is not valid, a process uses a device that must be undone, a file could not be removed,
                or an earlier call for the claim does not end.
        """
        checked_uid(uid)
        await self._lock_and_release(uid, patience_s=self._budget_s)

    async def prepared(self) -> dict[str, Entry[PreparedClaim]]:
        """Return all prepared claims by uid.

        Raises:
            DriverError: Another instance of the agent does not release the lock.
            OSError: A file cannot be read.
        """
        async with locked(self._lock):
            return self._ledgers.claims.read()

    async def devices(self) -> dict[str, list[str]]:
        """Return the names of the devices that prepared claims have, by the GPU's uuid.

        A GPU with several fractions has several names. Raises DriverError if the lock is not released, OSError if a
        file cannot be read.
        """
        by_uuid: dict[str, list[str]] = {}
        for entry in (await self.prepared()).values():
            for device in entry.value.devices:
                by_uuid.setdefault(device.uuid, []).append(device.device)
        return by_uuid

    def get(self, uid: str) -> PreparedClaim | None:
        """Return a prepared claim by its uid; None if there is no readable entry.

        The method does not take the node's lock, so the claim may change at the same time.
        """
        try:
            entry = self._ledgers.claims.get(uid)
        except OSError:
            return None
        return entry.value if entry is not None else None

    async def unprepare_if(self, uid: str, stamp: Stamp) -> bool:
        """Unprepare a claim if it was not prepared again meanwhile and no other call for the claim runs.

        Args:
            uid: The claim's uid.
            stamp: Identifies the state of the claim's checkpoint entry at an earlier look. Each prepare call changes
                the stamp.

        Returns:
            Whether the claim was unprepared.

        Raises:
            DriverError: A file could not be read or removed, or a process uses a device that must be undone.
        """
        with contextlib.suppress(EarlierCallError):
            return await self._lock_and_release(uid, stamp, patience_s=0)
        return False

    async def clean(self) -> dict[str, str]:
        """Undo the hardware changes of claims that are not prepared any more.

        Returns:
            Why a change could not be undone, by the GPU's uuid.
        """
        return await self._making.clean()

    async def rest(self) -> dict[str, str]:
        """End MIG mode on GPUs without MIG instances that can leave the mode without a reset.

        Only GPUs on which the agent makes MIG instances for claims leave the mode. The result says, by GPU uuid, why
        MIG mode could not be ended. GPUs without a failure are left out.

        Raises:
            DriverError: Another instance of the agent is changing hardware.
            OSError: The hardware journal cannot be read.
        """
        machine = self._machine()
        gpus = machine.gpus if machine is not None else ()
        return await self._making.rest([gpu.uuid for gpu in gpus if gpu.mig == () and mig_devices.can_be_whole(gpu)])

    async def rebuild(self) -> set[str]:
        """Rebuild the checkpoint entries of a newer agent, so that this agent can read them.

        This is needed after a rollback of this DRA driver: a newer release may have written entries in a form that this
        release does not know.

        Returns:
            The uids of claims whose entries this agent cannot read, and which do not exist in the API any more. Their
            entries are not rebuilt.

        Raises:
            DriverError: Another instance of the agent does not release the lock.
            OSError: A file cannot be read or written.
        """
        return await self._rebuilder.rebuild()

    async def _attempt(self, namespace: str, name: str, uid: str, lock_fd: int, *, until: float) -> PreparedClaim:
        """Try once to prepare a claim, and return it.

        ``lock_fd`` is the open file descriptor that holds the claim's lock. ``until`` is the end of the call's time
        budget, in seconds of the event loop's clock.

        Raises:
            NotYetError: The claim cannot be prepared now; a later attempt may succeed.
            DriverError: The claim cannot be prepared.
        """
        # 1. It is prepared already, and its allocation was compared with the API since.
        entry, is_confirmed = await self._entry_of(uid)
        if entry is not None and is_confirmed:
            return entry.value

        # 2. It is prepared, for the allocation that it has. If the API server does not answer, the entry counts.
        try:
            at_most_s = GET_S if entry is None else _DOUBT_S  # with an entry there is an answer without the server
            claim = await self._reader.read(namespace, name, uid, until=until, at_most_s=at_most_s)
        except NotYetError:
            if entry is None:
                raise
            await self._making.check(uid)  # raises unless what was made for it can be used now
            return entry.value
        if entry is not None and self._is_prepared_for(entry.value, claim):
            return await self._when_usable(claim, entry)

        # 3. Plan. ``below`` is the physical server below a virtual machine.
        machine = self._machine()
        if machine is None:
            raise NotYetError("the node agent has not read the node's GPUs yet. If this lasts, read its log.")
        below = await self._below() if self._below is not None and machine.virtual else None
        planned = plan(
            claim, machine, self._device_manager, self._container_env, node=self._node, boot=self._boot, below=below
        )
        if not planned.claim.devices:  # all devices of the claim are other drivers'
            return planned.claim

        # 4. Prepare. An entry that is left here is of an earlier allocation of the claim.
        try:
            if entry is not None:
                await self._release(uid, lock_fd)
            await gpu_processes.raise_if_occupied(self._processes, planned, self._ledgers, self._lock, until=until)
            # Intents are MIG instances and shares that must be made on the hardware first.
            if planned.intents:
                new_entry = await self._make(planned, lock_fd, until=until)
            else:
                async with locked(self._lock):
                    self._ledgers.raise_if_taken(planned.claim)
                    new_entry = self._ledgers.put(planned.claim, planned.files(planned.claim))
        except OSError as error:
            raise NotYetError(f"the node cannot write what it prepares: {error}") from error

        # 5. Its devices may not be usable yet: ``_when_usable`` checks that, and tells others once they are.
        self._not_ready.add(uid)
        return await self._when_usable(claim, new_entry)

    async def _when_usable(self, claim: ResourceClaim, entry: Entry[PreparedClaim]) -> PreparedClaim:
        """Return a prepared claim if its devices can be used now; else raise NotYetError.

        The event ``made_ready`` occurs the first time that they can be used.

        Raises:
            NotYetError: Its devices cannot be used yet. The claim stays prepared, so that the next attempt only checks.
        """
        uid = entry.value.uid
        await self._making.check(uid)
        self._confirmed[uid] = entry.stamp
        if uid in self._not_ready:
            self._not_ready.remove(uid)
            self.made_ready(claim, entry.value)
        return entry.value

    async def _entry_of(self, uid: str) -> tuple[Entry[PreparedClaim] | None, bool]:
        """Return a claim's checkpoint entry, and whether its allocation is known to be current.

        The entry is None if the claim must be prepared. The allocation is known to be current if an earlier call
        compared it with the API server, and ``doubt`` was not called since. Otherwise the caller must compare: between
        two calls the kubelet may have lost its state, and the claim may have been allocated again.
        """
        try:
            async with locked(self._lock):
                entry = self._ledgers.find(uid)
                if entry is None:
                    return None, False
                is_confirmed = self._confirmed.get(uid) == entry.stamp
                entry = self._ledgers.show(entry.value)
        except OSError as error:
            raise NotYetError(f"the node agent cannot read or write its records of prepared claims: {error}") from error
        if is_confirmed:
            self._confirmed[uid] = entry.stamp
        return entry, is_confirmed

    async def _make(self, planned: Plan, lock_fd: int, *, until: float) -> Entry[PreparedClaim]:
        """Make the MIG instances and shares of a planned claim, and return the claim's checkpoint entry.

        If this takes longer than the budget, NotYetError is raised and the work continues.

        Args:
            planned: The plan to prepare the claim.
            lock_fd: The open file descriptor that holds the claim's lock.
            until: The end of the call's time budget, in seconds of the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(max(until, asyncio.get_running_loop().time() + _LEAST_MAKE_S)):
                return await self._making.prepare(planned, lock_fd)
        except TimeoutError as error:
            raise NotYetError("the claim's devices are still being made") from error

    def _is_prepared_for(self, prepared: PreparedClaim, claim: ResourceClaim) -> bool:
        """Return whether a claim is still allocated to the devices that were prepared for it.

        If not, the claim was allocated again, and the caller prepares it again.
        """
        devices = {(d.request, d.pool, d.device, d.share_id) for d in prepared.devices}
        return devices == {(request_of(r), r.pool, r.device, r.share_id) for r in claim.results}

    async def _lock_and_release(self, uid: str, stamp: Stamp | None = None, *, patience_s: float) -> bool:
        """Take the claim's lock and unprepare the claim; return whether it was unprepared.

        Args:
            uid: The claim's uid.
            stamp: Identifies an earlier state of the claim's checkpoint entry. If the entry has changed since, the
                claim was prepared again and stays prepared. None releases the claim in any state.
            patience_s: Seconds to wait for an earlier call for the claim.

        Raises:
            DriverError: An earlier call does not end, a file could not be removed, or a process uses a device that must
                be undone.
        """
        try:
            async with claim_locked(self._calls, uid, until=asyncio.get_running_loop().time() + patience_s) as lock_fd:
                return await self._release(uid, lock_fd, stamp)
        except OSError as error:
            raise ClaimError(f"the node cannot remove what it prepared: {error}") from error

    async def _release(self, uid: str, lock_fd: int, stamp: Stamp | None = None) -> bool:
        """Unprepare a claim whose lock is held; return whether it was unprepared.

        Args:
            uid: The claim's uid.
            lock_fd: The open file descriptor that holds the claim's lock.
            stamp: Identifies an earlier state of the claim's checkpoint entry. If the entry has changed since, the
                claim was prepared again and stays prepared. None releases the claim in any state.
        """
        async with locked(self._lock):
            if stamp is not None and not self._ledgers.claims.has(uid, stamp):
                return False
            has_made_devices = bool(self._ledgers.made.of(uid))
            if not has_made_devices:
                self._ledgers.drop(uid)
        if has_made_devices:
            await self._making.unprepare(uid, lock_fd)
        self._confirmed.pop(uid, None)
        self._not_ready.discard(uid)
        self.given_back(uid)
        self.poke()
        return True
