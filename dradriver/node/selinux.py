"""SELinux labels for files of the host that containers get.

Without the labels, an enforcing SELinux refuses access. All containers may use files of the type ``container_file_t``
(container-selinux). NVIDIA's device plugin gives its MPS folders the same label. If SELinux is off in the kernel, these
functions do nothing.
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
    """Return the mount option that labels all files of a tmpfs for containers.

    The text is empty if SELinux is off.
    """
    return f',context="{CONTEXT}"' if enabled() else ""


def label(path: Path) -> None:
    """Set the SELinux label of a file or folder that is mounted into containers.

    If the kernel refuses, for example because the agent of a simulated node has no rights, the function logs this.
    """
    if not enabled():
        return
    try:
        os.setxattr(path, _XATTR, CONTEXT.encode() + b"\0", follow_symlinks=False)
    except OSError as error:
        unlabelled(path, error)


def unlabelled(path: Path, error: OSError) -> None:
    """Log that containers may be unable to read a file or folder, because its SELinux label could not be set."""
    logger.warning("%s cannot be labelled for containers, so SELinux may deny access to it: %s", path, error)
