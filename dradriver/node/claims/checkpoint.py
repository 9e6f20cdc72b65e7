"""What the kubelet was answered, on disk: the first of the node's two ledgers.

Everything that a claim's CDI spec holds is in its entry, so the spec can be written again from it alone, with no API
server and before the kubelet asks for it.
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
    """One device of a claim as it was handed out.

    Attributes:
        request: The request it was allocated for, without its subrequest.
        pool: The pool's name.
        device: The device's name.
        uuid: The GPU's own identity.
        edits: What it brings to a container. What a request brings as a whole is with its first device.
        made: Key of the other ledger's entry of what was made on the hardware for it; empty where nothing was.
        wanted: As in that entry, which is written anew from here should it be damaged; None where nothing was made.
        done: As in that entry, when the claim was prepared.
        driver: As in that entry.
        part: The kind of device, where it is a part of a GPU that leaves room for others; empty for a whole one.
        told: What is said of a part beside its GPU, in the words of slices' attributes: ``type``, of a MIG instance
            ``profile``, ``placement`` and its own ``uuid``, of a share ``cores`` (percent) and ``memory``; empty for a
            whole one.
        share_id: Tells claims of one device apart; None where nobody else can have it.
        admin: True for access beside the owner: such a device has no owner in this claim.
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
        """Return whether two devices of the checkpoint exclude each other: parts of one GPU do not.

        Whether two parts fit beside each other is for their kind, and for the hardware.
        """
        if self.uuid != other.uuid or self.admin or other.admin:
            return False
        if not self.part or self.part != other.part:
            return True
        return (self.device, self.share_id) == (other.device, other.share_id)


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prepared claim.

    Attributes:
        uid: The claim's.
        namespace: The claim's.
        name: The claim's.
        boot: Id of the boot in which it was prepared; empty in entries of agents that did not say.
        devices: Its devices, in the allocation's order.
    """

    uid: str
    namespace: str
    name: str
    boot: str = ""
    devices: tuple[PreparedDevice, ...]

    def first(self, device: PreparedDevice) -> bool:
        """Return whether the device is the first of its request in a prepared claim of the checkpoint."""
        return device is next(other for other in self.devices if other.request == device.request)


class Checkpoint(Journal[PreparedClaim]):
    """The folder of prepared claims. The caller holds the node's lock around every method."""

    def __init__(self, folder: Path) -> None:
        readers = {1: _read_older, 2: _read_older, VERSION: _read}
        super().__init__(folder, readers, version=VERSION, key=lambda claim: checked_uid(claim.uid))


def _read(text: bytes) -> PreparedClaim:
    claim = msgspec.json.decode(text, type=PreparedClaim)
    return msgspec.structs.replace(claim, devices=tuple(map(_typed, claim.devices)))


def _typed(device: PreparedDevice) -> PreparedDevice:
    """Return the device with what was made for it as the records of its kind; the first agents kept no copy of that."""
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
    """Return a claim of version 1 or 2: its spec stays as it is, since running pods are known to the runtime by it."""
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
    """Return a claim's uid after a check that it can name the claim's file in the checkpoint.

    Raises:
        ClaimError: It is no object's uid.
    """
    if not is_uid(uid):
        raise ClaimError(f"claim uid {uid[:64]!r} is none: letters, digits and '-', at most 64")
    return uid
