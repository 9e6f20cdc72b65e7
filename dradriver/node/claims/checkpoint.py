"""The checkpoint: the prepared claims on disk, with one entry for each claim.

``Ledgers`` reads and writes it. An entry has the answer that the kubelet got for the claim, and everything that the
claim's CDI spec contains. So the agent can write the spec again without the API server, and before the kubelet asks for
it.

The hardware journal is another record on disk: the MIG instances and shares that the agent made for claims. A fraction
is a MIG instance or a share. Container edits are what a device adds to a container: device nodes, mounts and variables.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.hardware_journal import typed
from dradriver.node.errors import ClaimError
from dradriver.node.journal import Journal

VERSION: Final = 3
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prepared device of a claim.

    The hardware journal has an entry for each MIG instance or share that the agent made. The attributes ``wanted``,
    ``done`` and ``driver`` are copies from this entry. If the journal's entry is damaged, the agent writes it again
    from these copies.

    Attributes:
        request: The request that the device was allocated for, without its subrequest.
        pool: The name of the device's pool in its ResourceSlice.
        device: The device's name.
        uuid: The uuid of the GPU.
        edits: The container edits of the device. The first device of a request also has the edits that the request
            needs as a whole.
        made: Key of the device's entry in the hardware journal; empty if the agent made nothing for the device.
        wanted: What the agent decided to make, for example a MIG instance at a certain place; None if nothing was made.
        done: What the agent made, for example a MIG instance's number and uuid, at the time when the claim was
            prepared.
        driver: The id ``Control.driver`` when the device was made. The id is new each time that the GPUs' kernel driver
            is loaded.
        part: The kind of fraction, such as a MIG instance; empty for a whole GPU.
        told: Attributes of a fraction that its GPU does not have, named as in ResourceSlices; empty for a whole GPU.
            All fractions have ``type``. A MIG instance also has ``profile``, ``placement`` and its own ``uuid``. A
            share also has ``cores`` (percent) and ``memory``.
        share_id: Distinguishes the claims that share one device; None if no other claim can have the device.
        admin: True for admin access: the claim can use the device, but does not own it.
    """

    request: str
    pool: str
    device: str
    uuid: str
    edits: Edits = Edits()
    made: str = ""
    wanted: Any = None
    done: Any = None
    driver: str = ""
    part: str = ""
    told: dict[str, Any] = {}
    share_id: str | None = None
    admin: bool = False

    def excludes(self, other: PreparedDevice) -> bool:
        """Return whether two claims cannot have these two devices at the same time.

        Two devices of one GPU exclude each other in three cases: one is the whole GPU, they are fractions of different
        kinds, or they are the same device. Different fractions of one kind never exclude each other here: the code for
        the kind checks whether both fit. A device with admin access excludes no other device.
        """
        if self.uuid != other.uuid or self.admin or other.admin:
            return False
        if not self.part or self.part != other.part:
            return True
        return (self.device, self.share_id) == (other.device, other.share_id)


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prepared claim.

    Attributes:
        uid: The claim's uid.
        namespace: The claim's namespace.
        name: The claim's name.
        boot: Id of the boot in which the claim was prepared; empty in entries of old agents, which did not record it.
        devices: The claim's devices, in the order of the allocation.
    """

    uid: str
    namespace: str
    name: str
    boot: str = ""
    devices: tuple[PreparedDevice, ...]

    def first(self, device: PreparedDevice) -> bool:
        """Return whether a device is the first device of its request in this prepared claim."""
        return device is next(other for other in self.devices if other.request == device.request)


class Checkpoint(Journal[PreparedClaim]):
    """The folder of prepared claims, with one file for each claim.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method.
    """

    def __init__(self, folder: Path) -> None:
        readers = {1: _read_older, 2: _read_older, VERSION: _read}
        super().__init__(folder, readers, version=VERSION, key=lambda claim: checked_uid(claim.uid))


def _read(text: bytes) -> PreparedClaim:
    claim = msgspec.json.decode(text, type=PreparedClaim)
    return msgspec.structs.replace(claim, devices=tuple(map(_typed, claim.devices)))


def _typed(device: PreparedDevice) -> PreparedDevice:
    """Return a device whose attributes ``wanted`` and ``done`` are typed records, not plain JSON data.

    The type depends on the kind of device. The first agents stored neither field, so both can be missing.
    """
    if device.wanted is None:
        return device
    wanted, done = typed(device.part, device.wanted, device.done)
    return msgspec.structs.replace(device, wanted=wanted, done=done)


class _OldDevice(msgspec.Struct):
    request: str
    pool: str
    device: str
    uuid: str
    path: str
    host_path: str
    cdi: tuple[str, ...] = ()
    share_id: str | None = None
    admin: bool = False


class _OldClaim(msgspec.Struct):
    uid: str
    namespace: str
    name: str
    devices: tuple[_OldDevice, ...]
    env: dict[str, tuple[str, ...]] = {}


def _read_older(text: bytes) -> PreparedClaim:
    """Return a claim from a checkpoint entry that an older agent wrote in file format 1 or 2.

    The names in the claim's CDI spec stay the same, because the runtime knows running pods by these names.
    """
    old = msgspec.json.decode(text, type=_OldClaim)
    env = dict(old.env)
    devices = tuple(
        PreparedDevice(
            request=device.request,
            pool=device.pool,
            device=device.device,
            uuid=device.uuid,
            edits=Edits(
                nodes=(DeviceNode(device.path, device.host_path),) if device.host_path else (),
                env=env.pop(device.request, ()),
                cdi=device.cdi,
            ),
            share_id=device.share_id,
            admin=device.admin,
        )
        for device in old.devices
    )
    return PreparedClaim(uid=old.uid, namespace=old.namespace, name=old.name, devices=devices)


def is_uid(text: str) -> bool:
    """Return whether a text can be a claim's uid, which names the claim's file in the checkpoint."""
    return _UID.fullmatch(text) is not None


def checked_uid(uid: str) -> str:
    """Return a claim's uid after a check that it can be a file name in the checkpoint.

    Raises:
        ClaimError: The text is not a uid.
    """
    if not is_uid(uid):
        raise ClaimError(f"claim uid {uid[:64]!r} is invalid. A uid has letters, digits and '-', at most 64.")
    return uid
