"""Translates paths below the root of the driver's file system to paths on the host.

The driver may be installed in the host's own file system, or in a folder with its own root, such as a driver
container's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath
from typing import Final

_MOST_HOPS: Final = 40  # of symbolic links, as in Linux


def dev_root(host_root: Path, driver_root: Path | None) -> Path:
    """Return the root of the file system that has the driver's device nodes in ``dev``.

    A driver container has its own ``dev``. If the driver's root is only a folder with libraries, as on COS, the result
    is the host's root.
    """
    if driver_root is not None and (dev := inside(driver_root, "dev")) is not None and os.path.isdir(dev):
        return driver_root
    return host_root


def inside(root: Path, name: str) -> Path | None:
    """Return the real path of the file ``name`` below a root; None if symbolic links form a circle.

    Symbolic links are resolved below the root, so the result is never outside the root.
    """
    left = list(reversed(PurePosixPath(name).parts))
    at: list[str] = []
    hops = 0
    while left:
        part = left.pop()
        if part in ("/", ".."):
            at = [] if part == "/" else at[:-1]
            continue
        try:
            target = PurePosixPath(os.readlink(root.joinpath(*at, part)))
        except OSError:  # no link, or nothing at all
            at.append(part)
            continue
        hops += 1
        if hops > _MOST_HOPS:
            return None
        left += reversed(target.parts)
    return root.joinpath(*at)


def on_host(host_root: Path, path: Path) -> str:
    """Return the path on the host for a path in this container; unchanged if it is not below ``host_root``."""
    return below(host_root, path) or str(path)


def below(host_root: Path, path: Path | None) -> str | None:
    """Return the path on the host for a path in this container; None if it is not below ``host_root``.

    If ``path`` is None, the result is ``/``.
    """
    if path is None:
        return "/"
    with contextlib.suppress(ValueError):
        return str(Path("/") / path.relative_to(host_root))
    return None
