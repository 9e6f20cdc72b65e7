"""Which load of its module a driver is, and since when it has each of its devices.

The numbers of device nodes last no longer: after another load, or when a device was bound anew, a GPU can have the
number of another. /sys gives each folder and link a number of its own when it is made (fs/kernfs/dir.c,
__kernfs_new_node).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dradriver.node.discovery import sysfs
from dradriver.topology.identifiers import is_bus_id


class DriverLoad(NamedTuple):
    """A driver as it is at one time.

    Attributes:
        module: The number of the module's folder; 0 while it is not loaded.
        devices: The number of the link to each device that it has, by bus id.
    """

    module: int
    devices: Mapping[str, int]

    def outlives(self, now: DriverLoad) -> bool:
        """Return whether what was read at this time still holds for this load of the driver."""
        same = all(now.devices.get(busid, number) == number for busid, number in self.devices.items())
        return self.module == now.module and same


def read(root: Path, driver: str) -> DriverLoad:
    """Return the load of a driver's module as it is now.

    Args:
        root: Where the host's /sys is.
        driver: The name of its module, and of its folder on the PCI bus.
    """
    folder = root / "sys/bus/pci/drivers" / driver
    devices = {busid: _number(folder / busid) for busid in sysfs.entries(folder) if is_bus_id(busid)}
    return DriverLoad(_number(root / "sys/module" / driver), devices)


def _number(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_ino
    return 0
