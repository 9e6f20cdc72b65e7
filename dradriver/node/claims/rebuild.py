"""Rebuilds the checkpoint entries of claims that a newer agent prepared, after a rollback of the driver.

The pods of these claims run. The CDI spec has what the containers got, and the API has the claim's allocation. From
both, this agent makes an entry that it can read. From the newer agent's file it reads only the claim's identity. The
API server decides whether that claim exists.

An entry is a claim's file in the checkpoint, the record of prepared claims on disk. Container edits are what a device
adds to a container. A result is one device of the claim's allocation.
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
from dradriver.node.claims.allocated_claim import config_for, request_of
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.claims.claim_reader import AnotherError, ClaimReader, GoneError
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
    """Rebuilds checkpoint entries that this agent cannot read, because a newer agent wrote them."""

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
        """Store the arguments; rebuild nothing yet.

        Args:
            ledgers: All files about the node's claims: checkpoint, hardware journal, CDI specs and mounted files.
            lock: The file lock that protects these files.
            reader: Reads claims from the API server.
            device_manager: Finds the devices of a claim on the machine.
            machine: Returns the machine as it is now; None until it was read.
            node: The name of this node's pool.
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
        """Rebuild the checkpoint entries of a newer agent; return the uids of deleted claims.

        Damaged entries are not rebuilt. But if their claims were deleted, the result has their uids, too. A damaged
        entry may contain any name, so the claim's identity is read from its mounted device metadata file.

        Raises:
            DriverError: Another instance does not release the lock.
            OSError: A file cannot be read or written.
        """
        # 1. Which claims the unreadable files are of: a newer agent's say it themselves.
        async with locked(self._lock):
            self._ledgers.claims.read()  # sets unreadable entries aside, for the calls below
            newer = {uid: _identity([text], uid) for uid, text in self._ledgers.claims.newer().items()}
            damaged = {
                uid: _identity(self._ledgers.mounted.read(uid), uid)
                for uid in self._ledgers.claims.unreadable_keys() - newer.keys()
                if not self._ledgers.claims.foreign(uid)  # a newer agent runs next to this one, and looks after it
            }

        # 2. Ask the API server whether each exists, and rebuild the entries of a newer agent.
        vanished = set()
        for uid, identity in (newer | damaged).items():
            machine = self._machine()
            if identity is None or machine is None:
                continue
            try:
                claim = await self._reader.read(identity.namespace, identity.name, uid)
            except (GoneError, AnotherError):
                vanished.add(uid)
                continue
            except NotYetError as error:
                logger.warning(
                    "Claim %s has an unreadable checkpoint entry, and the API server does not show the claim: %s",
                    uid,
                    error,
                )
                continue
            if uid in newer:
                async with locked(self._lock):
                    self._put(claim, machine)
        return vanished

    def _put(self, claim: ResourceClaim, machine: Machine) -> None:
        """Write the rebuilt entry of a claim, unless the claim was unprepared or prepared again in the meantime."""
        uid, claim_name = claim.metadata.uid, f"{claim.metadata.namespace}/{claim.metadata.name}"
        edits = self._ledgers.cdi.read(uid)
        prepared = None if edits is None else self._rebuilt(claim, edits, machine)
        if prepared is None:
            logger.error(
                "Claim %s was prepared by a newer version of the node agent. This version cannot rebuild "
                "its checkpoint entry. The pod goes on.",
                claim_name,
            )
        elif uid in self._ledgers.claims.unreadable_keys():
            self._ledgers.put(prepared)
            metrics.CHECKPOINT_REBUILT.inc()
            logger.warning(
                "Claim %s was prepared by a newer version of the node agent. Its checkpoint entry was rebuilt.",
                claim_name,
            )

    def _rebuilt(self, claim: ResourceClaim, edits: Mapping[str, Edits], machine: Machine) -> PreparedClaim | None:
        """Return a checkpoint entry, made from the claim's allocation and CDI spec; None if impossible.

        It is impossible if the claim has MIG instances or shares that agents make, or if a device of the CDI spec
        belongs to no result of the claim.

        Args:
            claim: The claim as the API server has it.
            edits: The container edits of its CDI spec, by the names of the spec's devices.
            machine: Provides the uuids of GPUs. The uuid of a GPU that is lost is derived from the device's name.
        """
        unused_edits = dict(edits)
        meta = claim.metadata
        without_devices = PreparedClaim(
            uid=meta.uid, namespace=meta.namespace, name=meta.name, boot=self._boot, devices=()
        )
        devices = []
        for result in claim.results:
            request = request_of(result)
            # This agent may not understand a newer configuration. A whole GPU needs none.
            config = None
            with contextlib.suppress(DriverError):
                config = config_for(claim, result)
            try:
                located = self._device_manager.find(
                    machine, AllocatedDevice(result.device, request, result.consumed_capacity, config)
                )
            except DriverError as error:
                logger.warning(
                    "Claim %s/%s: its checkpoint entry cannot be rebuilt: %s", meta.namespace, meta.name, error
                )
                return None
            # ``device_kind``: whole GPU, MIG instance or share. Instances and shares that agents make cannot be
            # rebuilt, because the spec does not say how they were made.
            device_kind, gpu = (None, None) if located is None else (located.kind, located.gpu)
            if result.pool != self._node or isinstance(device_kind, MadeKind):
                return None
            device = PreparedDevice(
                request=request,
                pool=result.pool,
                device=result.device,
                uuid=result.device.replace("gpu-", "GPU-", 1) if gpu is None else gpu.uuid,
                part=device_kind.name if device_kind is not None and device_kind.part else "",
                share_id=result.share_id,
                admin=bool(result.admin_access),
            )
            # The spec's entry of this device, and what any container gets with such a GPU.
            base_devices = device_kind.edits(gpu).cdi if device_kind is not None and gpu is not None else ()
            own_edits = unused_edits.pop(cdi.device_name(without_devices, device), Edits())
            devices.append(msgspec.structs.replace(device, edits=own_edits + Edits(cdi=base_devices)))
        # A device of the spec that belongs to no result: this agent does not know what it is.
        if unused_edits or not devices:
            return None
        return msgspec.structs.replace(without_devices, devices=tuple(devices))


class _Identity(msgspec.Struct, frozen=True):
    """Uid, namespace and name of the claim that a checkpoint or metadata file names.

    All versions of these files have the three fields at the same place.
    """

    uid: str
    namespace: str
    name: str


class _AnyFile(msgspec.Struct):
    entry: _Identity | None = None  # of a ledger
    metadata: _Identity | None = None  # of what is mounted


def _identity(texts: Iterable[bytes], uid: str) -> _Identity | None:
    """Return the identity of the claim that these files belong to; None if no file has it.

    Args:
        texts: The contents of a newer agent's file, or of mounted files.
        uid: The expected uid. A file with another uid does not count.
    """
    for text in texts:
        try:
            file = msgspec.json.decode(text, type=_AnyFile)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        known = file.entry or file.metadata
        if known is not None and known.uid == uid and all(map(_NAME.fullmatch, (known.namespace, known.name))):
            return known
    return None
