"""The driver's device nodes in a container's own /dev, which has only those that were there at its start."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def add_nodes(sources: Iterable[Path], *, folder: Path = Path("/dev")) -> None:
    """Make the driver's device nodes that are missing, each as in the first source that has it.

    A node of other numbers is made anew: those of all but the GPUs change when the driver is loaded again. Those of
    MIG's and of IMEX's capabilities are in folders of their own, ``nvidia-caps`` and the like.

    Args:
        sources: Folders of device nodes: the host's, and that of a driver that lives in a container itself.
        folder: Where to make them.
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
    """Return the status of a device node; None where the path is none."""
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
