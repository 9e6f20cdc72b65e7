"""Runs background work of the controller for as long as it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0


async def always(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work again and again until cancelled; log errors and go on.

    After each run there is a pause of ``PAUSE_S`` seconds.
    """
    while True:
        try:
            await work()
        except Exception:
            logger.exception("Internal error. The controller goes on.")
        await asyncio.sleep(PAUSE_S)
