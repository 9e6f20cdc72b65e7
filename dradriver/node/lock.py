"""Locks of a node: during a rolling update two instances of the agent share their state.

Each is held by a descriptor, and by the kernel: whoever dies lets go of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from dradriver.node.errors import NotYetError

_RETRY_S: Final = 0.02  # the node's lock is held for a few file operations
_PATIENCE_S: Final = 10.0
_BYTE: Final = "hhqqi0q"  # fcntl.h, struct flock: type, whence, start, length, pid


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold the one lock of a file during the block, against other tasks and other processes.

    A block that awaits must be one that nobody cancels: the kubelet gives up after 45 s, and the block would be cut in
    two.

    Raises:
        NotYetError: Another process does not let go of it.
        OSError: The lock file cannot be opened.
    """
    descriptor = await take(path)
    try:
        yield
    finally:
        os.close(descriptor)


async def take(path: Path, *, of: str | None = None, patience_s: float = _PATIENCE_S) -> int:
    """Return a descriptor that holds a file's lock until it, and every duplicate of it, is closed.

    Args:
        path: The lock file.
        of: Whose lock it is in a file of many; None where it is the file's only one.
        patience_s: How long to wait for others.

    Raises:
        NotYetError: Another process, or another task, does not let go of it.
        OSError: The lock file cannot be opened.
    """
    descriptor = _open(path)
    # The lock belongs to the open descriptor: it is released when that is closed, also if this process is killed.
    try:
        async with asyncio.timeout(patience_s):
            while not _try(descriptor, of):  # noqa: ASYNC110  # another process's lock sends no event
                await asyncio.sleep(_RETRY_S)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, TimeoutError):
            raise NotYetError(f"{path} is held by another process") from error
        raise
    return descriptor


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file or folder, for every duplicate of the descriptor; return whether it was free.

    Raises:
        OSError: It cannot be locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _try(descriptor: int, of: str | None) -> bool:
    if of is None:
        return try_lock(descriptor)
    # One byte of a file that never has any. Unlike POSIX's other locks this kind is the descriptor's (fcntl(2)).
    at = int.from_bytes(hashlib.sha256(of.encode()).digest()[:7], "big")
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_BYTE, fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    except BlockingIOError:
        return False
    return True
