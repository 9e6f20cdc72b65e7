"""The plugin's unix sockets: their paths, checks that they belong to this agent, and removal of dead sockets.

The names of an agent's sockets contain the uid of its pod, so every instance has its own names. Equal names would do
harm: grpcio replaces a live socket at the same path without an error. And a process that ends deletes the file at its
path, even if another process made the file.
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
    """The socket paths of one agent.

    The kubelet finds the socket ``registration`` in its plugin folder. Through this socket the agent tells the kubelet
    the path of the other socket, ``dra``, for prepare calls.
    """

    registration: Path
    dra: Path


def paths(*, kubelet_root: Path, state_dir: Path, pod_uid: str) -> SocketPaths:
    """Return the socket paths of the agent in the pod with this uid.

    Raises:
        SetupError: A path is too long for a unix socket, or is not absolute. The kubelet uses the path unchanged.
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
                f"{path}: the path has {length} bytes, and the path of a unix socket can have at "
                f"most {MOST_BYTES}. Write a shorter {flag}."
            )
    return sockets


def identity(path: Path) -> tuple[int, int] | None:
    """Return device number and inode number of a socket file; None if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def remove_dead(paths: SocketPaths) -> None:
    """Remove the socket files of earlier instances of the plugin, on which no process listens.

    Raises:
        SetupError: A running process listens on a path of this agent.
        OSError: A folder cannot be created.
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
            raise SetupError(f"{path}: another process serves this socket. Give each instance its own --pod-uid.")


def remove_own(path: Path, was: tuple[int, int] | None) -> None:
    """Remove the plugin's socket, unless another process has put its own socket there.

    Args:
        path: The path of the socket.
        was: Device number and inode number of the socket when this agent made it; None if it made none.
    """
    if was is not None and identity(path) == was:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
