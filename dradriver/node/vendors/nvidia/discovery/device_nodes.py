"""Makes the driver's device nodes in a container's own /dev, which has only the nodes that existed when it started."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def add_nodes(sources: Iterable[Path], *, folder: Path = Path("/dev")) -> None:
    """Make the driver's device nodes that are missing in a folder, with the numbers that a source folder has.

    If several sources have a node, the first one counts. A node with other numbers is made again, because most numbers
    can change when the driver is loaded again. Capability nodes of MIG and IMEX are in subfolders, such as
    ``nvidia-caps``.

    Args:
        sources: Folders of device nodes: the host's, and that of a driver in a container.
        folder: The folder in which to make them.
    """
    wanted: dict[Path, os.stat_result] = {}
    for source in sources:
        with contextlib.suppress(OSError):
            for path in sorted((*source.glob("nvidia*"), *source.glob("nvidia-caps*/*"))):
                if (status := _node(path)) is not None:
                    wanted.setdefault(folder / path.relative_to(source), status)
    for own, status in wanted.items():
        with contextlib.suppress(OSError):
            _make(own, status)


def _node(path: Path) -> os.stat_result | None:
    """Return the status of a device node; None if the path is not a device node."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status if stat.S_ISCHR(status.st_mode) else None
    return None


def _make(own: Path, wanted: os.stat_result) -> None:
    there = _node(own)
    if there is not None and there.st_rdev != wanted.st_rdev:
        own.unlink()
    own.parent.mkdir(mode=0o755, exist_ok=True)
    os.mknod(own, wanted.st_mode, wanted.st_rdev)  # fails where there is one
