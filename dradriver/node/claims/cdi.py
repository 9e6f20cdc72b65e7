"""CDI specs: how a container runtime puts a claim's devices into exactly the containers that ask for them.

One spec file a claim, with names that hold the claim's uid and are never used again, because runtimes cache specs. The
version is the lowest that knows ``hostPath`` and names that start with a digit: runtimes refuse versions that they do
not know. Variables belong to a device and not to the whole spec, whose edits would reach every container of the claim.
Source: CDI SPEC.md.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.api import names
from dradriver.node import files
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice, checked_uid

VERSION: Final = "0.5.0"
KIND: Final = f"{names.DRIVER}/claim"
_PREFIX: Final = f"{names.DRIVER}-claim_"


def device_ids(claim: PreparedClaim, device: PreparedDevice) -> list[str]:
    """Return the fully qualified CDI ids that make one device of a claim usable: others' first, then ours."""
    own = [f"{KIND}={_device_name(claim, device)}"] if _edits(claim, device) else []
    return [*device.cdi, *own]


def spec(claim: PreparedClaim) -> dict[str, Any]:
    """Return the claim's CDI spec; a device that it would not edit is not in it, because runtimes refuse such ones.

    A request's variables are edits of its first device: the runtime concatenates the edits of all devices of a
    container, so they reach every container that uses the request, and no other.
    """
    devices = [
        {"name": _device_name(claim, device), "containerEdits": edits}
        for device in claim.devices
        if (edits := _edits(claim, device))
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def _edits(claim: PreparedClaim, device: PreparedDevice) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if device.host_path:
        node = {"path": device.path, "hostPath": device.host_path, "type": "c", "permissions": "rw"}
        edits["deviceNodes"] = [node]
    first = next(one for one in claim.devices if one.request == device.request)
    if device is first and claim.env.get(device.request):
        edits["env"] = list(claim.env[device.request])
    return edits


class CdiFolder:
    """The spec files of this driver's claims. The caller holds the node's lock around every method."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, claim: PreparedClaim) -> None:
        """Make the claim's spec stand in the folder; one without devices is no spec, and is gone.

        Raises:
            ClaimError: The claim's uid cannot be a file's name.
            OSError: It was not written.
        """
        made = spec(claim)
        if not made["devices"]:
            self.remove(claim.uid)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write(self._path(claim.uid), msgspec.json.encode(made))

    def remove(self, uid: str) -> None:
        """Make the claim's spec be gone; an unknown uid is fine.

        Raises:
            ClaimError: The uid cannot be a file's name.
            OSError: It is still there.
        """
        files.remove(self._path(uid))

    def sweep(self, *, keep: Collection[str]) -> list[str]:
        """Remove our specs of all other claims and what a killed writer left; return the uids whose spec is gone.

        Raises:
            OSError: Something is still there.
        """
        for path in self._folder.glob(f"{_PREFIX}*{files.TEMPORARY}"):
            files.remove(path)
        gone = []
        for path in sorted(self._folder.glob(f"{_PREFIX}*.json")):
            uid = path.stem.removeprefix(_PREFIX)
            if uid not in keep:
                files.remove(path)
                gone.append(uid)
        return gone

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{checked_uid(uid)}.json"


def _device_name(claim: PreparedClaim, device: PreparedDevice) -> str:
    share = f"-{device.share_id}" if device.share_id else ""
    return f"{claim.uid}-{device.request}-{device.device}{share}"
