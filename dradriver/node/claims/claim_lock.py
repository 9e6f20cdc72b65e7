"""The lock of one claim, which a call holds from its begin to its end; ``prepare`` takes it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from dradriver.node.errors import NotYetError
from dradriver.node.lock import take


class EarlierCallError(NotYetError):
    """An earlier call for the claim does not end."""


@contextlib.asynccontextmanager
async def claim_locked(path: Path, uid: str, *, until: float) -> AsyncIterator[int]:
    """Hold a claim's lock during the block, and yield the descriptor that holds it.

    Args:
        path: The file of all claims' locks; shared with other instances of the agent on this node.
        uid: The claim's uid.
        until: When to stop waiting for an earlier call, by the loop's clock.

    Raises:
        EarlierCallError: An earlier call for the claim does not end.
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
