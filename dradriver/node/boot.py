"""What tells one boot of a node from another: no change of hardware outlives it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # the host's, in every container


def boot_id(path: Path = BOOT_ID) -> str:
    """Return what tells this boot of the machine from any other.

    Raises:
        OSError: The kernel does not say.
    """
    return path.read_text().strip()
