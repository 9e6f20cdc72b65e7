"""What is prepared on this node, on disk: one file a claim, so that no claim's damage or rewriting touches another's.

A file is ``{"version": 1, "checksum": "<sha256 of claim>", "claim": {…}}``. Everything that a claim's CDI spec holds is
in it, so the spec can be written again from this file alone, with no API server and before the kubelet asks for it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node import files, metrics
from dradriver.node.errors import ClaimError, SetupError

logger = logging.getLogger(__name__)

VERSIONS: Final = (1, 2)  # 2 where devices have CDI ids of others, which agents that know only 1 would forget
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a claim as it was handed out.

    Attributes:
        request: The request it was allocated for, without its subrequest.
        pool: The pool's name.
        device: The device's name.
        uuid: The GPU's own identity.
        path: The device node as the container sees it.
        host_path: The device node on the host; empty where ``cdi`` brings it.
        cdi: Ids in other CDI specifications that make the device usable: NVIDIA's own, with libraries and device nodes.
        share_id: Tells shares of one device apart; None where the device is not shared.
        admin: True for access beside the owner: such a device has no owner in this claim.
    """

    request: str
    pool: str
    device: str
    uuid: str
    path: str
    host_path: str
    cdi: tuple[str, ...] = ()
    share_id: str | None = None
    admin: bool = False

    def excludes(self, other: PreparedDevice) -> bool:
        """Return whether both cannot be prepared at a time: one GPU has one owner, unless both are shares of it."""
        if self.uuid != other.uuid or self.admin or other.admin:
            return False
        return self.share_id is None or other.share_id is None


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prepared claim: its identity, its devices in the allocation's order and each request's variables (``K=V``)."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    env: dict[str, tuple[str, ...]] = {}


class Entry(msgspec.Struct, frozen=True):
    """A claim as it stands in the checkpoint, and the stamp of its file: another stamp means prepared again since."""

    claim: PreparedClaim
    stamp: tuple[int, int]


class _File(msgspec.Struct):
    version: int
    checksum: str
    claim: msgspec.Raw


class Checkpoint:
    """The folder of prepared claims. The caller holds the node's lock around every method."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, Entry]:
        """Return all prepared claims by uid, in order of uid.

        A damaged file is set aside under a name that ends in ``.corrupt-<unix time>``, and said in the log and a
        metric. Its claim is then unknown here and its GPUs are not guarded until the kubelet prepares it again or
        gives it back; but its pod may run, so its CDI spec must stay: see ``kept``.

        Raises:
            SetupError: A newer version of the agent wrote one of the files.
            OSError: The folder cannot be read.
        """
        entries = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                entries[path.stem] = _decode(path)
            except msgspec.DecodeError as error:
                aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}")
                os.replace(path, aside)
                metrics.CHECKPOINT_CORRUPT.inc()
                logger.error("checkpoint of claim %s is damaged (%s); kept as %s", path.stem, error, aside)
        return entries

    def kept(self) -> set[str]:
        """Return the uids of claims whose damaged files were set aside: their CDI specs must stay until unprepare."""
        return {path.name.split(".", 1)[0] for path in self._folder.glob("*.json.corrupt-*")}

    def write(self, claim: PreparedClaim) -> None:
        """Make the claim's entry durable.

        Raises:
            ClaimError: The claim's uid cannot be a file's name.
            OSError: It was not written.
        """
        body = msgspec.json.encode(claim)
        self._folder.mkdir(parents=True, exist_ok=True)
        version = VERSIONS[any(device.cdi for device in claim.devices)]
        file = _File(version=version, checksum=hashlib.sha256(body).hexdigest(), claim=msgspec.Raw(body))
        files.write(self._path(claim.uid), msgspec.json.encode(file))

    def remove(self, uid: str) -> None:
        """Make the claim's entry, and what was set aside of it, be gone for good; an unknown uid is fine.

        Raises:
            ClaimError: The uid cannot be a file's name.
            OSError: Something of it is still there.
        """
        path = self._path(uid)
        for aside in self._folder.glob(f"{path.name}.corrupt-*"):
            files.remove(aside)
        files.remove(path)

    def sweep(self) -> None:
        """Remove what a killed writer left.

        Raises:
            OSError: Something is still there.
        """
        for path in self._folder.glob(f"*{files.TEMPORARY}"):
            files.remove(path)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{checked_uid(uid)}.json"


def checked_uid(uid: str) -> str:
    """Return the uid, which becomes part of file names.

    Raises:
        ClaimError: It is no object's uid.
    """
    if not _UID.fullmatch(uid):
        raise ClaimError(f"claim uid {uid[:64]!r} is none: letters, digits and '-', at most 64")
    return uid


def _decode(path: Path) -> Entry:
    status = path.stat()
    file = msgspec.json.decode(path.read_bytes(), type=_File)
    if file.version not in VERSIONS:
        raise SetupError(
            f"{path}: version {file.version}; this agent knows versions up to {VERSIONS[-1]}: "
            "install the version that wrote it, or drain the node and remove this file"
        )
    if hashlib.sha256(file.claim).hexdigest() != file.checksum:
        raise msgspec.DecodeError("its checksum is wrong")
    claim = msgspec.json.decode(file.claim, type=PreparedClaim)
    if claim.uid != path.stem:
        raise msgspec.DecodeError(f"it is the entry of {claim.uid[:64]!r}")
    return Entry(claim, (status.st_mtime_ns, status.st_ino))
