"""The CDI specification that brings AMD's GPUs into containers: their device nodes, and the groups that may open them.

Nothing else is needed: the image contains ROCm, and the kernel driver is the host's. The entry of a prepared claim
names a GPU of this specification, and no numbers of device nodes, because the numbers change over reboots. The agent
writes the specification again when the numbers change, and removes it if there is no GPU.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.node import atomic_files
from dradriver.node.container_edits import GPU_FILE, GPU_KIND
from dradriver.node.vendors.amd import amd_device_nodes
from dradriver.node.vendors.amd.amd_device_nodes import Drm

VERSION: Final = "0.5.0"
WITH_GROUPS: Final = "0.7.0"  # the first with additionalGids; runtimes refuse versions that they do not know


class AmdSpecification:
    """Writes the CDI specification of this node's AMD GPUs to its file."""

    def __init__(self, *, cdi_root: Path, root: Path, on_host: str = "/") -> None:
        """Store the arguments; write nothing yet.

        Args:
            cdi_root: The runtime's folder for specifications that last until a reboot.
            root: Folder that contains the host's /dev.
            on_host: Path of ``root`` on the host, where the runtime finds the device nodes.
        """
        self._path = cdi_root / GPU_FILE
        self._root = root
        self._on_host = on_host.rstrip("/")

    def keep(self, gpus: Mapping[str, Drm]) -> dict[str, str]:
        """Write the CDI specification of all AMD GPUs that have device nodes.

        If there is no GPU, the file is removed. Otherwise a container could start with old device numbers, which may
        belong to another GPU now.

        Args:
            gpus: The numbers of each GPU's device nodes, by uuid.

        Returns:
            By uuid: why a GPU is left out of the specification.
        """
        wrong: dict[str, str] = {}
        devices: list[dict[str, Any]] = []
        # 1. The device nodes of each GPU, as the host has them. A GPU with a missing node is left out.
        for uuid, minors in gpus.items():
            nodes = []
            for path in (amd_device_nodes.KFD, *minors.paths):
                if (node := self._node(path)) is None:
                    wrong[uuid] = f"/{path} is no device node of the host"
                    break
                nodes.append(node)
            else:
                devices.append({"name": uuid, "containerEdits": _edits(nodes)})

        # 2. Write the file if it changed; without any GPU remove it. Groups need a newer version of the CDI format.
        has_groups = any("additionalGids" in device["containerEdits"] for device in devices)
        version = WITH_GROUPS if has_groups else VERSION
        data = msgspec.json.encode({"cdiVersion": version, "kind": GPU_KIND, "devices": devices})
        try:
            if not devices:
                atomic_files.remove(self._path, durable=False)
            elif not self._path.is_file() or self._path.read_bytes() != data:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                atomic_files.write(self._path, data, durable=False)
        except OSError as error:
            return dict.fromkeys(gpus, f"{self._path} cannot be kept: {error}") | wrong
        return wrong

    def _node(self, path: str) -> dict[str, Any] | None:
        """Return the CDI entry of a device node; None if the host does not have it.

        Owner and mode are as on the host.
        """
        try:
            status = os.stat(self._root / path)
        except OSError:
            return None
        if not stat.S_ISCHR(status.st_mode):
            return None
        return {
            "path": f"/{path}",
            "hostPath": f"{self._on_host}/{path}",
            "type": "c",
            "permissions": "rw",
            "uid": status.st_uid,
            "gid": status.st_gid,
            "fileMode": stat.S_IMODE(status.st_mode),
        }


def _edits(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the container edits: these device nodes, and the groups that own them on the host.

    With the groups, users other than root can open the device nodes.
    """
    edits: dict[str, Any] = {"deviceNodes": nodes}
    if groups := sorted({int(node["gid"]) for node in nodes} - {0}):
        edits["additionalGids"] = groups
    return edits
