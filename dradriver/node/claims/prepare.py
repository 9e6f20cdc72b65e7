"""Preparing and unpreparing claims.

What changes the ledgers happens under the node's lock in one piece without an await, so the kubelet's cancellation
after 45 s finds it undone or done. What changes hardware is between two such pieces, see ``claim_hardware``. All that
is done for one call has the claim's lock, so that no two calls for a claim cross, whichever instances of the agent they
reach: what a call has read of the claim stands until it ends, and what outlives a call is over before the next
begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.slices import mig_devices
from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.node.claims import gpu_processes, missing_devices
from dradriver.node.claims.checkpoint import PreparedClaim, checked_uid
from dradriver.node.claims.claim_hardware import Making
from dradriver.node.claims.claim_reader import GET_S, ClaimReader, GetClaim
from dradriver.node.claims.container_env import ContainerEnv, request_of
from dradriver.node.claims.gpu_processes import Processes
from dradriver.node.claims.ledgers import Ledgers
from dradriver.node.claims.nccl_settings import Nccl
from dradriver.node.claims.prepare_plan import Plan, plan
from dradriver.node.claims.rebuild import Rebuilder
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.errors import ClaimError, NotYetError
from dradriver.node.journal import Entry, Stamp
from dradriver.node.lock import locked, take
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

BUDGET_S: Final = 40.0  # the kubelet gives up after 45 s, and an error costs the pod more than a minute
RETRY_S: Final = 1.0
_LEAST_MAKE_S: Final = 3.0
_DOUBT_S: Final = 2.0  # a claim that is prepared waits no longer for the API server to say that it still is the same

Below = Callable[[], Awaitable[Machine | None]]


class Preparer:
    """The prepared claims of this node.

    Two instances of the agent may work on the same folders: what counts is on disk.

    Attributes:
        made_ready: Called with a claim that was made ready again.
        given_back: Told of the uid of a claim that is not prepared any more.
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
            state_dir: Holds the ledgers and the locks; shared with other instances on this node.
            cdi_root: The runtime's folder of CDI specs.
            get_claim: Reads a claim from the API server by namespace and name.
            machine: Gives the machine as it is now; None until it was read.
            device_manager: The kinds of devices, and what makes them.
            boot: Id of this boot.
            processes: Says which processes compute on GPUs: one with any is not given out.
            exclusive: Says of a GPU, by its uuid, whether its parts are of one namespace at a time.
            nccl: What NCCL is told.
            below: Gives the server below a virtual machine.
            budget_s: How long a prepare goes on trying.
        """
        self._node = node
        self._boot = boot
        self._lock = state_dir / "serialize.lock"
        self._calls = state_dir / "calls.lock"
        self._ledgers = Ledgers(
            state_dir, cdi_root, boot=boot, driver=device_manager.driver, machine=machine, exclusive=exclusive
        )
        self._device_manager = device_manager
        self._processes = processes
        self._container_env = ContainerEnv(self._ledgers.mounted.path, nccl or Nccl())
        self._below = below
        self.made_ready: Event[[ResourceClaim, PreparedClaim]] = Event()
        self.given_back: Event[[str]] = Event()
        self._making = Making(state_dir, self._lock, self._ledgers, device_manager)
        self._reader = ClaimReader(get_claim)
        self._rebuilder = Rebuilder(
            self._ledgers, self._lock, self._reader, device_manager, machine, node=node, boot=boot
        )
        self._machine = machine
        self._budget_s = budget_s
        self._changed = asyncio.Event()
        self._machine_changed = asyncio.Event()
        self._sure: dict[str, Stamp] = {}  # entries that were compared with the API by this process
        self._unready: set[str] = set()  # claims that this process made, and that cannot be used yet

    async def recover(self) -> None:
        """Put right what a crash or a reboot left: every prepared claim has its CDI spec, and no other has one.

        What it left on the hardware is for ``clean``, which may have to wait for a driver.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read, written or removed.
        """
        async with locked(self._lock):
            self._ledgers.recover()

    async def run(self) -> None:
        """Keep the CDI specs of prepared claims as the machine is until cancelled.

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
        """Look which GPUs are away, and let every prepare that waits try again."""
        self._machine_changed.set()
        self.poke()

    def poke(self) -> None:
        """Let every prepare call that waits try again now: a device became free, or the machine changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def doubt(self, uid: str) -> None:
        """Have a prepared claim compared with the API again before it is answered from its entry."""
        self._sure.pop(uid, None)

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Make the claim's devices ready and return them; a claim that is ready already is answered from its entry.

        What can come right by itself is tried until the budget is spent: an API server that does not answer, a device
        that another claim still holds or that processes are on, a GPU that is lost.

        Raises:
            DriverError: The claim cannot be prepared; the message is for the pod's owner.
        """
        checked_uid(uid)
        loop = asyncio.get_running_loop()
        started = loop.time()
        logged = ""
        while True:
            changed = self._changed
            try:
                async with self._alone(uid, until=started + self._budget_s) as held:
                    return await self._attempt(namespace, name, uid, held, until=started + self._budget_s)
            except NotYetError as error:
                left = started + min(self._budget_s, error.patience_s) - loop.time()
                if left <= 0:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    logger.info("claim %s/%s waits: %s", namespace, name, logged)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(RETRY_S, left)):
                    await changed.wait()

    async def again(self, prepared: PreparedClaim) -> bool:
        """Make again what is missing of a prepared claim's devices; return whether something was.

        Not while a call for the claim is under way, and not after a reboot, when the kubelet asks for what it wants.

        Raises:
            DriverError: It cannot be made now, or the hardware does not say whether it is there.
        """
        uid, loop = prepared.uid, asyncio.get_running_loop()
        try:
            async with self._alone(uid, until=loop.time()) as held:
                machine = self._machine()
                if missing_devices.is_away(prepared, machine):
                    return False
                if missing_devices.doubtful(prepared, machine):  # a reading, made before the claim maybe
                    await self._making.look(uid)
                if missing_devices.awaited(prepared, machine):
                    return False
                async with locked(self._lock):
                    entry = self._ledgers.claims.get(uid)
                    if entry is None or entry.value.boot != self._boot or self._ledgers.whole(entry.value):
                        return False
                await self._attempt(prepared.namespace, prepared.name, uid, held, until=loop.time() + self._budget_s)
        except _CallError:
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
        await self._given_back(uid, patience_s=self._budget_s)

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
        """Return a claim as it is prepared, read without the lock."""
        try:
            entry = self._ledgers.claims.get(uid)
        except OSError:
            return None
        return entry.value if entry is not None else None

    async def unprepare_if(self, uid: str, stamp: Stamp) -> bool:
        """Unprepare a claim unless it was prepared again since its entry had this stamp; return whether.

        Nor are they while a call for the claim is under way.

        Raises:
            DriverError: A file could not be read or removed, or something not be undone.
        """
        with contextlib.suppress(_CallError):
            return await self._given_back(uid, stamp, patience_s=0)
        return False

    async def clean(self) -> dict[str, str]:
        """Undo what is left on the hardware of claims that are not prepared. Returns why that cannot be, by uuid."""
        return await self._making.clean()

    async def rest(self) -> dict[str, str]:
        """End MIG mode on GPUs that are published whole and have no instance. Returns why it goes on, by uuid.

        Raises:
            DriverError: Others go on changing hardware.
            OSError: The ledger cannot be read.
        """
        machine = self._machine()
        gpus = machine.gpus if machine is not None else ()
        return await self._making.rest([gpu.uuid for gpu in gpus if gpu.mig == () and mig_devices.can_be_whole(gpu)])

    async def rebuild(self) -> set[str]:
        """Rebuild the entries that a newer agent wrote; return the uids of those whose claims do not exist any more.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read or written.
        """
        return await self._rebuilder.rebuild()

    async def _attempt(self, namespace: str, name: str, uid: str, held: int, *, until: float) -> PreparedClaim:
        entry, sure = await self._known(uid)
        if entry is not None and sure:
            return entry.value
        try:
            at_most_s = GET_S if entry is None else _DOUBT_S
            claim = await self._reader.read(namespace, name, uid, until=until, at_most_s=at_most_s)
        except NotYetError:
            if entry is None:
                raise
            await self._making.check(uid)
            return entry.value  # nobody says otherwise
        if entry is not None and self._same(entry.value, claim):
            return await self._ready(claim, entry)
        machine = self._machine()
        if machine is None:
            raise NotYetError("the node's GPUs have not been read yet; the node agent's log says more if that lasts")
        below = await self._below() if self._below is not None and machine.virtual else None
        planned = plan(
            claim, machine, self._device_manager, self._container_env, node=self._node, boot=self._boot, below=below
        )
        if not planned.claim.devices:
            return planned.claim
        try:
            if entry is not None:  # allocated again since
                await self._give_back(uid, held)
            await gpu_processes.refuse(self._processes, planned, self._ledgers, self._lock, until=until)
            if planned.intents:
                done = await self._made(planned, held, until=until)
            else:
                async with locked(self._lock):
                    self._ledgers.refuse_taken(planned.claim)
                    done = self._ledgers.put(planned.claim, planned.files(planned.claim))
        except OSError as error:
            raise NotYetError(f"the node cannot write what it prepares: {error}") from error
        self._unready.add(uid)
        return await self._ready(claim, done)

    async def _ready(self, claim: ResourceClaim, entry: Entry[PreparedClaim]) -> PreparedClaim:
        """Return a claim that is prepared, once what was made for it can be used.

        Raises:
            NotYetError: It cannot be yet. The claim stays prepared, so that nothing has to prepare it again.
        """
        uid = entry.value.uid
        await self._making.check(uid)
        self._sure[uid] = entry.stamp
        if uid in self._unready:
            self._unready.remove(uid)
            self.made_ready(claim, entry.value)
        return entry.value

    async def _known(self, uid: str) -> tuple[Entry[PreparedClaim] | None, bool]:
        """Return the entry of a claim that is prepared, and whether it surely is what the claim is allocated to.

        Between two calls the kubelet may have lost its memory and the claim been allocated again, which only the API
        can tell: entries of this process's own are sure until the reconciler doubts them.
        """
        try:
            async with locked(self._lock):
                entry = self._ledgers.find(uid)
                if entry is None:
                    return None, False
                sure = self._sure.get(uid) == entry.stamp
                entry = self._ledgers.show(entry.value)
        except OSError as error:
            raise NotYetError(f"the node cannot read or write what is prepared: {error}") from error
        if sure:
            self._sure[uid] = entry.stamp
        return entry, sure

    async def _made(self, planned: Plan, held: int, *, until: float) -> Entry[PreparedClaim]:
        try:
            async with asyncio.timeout_at(max(until, asyncio.get_running_loop().time() + _LEAST_MAKE_S)):
                return await self._making.prepare(planned, held)
        except TimeoutError as error:
            raise NotYetError("the claim's devices are still being made") from error

    def _same(self, prepared: PreparedClaim, claim: ResourceClaim) -> bool:
        """Return whether the claim is still allocated to what was prepared for it."""
        devices = {(d.request, d.pool, d.device, d.share_id) for d in prepared.devices}
        return devices == {(request_of(r), r.pool, r.device, r.share_id) for r in claim.results}

    @contextlib.asynccontextmanager
    async def _alone(self, uid: str, *, until: float) -> AsyncIterator[int]:
        """Hold the claim's lock during the block, and give the descriptor that holds it.

        Raises:
            NotYetError: Another call for the claim does not end.
        """
        patience_s = max(0.0, until - asyncio.get_running_loop().time())
        try:
            held = await take(self._calls, of=uid, patience_s=patience_s)
        except NotYetError as error:
            raise _CallError(f"an earlier call for the claim (uid {uid}) is still under way") from error
        except OSError as error:
            raise NotYetError(f"the node cannot lock the claim: {error}") from error
        try:
            yield held
        finally:
            os.close(held)

    async def _given_back(self, uid: str, stamp: Stamp | None = None, *, patience_s: float) -> bool:
        try:
            async with self._alone(uid, until=asyncio.get_running_loop().time() + patience_s) as held:
                return await self._give_back(uid, held, stamp)
        except OSError as error:
            raise ClaimError(f"the node cannot remove what it prepared: {error}") from error

    async def _give_back(self, uid: str, held: int, stamp: Stamp | None = None) -> bool:
        async with locked(self._lock):
            if stamp is not None and not self._ledgers.claims.has(uid, stamp):
                return False
            made = bool(self._ledgers.made.of(uid))
            if not made:
                self._ledgers.drop(uid)
        if made:
            await self._making.unprepare(uid, held)
        self._sure.pop(uid, None)
        self._unready.discard(uid)
        self.given_back(uid)
        self.poke()
        return True


class _CallError(NotYetError):
    """An earlier call for the claim does not end."""
