"""The lock of one claim. ``prepare`` holds it during a whole call for the claim."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from dradriver.node.errors import NotYetError
from dradriver.node.lock import take


class EarlierCallError(NotYetError):
    """An earlier call for the same claim has not ended yet."""


@contextlib.asynccontextmanager
async def claim_locked(path: Path, uid: str, *, until: float) -> AsyncIterator[int]:
    """Hold a claim's lock during an ``async with`` body; yield the open file descriptor that holds it.

    Args:
        path: The file with the locks of all claims; other instances of the agent on this node use the same file.
        uid: The claim's uid.
        until: When to stop waiting for an earlier call for the claim, in seconds of the event loop's clock.

    Raises:
        EarlierCallError: An earlier call for the claim did not end by ``until``.
        NotYetError: The file cannot be locked.
    """
    patience_s = max(0.0, until - asyncio.get_running_loop().time())
    try:
        lock_fd = await take(path, of=uid, patience_s=patience_s)
    except NotYetError as error:
        raise EarlierCallError(f"an earlier call for the claim (uid {uid}) is still under way") from error
    except OSError as error:
        raise NotYetError(f"the node cannot lock the claim: {error}") from error
    try:
        yield lock_fd
    finally:
        os.close(lock_fd)
