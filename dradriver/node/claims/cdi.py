"""CDI specs: how a container runtime gives a claim's devices to exactly the containers that request them.

Each claim has one spec file. The names in it contain the claim's uid and are never used again, because runtimes cache
specs. The spec has the lowest CDI version that supports ``hostPath`` and names that start with a digit. Older runtimes
refuse versions that they do not know. Environment variables belong to a device of the spec. If they belonged to the
whole spec, every container of the claim would get them. Source: CDI SPEC.md.

Container edits are what a device adds to a container: device nodes, mounts and variables.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.node import atomic_files
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice, checked_uid
from dradriver.node.container_edits import DeviceNode, Edits, Mount

VERSION: Final = "0.5.0"
KIND: Final = f"{names.DRIVER}/claim"
_MOUNT_OPTIONS: Final = ["ro", "nosuid", "nodev", "bind"]
_WRITABLE: Final = ["rw", "nosuid", "nodev", "bind"]
_PREFIX: Final = f"{names.DRIVER}-claim_"


def device_ids(claim: PreparedClaim, device: PreparedDevice) -> list[str]:
    """Return the CDI ids with which a container gets one device of a claim.

    First come ids of other CDI files, for example ``gpu.topology/gpu=<uuid>`` for a whole GPU (the base specification).
    Then comes the device's id in the claim's own CDI file, if that file has device nodes, mounts or variables for the
    device.
    """
    own = [f"{KIND}={device_name(claim, device)}"] if device.edits.own else []
    return [*device.edits.cdi, *own]


def spec(claim: PreparedClaim) -> dict[str, Any]:
    """Return the CDI spec of a claim, without devices that have no container edits.

    A runtime refuses a device without edits.

    The first device of a request carries the edits of the whole request. The runtime joins the edits of all devices of
    a container. So exactly the containers that use the request get these edits.
    """
    devices = [
        {"name": device_name(claim, device), "containerEdits": _printed(device.edits)}
        for device in claim.devices
        if device.edits.own
    ]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def device_name(claim: PreparedClaim, device: PreparedDevice) -> str:
    """Return the device's name in the claim's CDI spec, by which the runtime identifies a running pod's devices."""
    share = f"-{device.share_id}" if device.share_id else ""
    return f"{claim.uid}-{device.request}-{device.device}{share}"


def _printed(edits: Edits) -> dict[str, Any]:
    printed: dict[str, Any] = {}
    if edits.nodes:
        printed["deviceNodes"] = [
            {"path": node.path, "hostPath": node.host_path, "type": "c", "permissions": "rw"} for node in edits.nodes
        ]
    if edits.mounts:
        printed["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.path,
                "options": _WRITABLE if mount.writable else _MOUNT_OPTIONS,
            }
            for mount in edits.mounts
        ]
    if edits.env:
        printed["env"] = list(edits.env)
    return printed


class _Node(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    path: str
    host_path: str = ""
    type: str = "c"
    permissions: str = "rw"


class _Mount(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class _ContainerEdits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    device_nodes: tuple[_Node, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    env: tuple[str, ...] = ()

    def read(self) -> Edits:
        return Edits(
            nodes=tuple(DeviceNode(node.path, node.host_path or node.path) for node in self.device_nodes),
            mounts=tuple(Mount(mount.host_path, mount.container_path, "rw" in mount.options) for mount in self.mounts),
            env=self.env,
        )


class _Device(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    container_edits: _ContainerEdits = _ContainerEdits()


class _Spec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    cdi_version: str = ""
    kind: str = ""
    devices: tuple[_Device, ...] = ()


class CdiFolder:
    """The CDI spec files of this driver's claims.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method. Writes do not
    wait for the disk. After a power cut the agent starts before any container starts, and writes the specs again from
    the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, claim: PreparedClaim) -> None:
        """Write the CDI spec of a claim into the folder; remove the spec if it has no devices.

        Raises:
            ClaimError: The claim's uid cannot be a file name.
            OSError: The spec could not be written.
        """
        made = spec(claim)
        if not made["devices"]:
            self.remove(claim.uid)
            return
        path, data = self._path(claim.uid), msgspec.json.encode(made)
        try:
            if path.read_bytes() == data:
                return
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            atomic_files.remove(path, durable=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, data, durable=False)

    def read(self, uid: str) -> dict[str, Edits] | None:
        """Return the container edits in a claim's CDI spec, by device name in the spec.

        Returns:
            The edits; empty if there is no spec. None if the spec contains something that this agent does not write.

        Raises:
            ClaimError: The uid cannot be a file name.
            OSError: The spec cannot be read.
        """
        try:
            written = msgspec.json.decode(self._path(uid).read_bytes(), type=_Spec)
        except (FileNotFoundError, IsADirectoryError):
            return {}
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        return {device.name: device.container_edits.read() for device in written.devices}

    def remove(self, uid: str) -> None:
        """Remove the CDI spec of a claim; a claim without a spec is no error.

        Raises:
            ClaimError: The uid cannot be a file name.
            OSError: The spec could not be removed.
        """
        atomic_files.remove(self._path(uid), durable=False)

    def sweep(self, *, keep: Collection[str]) -> list[str]:
        """Remove the CDI specs of all claims except those with the uids ``keep``.

        Temporary files that a killed agent left are removed, too.

        Returns:
            The uids of the claims whose specs were removed.

        Raises:
            OSError: A file could not be removed.
        """
        for path in self._folder.glob(f"{_PREFIX}*{atomic_files.TEMPORARY}"):
            atomic_files.remove(path, durable=False)
        gone = []
        for path in sorted(self._folder.glob(f"{_PREFIX}*.json")):
            uid = path.stem.removeprefix(_PREFIX)
            if uid not in keep:
                atomic_files.remove(path, durable=False)
                gone.append(uid)
        return gone

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{checked_uid(uid)}.json"
