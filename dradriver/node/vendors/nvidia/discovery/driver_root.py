"""Paths below the root of the file system that holds the driver, and the same paths as the host's own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath
from typing import Final

_MOST_HOPS: Final = 40  # of symbolic links, as in Linux


def dev_root(host_root: Path, driver_root: Path | None) -> Path:
    """Return the root whose ``dev`` has the driver's device nodes: the driver's root, or the host's without any.

    A driver container has one; where the driver's root is but a folder with libraries, as on COS, they are the host's.
    """
    if driver_root is not None and (dev := inside(driver_root, "dev")) is not None and os.path.isdir(dev):
        return driver_root
    return host_root


def inside(root: Path, name: str) -> Path | None:
    """Return a path below the driver's root without symbolic links, none of which leads out; None for a circle."""
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
    """Return a path of the driver's root as the host's own, unchanged if it is not below the host's file system."""
    return below(host_root, path) or str(path)


def below(host_root: Path, path: Path | None) -> str | None:
    """Return a path of the driver's root as the host's own; None if it is not below the host's file system."""
    if path is None:
        return "/"
    with contextlib.suppress(ValueError):
        return str(Path("/") / path.relative_to(host_root))
    return None
