"""Virtual functions (SR-IOV) and scalable functions of network cards; one card may have thousands of them.

A virtual function is a PCI device with a link ``physfn``. A scalable function (mlx5, ice) is a device on the auxiliary
bus, whose folder ``mlx5_core.sf.4`` is below that of the card (Linux,
Documentation/networking/devlink/devlink-port.rst).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from dradriver.node.discovery import sysfs

_SCALABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,32}\.sf\.[0-9]{1,10}")
# What net/core/devlink.c calls the other end of a function's port; a card's own port is "p0", or has no such name.
_REPRESENTOR: Final = re.compile(r"(?:c[0-9]+)?pf[0-9]+(?:(?:vf|sf)[0-9]+)?")


def scalable(device: Path) -> str:
    """Return the name of a scalable function (``mlx5_core.sf.4``); empty for any other device.

    Args:
        device: The ``device`` link of an entry in /sys, such as ``class/infiniband/mlx5_4/device``.
    """
    name = Path(os.path.realpath(device)).name
    return name if is_scalable(name) else ""


def is_scalable(name: str) -> bool:
    """Return whether a device name is the name of a scalable function."""
    return _SCALABLE.fullmatch(name) is not None


def is_function(device: Path) -> bool:
    """Return whether a device is a virtual or a scalable function."""
    return bool(scalable(device)) or os.path.exists(device / "physfn")


def is_representor(interface: Path) -> bool:
    """Return whether an interface is a representor: the host's end of the port of a virtual or scalable function.

    A representor sends no traffic of its own.
    """
    return _REPRESENTOR.fullmatch(sysfs.text(interface / "phys_port_name")) is not None
