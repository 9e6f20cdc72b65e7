"""File locks of a node: during a rolling update two instances of the agent share their state.

An open file descriptor holds each lock. The kernel releases the lock when the process ends.
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
    """Hold the lock of a file during an ``async with`` body, against other tasks and processes.

    The caller must make sure that a body with an ``await`` is not cancelled in the middle. The kubelet cancels its
    calls after 45 s, so such a body runs in a task of its own.

    Raises:
        NotYetError: Another process does not release the lock.
        OSError: The lock file cannot be opened.
    """
    descriptor = await take(path)
    try:
        yield
    finally:
        os.close(descriptor)


async def take(path: Path, *, of: str | None = None, patience_s: float = _PATIENCE_S) -> int:
    """Take a lock of a file, and return the descriptor that holds it.

    The lock is released when the descriptor and all its duplicates are closed.

    Args:
        path: The lock file.
        of: Name of the lock, in a file with many locks, such as a claim's uid; None if the file has one lock.
        patience_s: Seconds to wait until other tasks or processes release the lock.

    Raises:
        NotYetError: Another process or task does not release the lock.
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
    """Try to lock an open file or folder; return whether that succeeded.

    Every duplicate of the descriptor also holds the lock.

    Raises:
        OSError: The file cannot be locked.
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
