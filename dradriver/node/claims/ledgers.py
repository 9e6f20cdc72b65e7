"""Everything that the agent keeps on disk about the node's claims.

A change has several steps, and the agent may be killed between any two; ``recover`` repairs what that leaves. A claim's
mounted files are written before its entry and removed after it. Its CDI spec is written after the entry and removed
before it. Changes of hardware are noted before they are made.
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
    """The two ledgers, and the CDI specs and mounted files of prepared claims. The caller holds the node's lock.

    Attributes:
        claims: The ledger of prepared claims, as the kubelet was answered.
        made: The ledger of devices that were made on hardware.
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
        """Open the two ledgers and the two folders; no file is touched.

        Args:
            state_dir: Folder of the ledgers and the mounted files.
            cdi_root: Folder of the CDI specs.
            boot: Id of this boot.
            driver: Gives an id of the present load of the driver's kernel module.
            machine: Gives the machine as it was last read; None until then.
            exclusive: Says whether parts of a GPU (uuid) may be used by one namespace at a time only.
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
        """Repair the ledgers' CDI specs after a crash or reboot.

        Every complete claim gets a spec, and no other claim keeps one.

        A claim with an absent GPU has no spec either, because another GPU may have its device nodes now. This may be
        called at any time. If the files of one claim fail, the other claims are repaired first.

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
            logger.info("%d claims are prepared; removed CDI specs of %s", len(entries), removed or "none other")
        self._recovered = True
        if last_error is not None:
            raise last_error

    def find(self, uid: str) -> Entry[PreparedClaim] | None:
        """Return the ledger entry of a claim that is ready; None if there is none, or it must be prepared again.

        So it has where something made for it is missing, and after a reboot where it has files: only the ledgers are
        sure to have survived a power cut.

        Raises:
            OSError: A file cannot be read.
        """
        entry = self.claims.get(uid)
        if entry is None or not self.is_complete(entry.value):
            return None
        has_files = any(device.edits.mounts for device in entry.value.devices)
        return None if has_files and entry.value.boot != self._boot else entry

    def show(self, claim: PreparedClaim) -> Entry[PreparedClaim]:
        """Return the ledger entry of a prepared claim with a new stamp, its spec written if it is missing.

        Raises:
            OSError: A file cannot be read or written.
        """
        self._write_spec(claim)
        return self.claims.touch(claim)

    def is_complete(self, claim: PreparedClaim) -> bool:
        """Return whether, by the ledgers, all that was made for a claim still exists behind the device nodes it opens.

        Nothing of it is after a reboot, nor after the driver's module was loaded anew.
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
        """Return a device that was made in this boot, from its claim's own entry.

        This replaces a journal entry that cannot be read. None if the claim's entry does not have the device.

        If the claim has no CDI spec, its devices may be undone in part. Then the device must be undone.
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
        """Write a prepared claim into the ledgers, with these files mounted, and return its entry.

        Raises:
            OSError: It may be prepared or not.
        """
        self._remove_specs_of_others(claim)
        self.mounted.write(claim.uid, content or {})
        self.claims.write(claim)
        self.cdi.write(claim)
        metrics.CLAIMS_PREPARED.set(len(self.claims))
        return self.claims.touch(claim)

    def _write_spec(self, claim: PreparedClaim) -> None:
        """Write a claim's spec, unless the device nodes that it opens may be another GPU's by now."""
        machine = self._machine()
        is_sure = not (missing_devices.is_away(claim, machine) or missing_devices.lacks_instance(claim, machine))
        if machine is None:
            is_sure = not missing_devices.has_instances(claim)
        if is_sure or self.cdi.read(claim.uid):  # one that was removed is not written again before that is known
            self.cdi.write(claim)

    def _remove_specs_of_others(self, claim: PreparedClaim) -> None:
        """Remove the specs of claims whose GPUs are away: what another claim is given now may have their nodes."""
        machine = self._machine()
        for uid, entry in self.claims.read().items():
            if uid != claim.uid and (
                missing_devices.is_away(entry.value, machine) or missing_devices.has_moved(entry.value, machine)
            ):
                self.cdi.remove(uid)

    def drop(self, uid: str) -> None:
        """Remove a claim from the ledger of prepared claims; its hardware changes were undone, or stay noted.

        Raises:
            OSError: It is prepared still.
        """
        self.cdi.remove(uid)
        self.claims.remove(uid)
        self.mounted.remove(uid)
        metrics.CLAIMS_PREPARED.set(len(self.claims))

    def changes_without_claim(self) -> list[Made]:
        """Return from the ledgers the hardware changes that may have been made for claims that are not prepared.

        Raises:
            OSError: A file cannot be read.
        """
        entries = self.claims.read().keys() | self.claims.unreadable_keys()
        return [entry.value for entry in self.made.read().values() if entry.value.owner not in entries]

    def claimed_gpus(self, gpus: Collection[str]) -> set[str]:
        """Return which of these GPUs, by uuid, some claim in the ledgers has or may have.

        Who looks on has nothing of a GPU.

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
        """Return which of these GPUs a claim has whose entry cannot be read; None where nothing says.

        What was made for it is in the other ledger, and its spec names its devices.
        """
        made = {one.uuid for one in self.made.of(uid)}
        named = self.cdi.read(uid) or {}
        if not made and not named:
            return None
        return made | {gpu for gpu in gpus if any(resource_slices.device_name(gpu) in name for name in named)}

    def raise_if_taken(self, planned: PreparedClaim) -> None:
        """Raise if a device of a planned claim is taken, according to the ledgers.

        A device is taken by another claim, or because its GPU is exclusive to another namespace.

        Parts of an exclusive GPU are used by one namespace at a time. This is not checked for a claim that has an entry
        already: claims of two namespaces that shared a GPU when it became exclusive would refuse each other after a
        reboot. Devices that were made for a claim that is not prepared any more are used by no namespace.

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
                _raise_if_same_device(planned, theirs, f"what is being made or undone for a claim (uid {made.owner})")

    def _raise_if_exclusive(self, planned: PreparedClaim, theirs: Collection[str], whose: str) -> None:
        for device in planned.devices:
            if device.uuid in theirs and not device.admin and self._exclusive(device.uuid):
                raise DeviceBusyError(
                    f"GPU {device.uuid} has parts of one namespace at a time, and now of {whose}: have the driver "
                    f"choose the GPU, by the annotations {names.SHARE} or {names.MIG_PROFILE} and no "
                    f"{names.PLACEMENT}, or wait until that claim is given back"
                )


def _raise_if_same_device(planned: PreparedClaim, theirs: PreparedDevice, who: str) -> None:
    if any(ours.excludes(theirs) for ours in planned.devices):
        raise DeviceBusyError(f"GPU {theirs.device} is still held by {who}")
