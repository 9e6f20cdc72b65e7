"""The plugin's unix sockets: where they lie, whether they are still ours, and clearing dead ones away.

Every instance of the agent has names of its own, after its pod's uid: grpcio takes a live socket's path over without a
word, and a process that ends deletes whatever lies at its path by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.node.errors import SetupError

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 107  # sun_path of unix(7) has 108, of which one ends the text
_SURE_S: Final = 0.5  # a socket that is bound and not listening yet refuses too


class SocketPaths(msgspec.Struct, frozen=True):
    """Where one instance serves: ``registration`` is what the kubelet looks for, ``dra`` is told to it."""

    registration: Path
    dra: Path


def paths(*, kubelet_root: Path, state_dir: Path, pod_uid: str) -> SocketPaths:
    """Return the plugin's sockets of the agent that runs in the pod of this uid.

    Raises:
        SetupError: A path is too long for a unix socket, or not absolute: the kubelet dials it as it is.
    """
    sockets = SocketPaths(
        registration=kubelet_root / "plugins_registry" / f"{names.DRIVER}-{pod_uid}-reg.sock",
        dra=state_dir / f"dra-{pod_uid}.sock",
    )
    for path, flag in ((sockets.registration, "--kubelet-root"), (sockets.dra, "--state-dir")):
        if not path.is_absolute():
            raise SetupError(f"{path}: write an absolute path in {flag}")
        if (length := len(os.fsencode(path))) > MOST_BYTES:
            raise SetupError(
                f"{path}: {length} bytes; a unix socket's path has {MOST_BYTES} at most: write a shorter {flag}"
            )
    return sockets


def identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a socket file; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def remove_dead(paths: SocketPaths) -> None:
    """Remove the plugin's sockets of earlier instances that no process listens on.

    Raises:
        SetupError: A living process listens on a path of ours.
        OSError: A folder cannot be made.
    """
    for path in (paths.registration, paths.dra):
        path.parent.mkdir(parents=True, exist_ok=True)
    candidates = {
        *paths.registration.parent.glob(f"{names.DRIVER}-*-reg.sock"),
        *paths.dra.parent.glob("dra-*.sock"),
    }

    # A process that has just started may not listen yet: look again, and whether it is the same socket file.
    dead = {path: identity(path) for path in candidates if _refuses(path)}
    if dead:
        await asyncio.sleep(_SURE_S)
    for path, earlier_identity in dead.items():
        if identity(path) == earlier_identity and _refuses(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                logger.info("removed the dead socket %s", path)
    for path in (paths.registration, paths.dra):
        if identity(path) is not None:
            raise SetupError(f"{path}: another process serves this socket; give each instance a --pod-uid of its own")


def remove_own(path: Path, was: tuple[int, int] | None) -> None:
    """Remove the plugin's socket unless another process has put its own there."""
    if was is not None and identity(path) == was:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
