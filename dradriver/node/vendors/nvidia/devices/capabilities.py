"""The device nodes that open a MIG instance to a container.

The driver has a file for each right, whose content names a device node below ``/dev/nvidia-caps`` by its minor number;
the major one is that of ``nvidia-caps`` in ``/proc/devices``, and changes from boot to boot (NVIDIA's MIG user guide,
"Device nodes and capabilities"). Nobody makes these nodes when an instance is made but ``nvidia-modprobe``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final, Protocol

from dradriver.node.container_edits import DeviceNode
from dradriver.node.errors import NotYetError
from dradriver.node.vendors.nvidia.discovery.driver_root import dev_root, on_host

_PROC: Final = "proc/driver/nvidia/capabilities"
_FOLDER: Final = "dev/nvidia-caps"
_MINOR: Final = re.compile(r"^DeviceFileMinor: ([0-9]{1,7})$", re.MULTILINE)
_MODE: Final = re.compile(r"^DeviceFileMode: ([0-9]{1,4})$", re.MULTILINE)  # decimal
_MAJOR: Final = re.compile(r"^ *([0-9]{1,4}) nvidia-caps$", re.MULTILINE)
_READABLE: Final = 0o444


class Capabilities(Protocol):
    """What gives the device nodes that open MIG instances to containers."""

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return the capability device nodes of a GPU instance and of its compute instance.

        Raises:
            NotYetError: They are not there and cannot be made.
        """


class DriverCapabilities:
    """The nodes that the driver's own files name."""

    def __init__(self, *, host_root: Path, driver_root: Path | None) -> None:
        """Look for no node yet.

        Args:
            host_root: Where the host's file system is.
            driver_root: Root of the file system that holds the driver, below ``host_root``; None for the host's own.
        """
        self._host_root = host_root
        self._driver_root = driver_root

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return the capability device nodes of a MIG instance; missing ones are made."""
        folder = f"{_PROC}/gpu{minor}/mig/gi{instance}"
        return tuple(self._node(f"{folder}/{name}") for name in ("access", f"ci{compute}/access"))

    def _node(self, name: str) -> DeviceNode:
        access = self._read(name)
        minor, mode, major = _MINOR.search(access), _MODE.search(access), _MAJOR.search(self._read("proc/devices"))
        if minor is None or major is None:
            missing = f"{name} names no device" if minor is None else "/proc/devices has no nvidia-caps"
            raise NotYetError(f"the driver's right on a MIG instance is not known: {missing}")
        node = dev_root(self._host_root, self._driver_root) / _FOLDER / f"nvidia-cap{minor[1]}"
        try:
            _make(node, os.makedev(int(major[1]), int(minor[1])), int(mode[1]) if mode else _READABLE)
        except OSError as error:
            said = f"{node} cannot be made: {error}; run nvidia-modprobe -f /{name} on the node"
            raise NotYetError(said) from error
        return DeviceNode(f"/{_FOLDER}/{node.name}", on_host(self._host_root, node))

    def _read(self, name: str) -> str:
        for root in (self._host_root, Path("/")):
            with contextlib.suppress(OSError, UnicodeError):
                return (root / name).read_text()
        raise NotYetError(f"the driver's right on a MIG instance is not known: /{name} cannot be read")


def _make(path: Path, device: int, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        there = path.lstat()
        if stat.S_ISCHR(there.st_mode) and there.st_rdev == device:
            return
        path.unlink()
    path.parent.mkdir(mode=0o755, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, device)
    path.chmod(mode & 0o777)  # whatever the umask


class SimulatedCapabilities:
    """The nodes of simulated GPUs: behind each is one that every host has."""

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return simulated capability device nodes, numbered as on an A100: 135 for each GPU, 9 for each instance."""
        first = 3 + 135 * minor + 9 * instance
        return tuple(DeviceNode(f"/{_FOLDER}/nvidia-cap{n}", "/dev/null") for n in (first, first + 1 + compute))
