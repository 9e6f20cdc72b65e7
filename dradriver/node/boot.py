"""Identifies one boot of a node, so that the agent notices a reboot.

A reboot undoes all changes that the agent made on the hardware. So records of an earlier boot do not count any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # the host's, in every container


def boot_id(path: Path = BOOT_ID) -> str:
    """Return the kernel's id of the current boot, which differs for every boot.

    Raises:
        OSError: The kernel's file cannot be read.
    """
    return path.read_text().strip()
