"""Labels for what containers are given of the host's: without them an enforcing SELinux refuses it.

Files of any container have the type ``container_file_t`` (container-selinux); NVIDIA's device plugin labels its MPS
folders so, too. Nothing is done where the kernel has SELinux off.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

CONTEXT: Final = "system_u:object_r:container_file_t:s0"
_XATTR: Final = "security.selinux"
_ON: Final = Path("/sys/fs/selinux")  # there where SELinux is on, whether or not its file system is mounted


def enabled() -> bool:
    """Return whether the kernel has SELinux on, enforcing or not."""
    return _ON.is_dir()


def mount_option() -> str:
    """Return the option that labels all of a file system in memory, empty where SELinux is off."""
    return f',context="{CONTEXT}"' if enabled() else ""


def label(path: Path) -> None:
    """Set the SELinux label of a file or folder that is mounted into containers.

    Where the policy does not let this process do that, as on a simulated node, whose agent has no rights, it is said.
    """
    if not enabled():
        return
    try:
        os.setxattr(path, _XATTR, CONTEXT.encode() + b"\0", follow_symlinks=False)
    except OSError as error:
        unlabelled(path, error)


def unlabelled(path: Path, error: OSError) -> None:
    """Say that containers may not read a file or folder for want of an SELinux label, and why."""
    logger.warning("%s cannot be labelled for containers, and SELinux may keep them from it: %s", path, error)
