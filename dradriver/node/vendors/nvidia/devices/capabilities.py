"""The device nodes that a container needs to use a MIG instance.

NVIDIA calls them capabilities. The driver has a file for each capability. The file names a device node below
``/dev/nvidia-caps`` by its minor number. The major number is that of ``nvidia-caps`` in ``/proc/devices``, and can
change at each boot (NVIDIA's MIG user guide, "Device nodes and capabilities"). The driver does not make these nodes
when an instance is made; only ``nvidia-modprobe`` does. So this module makes them itself.
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
    """Returns the device nodes that a container needs to use a MIG instance."""

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return the capability device nodes of a GPU instance and of its compute instance.

        Args:
            minor: The N of the GPU's ``/dev/nvidiaN``.
            instance: Number of the GPU instance.
            compute: Number of the compute instance.

        Raises:
            NotYetError: The nodes do not exist and cannot be made.
        """


class DriverCapabilities:
    """Finds the device nodes of MIG instances (capabilities) by files of the real driver."""

    def __init__(self, *, host_root: Path, driver_root: Path | None) -> None:
        """Store the arguments; look for no node yet.

        Args:
            host_root: Folder that contains the host's file system.
            driver_root: Root of the file system with the driver, below ``host_root``; None if the driver is in the
                host's own file system.
        """
        self._host_root = host_root
        self._driver_root = driver_root

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return the ``/dev/nvidia-caps`` nodes of a MIG instance; make those that do not exist.

        ``minor`` is the N of the GPU's ``/dev/nvidiaN``. ``instance`` and ``compute`` are the numbers of the GPU
        instance and of its compute instance.
        """
        folder = f"{_PROC}/gpu{minor}/mig/gi{instance}"
        return tuple(self._node(f"{folder}/{name}") for name in ("access", f"ci{compute}/access"))

    def _node(self, name: str) -> DeviceNode:
        access = self._read(name)
        minor, mode, major = _MINOR.search(access), _MODE.search(access), _MAJOR.search(self._read("proc/devices"))
        if minor is None or major is None:
            missing = f"{name} names no device" if minor is None else "/proc/devices has no nvidia-caps"
            raise NotYetError(f"NVIDIA's capability file of a MIG instance is not known: {missing}")
        node = dev_root(self._host_root, self._driver_root) / _FOLDER / f"nvidia-cap{minor[1]}"
        try:
            _make(node, os.makedev(int(major[1]), int(minor[1])), int(mode[1]) if mode else _READABLE)
        except OSError as error:
            said = f"{node} cannot be made: {error}. Run nvidia-modprobe -f /{name} on the node."
            raise NotYetError(said) from error
        return DeviceNode(f"/{_FOLDER}/{node.name}", on_host(self._host_root, node))

    def _read(self, name: str) -> str:
        for root in (self._host_root, Path("/")):
            with contextlib.suppress(OSError, UnicodeError):
                return (root / name).read_text()
        raise NotYetError(f"NVIDIA's capability file of a MIG instance cannot be read: /{name}")


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
    """The device nodes of simulated MIG instances (capabilities), all ``/dev/null`` on the host."""

    def nodes(self, minor: int, instance: int, compute: int) -> tuple[DeviceNode, ...]:
        """Return the simulated ``/dev/nvidia-caps`` nodes of a MIG instance.

        They are numbered as on an A100: 135 numbers per GPU, 9 per instance.
        """
        first = 3 + 135 * minor + 9 * instance
        return tuple(DeviceNode(f"/{_FOLDER}/nvidia-cap{n}", "/dev/null") for n in (first, first + 1 + compute))
