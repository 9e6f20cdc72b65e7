"""Work that goes on for ever beside what is decided and written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0


async def always(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work again and again until cancelled; what it raises is logged and does not end the process."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("an error in this program; going on")
        await asyncio.sleep(PAUSE_S)
