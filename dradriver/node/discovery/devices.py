"""The driver's device nodes in a container's own /dev, which has only those that were there at its start."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def add_nodes(sources: Iterable[Path], *, folder: Path = Path("/dev")) -> None:
    """Make the driver's nodes that are missing, each as in the first source that has it; what cannot be is left.

    Those of MIG's and of IMEX's capabilities are in folders of their own, ``nvidia-caps`` and the like.

    Args:
        sources: Folders of device nodes: the host's, and that of a driver that lives in a container itself.
        folder: Where to make them.
    """
    for source in sources:
        with contextlib.suppress(OSError):
            for path in sorted((*source.glob("nvidia*"), *source.glob("nvidia-caps*/*"))):
                _add(path, folder / path.relative_to(source))


def _add(path: Path, own: Path) -> None:
    with contextlib.suppress(OSError):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            own.parent.mkdir(mode=0o755, exist_ok=True)
            os.mknod(own, status.st_mode, status.st_rdev)  # fails where there is one
