"""One lock a node: during a rolling update two instances of the agent share their state."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from dradriver.node.errors import NotYetError

_RETRY_S: Final = 0.02  # the lock is held for a few file operations
_PATIENCE_S: Final = 10.0


@contextlib.asynccontextmanager
async def locked(path: Path, *, patience_s: float = _PATIENCE_S) -> AsyncIterator[None]:
    """Hold the lock file during the block, against other tasks and other processes.

    A block that awaits must be one that nobody cancels: the kubelet gives up after 45 s, and the block would be cut in
    two. A process that dies lets go of the lock.

    Raises:
        NotYetError: Another process does not let go of it.
        OSError: The lock file cannot be opened.
    """
    descriptor = _open(path)
    try:
        try:
            async with asyncio.timeout(patience_s):
                while not _try(descriptor):  # noqa: ASYNC110  # another process's lock sends no event
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError as error:
            raise NotYetError(f"{path} is held by another process") from error
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
