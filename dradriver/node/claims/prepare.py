"""Prepares and unprepares claims, for the kubelet's calls.

There are two locks, both valid for all instances of the agent on the node:

* The node's lock protects the ledgers. A change of them has no await inside, so that the kubelet's cancellation after
  45 s finds it not begun or complete. Changes of hardware happen between two such changes, see ``claim_hardware``.
* The claim's lock is held for the whole of a call, so that two calls for one claim never overlap. What a call has read
  about the claim is true until it ends, and work that outlives a cancelled call ends before the next call begins.
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
    """The prepared claims of this node.

    Two instances of the agent may work on the same folders, so the state on disk decides.

    Attributes:
        made_ready: Called with each claim that was prepared and can be used now.
        given_back: Called with the uid of each claim that is not prepared any more.
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
        """Prepare nothing yet; no file is touched.

        Args:
            node: This node's name.
            state_dir: Folder of the ledgers and the locks; shared with other instances on this node.
            cdi_root: The container runtime's folder of CDI specs.
            get_claim: Reads a claim from the API server by namespace and name.
            machine: Gives the machine as it is now; None until it was read.
            device_manager: Finds devices, and makes MIG instances and shares.
            boot: Id of this boot.
            processes: Gives the processes that compute on GPUs. A GPU with such a process is not given to a claim.
            exclusive: Says whether parts of a GPU (uuid) may be used by one namespace at a time only.
            nccl: Makes NCCL's settings for containers.
            below: Gives the physical server below a virtual machine.
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
        """Let the preparer recover from a crash or reboot: every prepared claim gets its CDI spec, no other keeps one.

        What it left on the hardware is for ``clean``, which may have to wait for a driver.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read, written or removed.
        """
        async with locked(self._lock):
            self._ledgers.recover()

    async def run(self) -> None:
        """Keep the CDI specs of prepared claims in step with the machine until cancelled.

        The agent has called ``recover`` before.
        """
        while True:
            await self._machine_changed.wait()
            self._machine_changed.clear()
            try:
                await self.recover()
            except (DriverError, OSError) as error:
                logger.error("CDI specs are not as the machine is: %s", error)

    def machine_changed(self) -> None:
        """Let waiting prepare calls try again after a change of the machine, and look which GPUs are away."""
        self._machine_changed.set()
        self.poke()

    def poke(self) -> None:
        """Let every prepare call that waits try again now: a device became free, or the machine changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def doubt(self, uid: str) -> None:
        """Have a prepared claim compared with the API again before a prepare call is answered from its entry."""
        self._confirmed.pop(uid, None)

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Prepare a claim and return it.

        A claim that is prepared already is returned from its entry.

        Passing errors are retried until the budget is spent: an API server that does not answer, a device that another
        claim still has or that processes are on, a GPU that is lost.

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
        """Prepare a claim again if one of its devices disappeared; return whether one had.

        Nothing is done while another call for the claim runs, and after a reboot: then the kubelet prepares its claims.

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
            raise NotYetError(f"the node cannot read or write what was made: {error}") from error
        return True

    async def unprepare(self, uid: str) -> None:
        """Unprepare a claim: release its devices; a claim that is not prepared is fine.

        Raises:
            ClaimError: The uid is none, something could not be undone, a file could not be removed, or an earlier call
                does not end.
        """
        checked_uid(uid)
        await self._lock_and_release(uid, patience_s=self._budget_s)

    async def prepared(self) -> dict[str, Entry[PreparedClaim]]:
        """Return all prepared claims by uid.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read.
        """
        async with locked(self._lock):
            return self._ledgers.claims.read()

    async def devices(self) -> dict[str, list[str]]:
        """Return the names of the devices of prepared claims by their GPUs' uuids; errors are those of ``prepared``."""
        by_uuid: dict[str, list[str]] = {}
        for entry in (await self.prepared()).values():
            for device in entry.value.devices:
                by_uuid.setdefault(device.uuid, []).append(device.device)
        return by_uuid

    def get(self, uid: str) -> PreparedClaim | None:
        """Return a prepared claim by its uid, read without the lock."""
        try:
            entry = self._ledgers.claims.get(uid)
        except OSError:
            return None
        return entry.value if entry is not None else None

    async def unprepare_if(self, uid: str, stamp: Stamp) -> bool:
        """Release a prepared claim if its entry still has this stamp and no call for it runs; return whether it had.

        Raises:
            DriverError: A file could not be read or removed, or a device could not be removed.
        """
        with contextlib.suppress(EarlierCallError):
            return await self._lock_and_release(uid, stamp, patience_s=0)
        return False

    async def clean(self) -> dict[str, str]:
        """Let the preparer undo the hardware changes of claims that are not prepared; return failures by GPU uuid."""
        return await self._making.clean()

    async def rest(self) -> dict[str, str]:
        """Let the preparer end MIG mode on GPUs that are published whole without instances; return failures by uuid.

        Raises:
            DriverError: Others go on changing hardware.
            OSError: The ledger cannot be read.
        """
        machine = self._machine()
        gpus = machine.gpus if machine is not None else ()
        return await self._making.rest([gpu.uuid for gpu in gpus if gpu.mig == () and mig_devices.can_be_whole(gpu)])

    async def rebuild(self) -> set[str]:
        """Let the preparer rebuild entries that a newer agent wrote; return the uids of claims that do not exist.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read or written.
        """
        return await self._rebuilder.rebuild()

    async def _attempt(self, namespace: str, name: str, uid: str, lock_fd: int, *, until: float) -> PreparedClaim:
        """Try once to prepare a claim, and return it.

        ``lock_fd`` holds the claim's lock; ``until`` is the end of the call's budget, by the loop's clock.

        Raises:
            NotYetError: It cannot be prepared now; a later attempt may succeed.
            DriverError: It cannot be prepared.
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
            raise NotYetError("the node's GPUs have not been read yet; the node agent's log says more if that lasts")
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
        """Return a prepared claim, and tell the other parts if it can be used for the first time.

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
        """Return the entry of a prepared claim, and whether its allocation is confirmed by the API.

        Between two calls the kubelet may have lost its state and the claim may have been allocated again, which only
        the API knows. An entry stays confirmed until ``doubt`` is called.
        """
        try:
            async with locked(self._lock):
                entry = self._ledgers.find(uid)
                if entry is None:
                    return None, False
                is_confirmed = self._confirmed.get(uid) == entry.stamp
                entry = self._ledgers.show(entry.value)
        except OSError as error:
            raise NotYetError(f"the node cannot read or write what is prepared: {error}") from error
        if is_confirmed:
            self._confirmed[uid] = entry.stamp
        return entry, is_confirmed

    async def _make(self, planned: Plan, lock_fd: int, *, until: float) -> Entry[PreparedClaim]:
        """Make the claim's MIG instances and shares, and return its entry."""
        try:
            async with asyncio.timeout_at(max(until, asyncio.get_running_loop().time() + _LEAST_MAKE_S)):
                return await self._making.prepare(planned, lock_fd)
        except TimeoutError as error:
            raise NotYetError("the claim's devices are still being made") from error

    def _is_prepared_for(self, prepared: PreparedClaim, claim: ResourceClaim) -> bool:
        """Return whether the prepared devices are those that the claim is allocated to."""
        devices = {(d.request, d.pool, d.device, d.share_id) for d in prepared.devices}
        return devices == {(request_of(r), r.pool, r.device, r.share_id) for r in claim.results}

    async def _lock_and_release(self, uid: str, stamp: Stamp | None = None, *, patience_s: float) -> bool:
        """Release a claim under its lock; see ``_release``."""
        try:
            async with claim_locked(self._calls, uid, until=asyncio.get_running_loop().time() + patience_s) as lock_fd:
                return await self._release(uid, lock_fd, stamp)
        except OSError as error:
            raise ClaimError(f"the node cannot remove what it prepared: {error}") from error

    async def _release(self, uid: str, lock_fd: int, stamp: Stamp | None = None) -> bool:
        """Unprepare a claim whose lock is held; return False if its entry has another stamp than ``stamp``."""
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
