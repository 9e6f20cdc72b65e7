"""All records and files of the agent about claims, together called the ledgers.

The ledgers are the checkpoint (the prepared claims), the hardware journal (the MIG instances and shares that the agent
made), the claims' CDI specs, and the files that the specs mount into containers.

A change has several steps, and the agent may be killed between any two. ``recover`` then repairs the files. The order
of the steps is fixed:

* A claim's mounted files are written before its checkpoint entry and removed after it.
* A claim's CDI spec is written after its checkpoint entry and removed before it.
* Changes of hardware are recorded before they are made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.node import metrics
from dradriver.node.claims import missing_devices
from dradriver.node.claims.cdi import CdiFolder
from dradriver.node.claims.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from dradriver.node.claims.mounted_files import Mounted
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.errors import DeviceBusyError
from dradriver.node.journal import Entry
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class Ledgers:
    """All records and files about claims: checkpoint, hardware journal, CDI specs, and mounted files.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method.

    Attributes:
        claims: The checkpoint: the prepared claims, with the answers that the kubelet got.
        made: The hardware journal: the devices that were made on hardware.
        cdi: The CDI specs.
        mounted: The files that the specs mount.
    """

    def __init__(
        self,
        state_dir: Path,
        cdi_root: Path,
        *,
        boot: str,
        driver: Callable[[], str],
        machine: Callable[[], Machine | None] = lambda: None,
        exclusive: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Open the checkpoint, the hardware journal and the two folders; no file is touched.

        Args:
            state_dir: Folder of the checkpoint, the hardware journal and the mounted files.
            cdi_root: Folder of the CDI specs.
            boot: Id of this boot.
            driver: Returns an id that is new each time that the GPUs' kernel driver is loaded.
            machine: Returns the machine as it was last read; None until then.
            exclusive: For a GPU's uuid, returns whether only one namespace at a time may use fractions of the GPU.
        """
        self.claims = Checkpoint(state_dir / "claims")
        self.made = HardwareJournal(state_dir / "made", self._made_again)
        self.cdi = CdiFolder(cdi_root)
        self.mounted = Mounted(state_dir / "files")
        self._boot = boot
        self._driver = driver
        self._machine = machine
        self._exclusive = exclusive
        self._recovered = False

    def recover(self) -> None:
        """Write the CDI specs that prepared claims need, and remove all others.

        A prepared claim needs a spec if all its GPUs are present with the same device nodes, and all MIG instances and
        shares that were made for it still exist. If a GPU is absent, another GPU may have its device nodes now. The
        spec of a claim with an unreadable entry stays, because its pod may run.

        The method also removes hardware journal entries of an earlier boot, and mounted files of claims that are not
        prepared. An agent may call it at any time, for example after a crash. If a spec cannot be written, the other
        claims are repaired before the error is raised.

        Raises:
            OSError: A file cannot be read, written or removed.
        """
        last_error: OSError | None = None

        # 1. Remove what a killed writer left. MIG instances and shares of an earlier boot do not exist any more.
        self.claims.sweep()
        self.made.sweep()
        for key, made in self.made.read().items():
            if made.value.boot != self._boot:
                self.made.remove(key)

        # 2. Write the specs of the claims of which all that was made still exists.
        entries = self.claims.read()
        complete = {uid for uid, entry in entries.items() if self.is_complete(entry.value)}
        for uid in complete:
            try:
                self._write_spec(entries[uid].value)
            except OSError as error:
                last_error = error

        # 3. Remove all other specs and files. What belongs to an entry that cannot be read stays: its pod may run.
        with_absent_gpu = {uid for uid in complete if missing_devices.is_away(entries[uid].value, self._machine())}
        unreadable = self.claims.unreadable_keys()
        removed = self.cdi.sweep(keep=complete - with_absent_gpu | unreadable)
        self.mounted.sweep(keep=entries.keys() | unreadable)
        metrics.CLAIMS_PREPARED.set(len(entries))
        if removed or not self._recovered:
            logger.info(
                "%d claims are prepared. CDI specifications removed: %s.", len(entries), removed or "none other"
            )
        self._recovered = True
        if last_error is not None:
            raise last_error

    def find(self, uid: str) -> Entry[PreparedClaim] | None:
        """Return the prepared claim's checkpoint entry; None if it must be prepared again.

        The result is also None if no claim with this uid is prepared. A prepared claim must be prepared again in three
        cases:

        * A MIG instance or share of the claim does not exist any more.
        * A GPU of the claim has another device node.
        * The claim has mounted files and the node was rebooted since. Mounted files may not survive a power cut, but
          the checkpoint does.

        Raises:
            OSError: A file cannot be read.
        """
        entry = self.claims.get(uid)
        if entry is None or not self.is_complete(entry.value):
            return None
        has_files = any(device.edits.mounts for device in entry.value.devices)
        return None if has_files and entry.value.boot != self._boot else entry

    def show(self, claim: PreparedClaim) -> Entry[PreparedClaim]:
        """Write a prepared claim's CDI spec, and mark its checkpoint entry as used now.

        A removed spec stays removed while a GPU or MIG instance of the claim is missing.

        Returns:
            The entry with its new stamp, which identifies this state of the entry's file. Code that knows the old stamp
            sees that the claim was prepared again.

        Raises:
            OSError: A file cannot be read or written.
        """
        self._write_spec(claim)
        return self.claims.touch(claim)

    def is_complete(self, claim: PreparedClaim) -> bool:
        """Return whether everything that was made for a claim still exists with the same device nodes.

        The answer comes from the hardware journal and the last reading of the machine. MIG instances and shares do not
        exist any more after a reboot, or after the driver's module was loaded again.
        """
        if missing_devices.has_moved(claim, self._machine()):
            return False
        driver = self._driver()
        made = [self.made.get(device.made) for device in claim.devices if device.made]
        return all(
            entry is not None
            and entry.value.done is not None
            and entry.value.boot == self._boot
            and entry.value.in_load(driver)
            for entry in made
        )

    def _made_again(self, key: str) -> Made | None:
        """Return a device's entry in the hardware journal, rebuilt from its claim's checkpoint entry.

        The hardware journal calls this function if it cannot read its own entry. The result is None if the checkpoint
        entry does not describe the device, or if the device was made in another boot. If the claim has no CDI spec, an
        agent may have been killed while it undid the claim's devices. Then the rebuilt entry says that the device must
        be undone.

        Args:
            key: Key of the journal entry: the claim's uid, a dot, and the device's number.
        """
        # The key is the claim's uid and the number of its device.
        uid, _, number = key.rpartition(".")
        entry = self.claims.get(uid) if uid else None
        if entry is None or entry.value.boot != self._boot:
            return None
        device = next((other for other in entry.value.devices if other.made == key), None)
        if device is None or device.wanted is None:
            return None
        made = Made(
            owner=uid,
            number=int(number),
            boot=self._boot,
            driver=device.driver,
            kind=device.part,
            device=device.device,
            uuid=device.uuid,
            share_id=device.share_id,
            wanted=device.wanted,
            done=device.done,
        )
        return made if self.cdi.read(uid) else made.to_undo()

    def put(self, claim: PreparedClaim, content: Mapping[str, bytes] | None = None) -> Entry[PreparedClaim]:
        """Store a prepared claim in the checkpoint with its mounted files and CDI spec, and return its entry.

        Args:
            claim: The prepared claim.
            content: The contents of the files to mount into its containers, by name; None for no files.

        Raises:
            OSError: A file could not be written. The claim may be stored as prepared all the same.
        """
        self._remove_specs_of_others(claim)
        self.mounted.write(claim.uid, content or {})
        self.claims.write(claim)
        self.cdi.write(claim)
        metrics.CLAIMS_PREPARED.set(len(self.claims))
        return self.claims.touch(claim)

    def _write_spec(self, claim: PreparedClaim) -> None:
        """Write a claim's CDI spec, unless it was removed and a device is missing.

        A removed spec is not written while a GPU or MIG instance of the claim is missing, or is not known to be
        present. Its device nodes may belong to another GPU now, so no container must start with them.
        """
        machine = self._machine()
        is_sure = not (missing_devices.is_away(claim, machine) or missing_devices.lacks_instance(claim, machine))
        if machine is None:
            is_sure = not missing_devices.has_instances(claim)
        if is_sure or self.cdi.read(claim.uid):  # one that was removed is not written again before that is known
            self.cdi.write(claim)

    def _remove_specs_of_others(self, claim: PreparedClaim) -> None:
        """Remove the CDI specs of other claims that have missing GPUs, or GPUs with new device numbers.

        The old device numbers may now belong to the GPUs of this claim.
        """
        machine = self._machine()
        for uid, entry in self.claims.read().items():
            if uid != claim.uid and (
                missing_devices.is_away(entry.value, machine) or missing_devices.has_moved(entry.value, machine)
            ):
                self.cdi.remove(uid)

    def drop(self, uid: str) -> None:
        """Remove a claim from the checkpoint, with its CDI spec and its mounted files.

        The caller has undone the claim's hardware changes before. Changes that could not be undone stay in the hardware
        journal.

        Raises:
            OSError: A file could not be removed; the claim may still be in the checkpoint.
        """
        self.cdi.remove(uid)
        self.claims.remove(uid)
        self.mounted.remove(uid)
        metrics.CLAIMS_PREPARED.set(len(self.claims))

    def changes_without_claim(self) -> list[Made]:
        """Return the hardware changes that may exist for claims that are not prepared.

        Raises:
            OSError: A file cannot be read.
        """
        entries = self.claims.read().keys() | self.claims.unreadable_keys()
        return [entry.value for entry in self.made.read().values() if entry.value.owner not in entries]

    def claimed_gpus(self, gpus: Collection[str]) -> set[str]:
        """Return which of these GPUs (uuids) a prepared claim uses or may use.

        A GPU counts if a claim has it or a fraction of it, except by admin access. A GPU also counts if the hardware
        journal lists a MIG instance or share on it. If the GPUs of a claim are unknown because its checkpoint entry
        cannot be read, all of ``gpus`` count.

        Raises:
            OSError: A file cannot be read.
        """
        claims = [entry.value for entry in self.claims.read().values()]
        uuids = {entry.value.uuid for entry in self.made.read().values()}
        uuids |= {device.uuid for claim in claims for device in claim.devices if not device.admin}
        for uid in self.claims.unreadable_keys():
            unread = self._gpus_of_unreadable_claim(uid, gpus)
            uuids |= set(gpus) if unread is None else unread
        return uuids & set(gpus)

    def _gpus_of_unreadable_claim(self, uid: str, gpus: Collection[str]) -> set[str] | None:
        """Return which of these GPUs a claim with an unreadable entry uses; None if that is unknown.

        Two other sources still name the GPUs: the hardware journal and the claim's CDI spec.
        """
        made = {one.uuid for one in self.made.of(uid)}
        named = self.cdi.read(uid) or {}
        if not made and not named:
            return None
        return made | {gpu for gpu in gpus if any(resource_slices.device_name(gpu) in name for name in named)}

    def raise_if_taken(self, planned: PreparedClaim) -> None:
        """Raise an error if another claim, or another namespace, already uses a device of a planned claim.

        The function checks three things:

        1. Another prepared claim has the same device.
        2. The GPU is exclusive, so one namespace at a time may use its fractions, and another namespace uses it. A
           claim whose checkpoint entry cannot be read counts as another namespace. If ``planned`` is in the checkpoint
           already, it is exempt: it may share a GPU that became exclusive later. Otherwise the claims on this GPU
           would refuse each other after a reboot.
        3. A MIG instance or share of a claim that is not prepared any more is still on the hardware, and excludes a
           planned device. The namespace of that claim is not checked, because the hardware journal does not name it.

        Raises:
            DeviceBusyError: A device is taken.
            OSError: A file cannot be read.
        """
        # 1. Devices of prepared claims.
        entries = self.claims.read()
        for entry in entries.values():
            for theirs in entry.value.devices if entry.value.uid != planned.uid else ():
                _raise_if_same_device(
                    planned, theirs, f"claim {entry.value.namespace}/{entry.value.name} (uid {entry.value.uid})"
                )

        # 2. Exclusive GPUs of which claims of other namespaces, or claims that cannot be read, have parts.
        for entry in entries.values() if planned.uid not in entries else ():
            if entry.value.namespace != planned.namespace:
                their_gpus = {device.uuid for device in entry.value.devices if not device.admin}
                self._raise_if_exclusive(planned, their_gpus, f"{entry.value.namespace} (claim {entry.value.name})")
        for uid in self.claims.unreadable_keys() - {planned.uid} if planned.uid not in entries else ():
            gpus_of_unreadable = self._gpus_of_unreadable_claim(uid, [device.uuid for device in planned.devices])
            self._raise_if_exclusive(
                planned, gpus_of_unreadable or (), f"a claim whose entry cannot be read (uid {uid})"
            )

        # 3. Devices (MIG instances, shares) on the hardware of claims that are not prepared.
        for made in (entry.value for entry in self.made.read().values()):
            if made.owner != planned.uid and made.owner not in entries:
                theirs = PreparedDevice(
                    request="", pool="", device=made.device, uuid=made.uuid, part=made.kind, share_id=made.share_id
                )
                _raise_if_same_device(planned, theirs, f"an unfinished hardware change for a claim (uid {made.owner})")

    def _raise_if_exclusive(self, planned: PreparedClaim, theirs: Collection[str], whose: str) -> None:
        for device in planned.devices:
            if device.uuid in theirs and not device.admin and self._exclusive(device.uuid):
                raise DeviceBusyError(
                    f"fractions of GPU {device.uuid} belong to one namespace at a time, and now to {whose}. Wait "
                    f"until that claim is released. Or let the driver choose the GPU: write {names.SHARE} or "
                    f"{names.MIG_PROFILE}, and no {names.PLACEMENT}."
                )


def _raise_if_same_device(planned: PreparedClaim, theirs: PreparedDevice, who: str) -> None:
    if any(ours.excludes(theirs) for ours in planned.devices):
        raise DeviceBusyError(f"GPU {theirs.device} is still held by {who}")
