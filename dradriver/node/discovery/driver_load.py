"""Tells whether a GPU's kernel driver was loaded again, or was bound again to one of its devices.

The numbers of device nodes are valid until the driver is loaded again, or a device is bound to it again. After that, a
GPU can have the number that another GPU had.

The module uses inode numbers of /sys as identifiers, because the kernel gives each folder and link of /sys a new number
when it is made (fs/kernfs/dir.c, __kernfs_new_node).
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
    """The state of a loaded driver module: identifiers that change when it is loaded again.

    Attributes:
        module: The inode number of the module's folder in /sys; 0 if the module is not loaded.
        devices: By PCI bus id of each device of the driver: the inode number of the link to the device. It changes when
            the device is bound to the driver again.
    """

    module: int
    devices: Mapping[str, int]

    def outlives(self, now: DriverLoad) -> bool:
        """Return whether facts that were read in this state still hold in the state ``now``.

        They hold if the module was not loaded again and no device was bound to the driver again.
        """
        same = all(now.devices.get(busid, number) == number for busid, number in self.devices.items())
        return self.module == now.module and same


def read(root: Path, driver: str) -> DriverLoad:
    """Return the present state of a driver's module.

    Args:
        root: Folder that contains the host's /sys.
        driver: The name of the driver's module. The driver's folder on the PCI bus has the same name.
    """
    folder = root / "sys/bus/pci/drivers" / driver
    devices = {busid: _number(folder / busid) for busid in sysfs.entries(folder) if is_bus_id(busid)}
    return DriverLoad(_number(root / "sys/module" / driver), devices)


def _number(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_ino
    return 0
