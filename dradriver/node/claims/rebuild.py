"""Claims whose entries a newer agent wrote: before a rollback of the driver, this node's agent was that one.

Their pods run. What the containers were given is in the CDI spec, which stands as it is; what the claim holds is in the
API. Both together make an entry of this agent's own. All that is taken from the newer file is which claim it is of,
and of that the API server decides.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.claims.claim_reader import AnotherError, ClaimReader, GoneError
from dradriver.node.claims.container_env import config_for, request_of
from dradriver.node.claims.ledgers import Ledgers
from dradriver.node.container_edits import Edits
from dradriver.node.devices.device_kinds import AllocatedDevice, MadeKind
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.errors import NotYetError
from dradriver.node.lock import locked
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # of objects, by the API's rule


class Rebuilder:
    """Writes the entries anew of which a newer agent's files were set aside."""

    def __init__(
        self,
        ledgers: Ledgers,
        lock: Path,
        reader: ClaimReader,
        device_manager: DeviceManager,
        machine: Callable[[], Machine | None],
        *,
        node: str,
        boot: str,
    ) -> None:
        """Rebuild nothing yet.

        Args:
            ledgers: Where the files are, and the entries go.
            lock: The lock of the ledgers.
            reader: Reads claims from the API server.
            device_manager: Knows what devices are, and what others' specifications bring.
            machine: Gives the machine as it is now; None until it was read.
            node: This node's pool.
            boot: Id of this boot.
        """
        self._ledgers = ledgers
        self._lock = lock
        self._reader = reader
        self._device_manager = device_manager
        self._machine = machine
        self._node = node
        self._boot = boot

    async def rebuild(self) -> set[str]:
        """Rebuild the checkpoint entries that a newer agent wrote; return the uids of claims that are gone.

        Of these the device metadata says which claim it was: text that is damaged may say any name, and one that does
        not exist.

        Raises:
            DriverError: Another instance does not let go of the lock.
            OSError: A file cannot be read or written.
        """
        async with locked(self._lock):
            self._ledgers.claims.read()  # sets aside
            newer = {uid: _identity([text], uid) for uid, text in self._ledgers.claims.newer().items()}
            damaged = {
                uid: _identity(self._ledgers.mounted.read(uid), uid)
                for uid in self._ledgers.claims.kept() - newer.keys()
                if not self._ledgers.claims.foreign(uid)
            }
        vanished = set()
        for uid, known in (newer | damaged).items():
            machine = self._machine()
            if known is None or machine is None:
                continue
            try:
                claim = await self._reader.read(known.namespace, known.name, uid)
            except (GoneError, AnotherError):
                vanished.add(uid)
                continue
            except NotYetError as error:
                logger.warning("claim %s, whose entry cannot be read, is unknown until the API tells: %s", uid, error)
                continue
            if uid in newer:
                async with locked(self._lock):
                    self._put(claim, machine)
        return vanished

    def _put(self, claim: ResourceClaim, machine: Machine) -> None:
        uid, who = claim.metadata.uid, f"{claim.metadata.namespace}/{claim.metadata.name}"
        edits = self._ledgers.cdi.read(uid)
        prepared = None if edits is None else self._rebuilt(claim, edits, machine)
        if prepared is None:
            logger.error("claim %s was prepared by a newer agent, which this one cannot copy; its pod goes on", who)
        elif uid in self._ledgers.claims.kept():
            self._ledgers.put(prepared)
            metrics.CHECKPOINT_REBUILT.inc()
            logger.warning("claim %s was prepared by a newer agent; its entry was written anew", who)

    def _rebuilt(self, claim: ResourceClaim, edits: Mapping[str, Edits], machine: Machine) -> PreparedClaim | None:
        """Return what was prepared for the claim; None where its spec says what this agent would lose.

        Args:
            claim: The claim as the API server has it.
            edits: What its CDI spec brings to containers, by the names of the spec's devices.
            machine: Tells the GPUs' own identities; of one that is lost now it is made from the device's name.
        """
        left = dict(edits)
        meta = claim.metadata
        bare = PreparedClaim(uid=meta.uid, namespace=meta.namespace, name=meta.name, boot=self._boot, devices=())
        devices = []
        for result in claim.results:
            request = request_of(result)
            config = None
            with contextlib.suppress(DriverError):  # a newer agent's word, maybe; a whole GPU needs none
                config = config_for(claim, result)
            wish = AllocatedDevice(result.device, request, result.consumed_capacity, config)
            try:
                located = self._device_manager.find(machine, wish)
            except DriverError as error:
                logger.warning("claim %s/%s: %s", meta.namespace, meta.name, error)
                return None
            kind, gpu = (None, None) if located is None else (located.kind, located.gpu)
            if result.pool != self._node or isinstance(kind, MadeKind):
                return None
            device = PreparedDevice(
                request=request,
                pool=result.pool,
                device=result.device,
                uuid=result.device.replace("gpu-", "GPU-", 1) if gpu is None else gpu.uuid,
                part=kind.name if kind is not None and kind.part else "",
                share_id=result.share_id,
                admin=bool(result.admin_access),
            )
            others = kind.edits(gpu).cdi if kind is not None and gpu is not None else ()
            own = left.pop(cdi.device_name(bare, device), Edits())
            devices.append(msgspec.structs.replace(device, edits=own + Edits(cdi=others)))
        if left or not devices:
            return None
        return msgspec.structs.replace(bare, devices=tuple(devices))


class _Identity(msgspec.Struct, frozen=True):
    """Which claim an entry is of: these fields stand where they stand in every version."""

    uid: str
    namespace: str
    name: str


class _AnyFile(msgspec.Struct):
    entry: _Identity | None = None  # of a ledger
    metadata: _Identity | None = None  # of what is mounted


def _identity(texts: Iterable[bytes], uid: str) -> _Identity | None:
    """Return which claim files are of, a newer agent's or mounted ones; None where none says, or it says another."""
    for text in texts:
        try:
            file = msgspec.json.decode(text, type=_AnyFile)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        known = file.entry or file.metadata
        if known is not None and known.uid == uid and all(map(_NAME.fullmatch, (known.namespace, known.name))):
            return known
    return None
