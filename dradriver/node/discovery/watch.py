"""Reading the machine again and again, because GPUs get lost and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.discovery import Discovery
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class MachineWatch:
    """The machine as it was last read.

    Attributes:
        machine: The last that could be read.
    """

    def __init__(self, discovery: Discovery, *, interval_s: float, on_change: Callable[[], None]) -> None:
        """Read the machine for the first time.

        Raises:
            DriverError: It cannot be read.
        """
        self._discovery = discovery
        self._interval_s = interval_s
        self._on_change = on_change
        self._again = asyncio.Event()
        self.machine: Machine = discovery.read()
        self._note()

    async def run(self) -> None:
        """Read it every interval and after every ``poke``, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._again.wait()
            self._again.clear()
            self._read()

    def poke(self) -> None:
        """Have the machine read again now."""
        self._again.set()

    def _read(self) -> None:
        try:
            machine = self._discovery.read()
        except DriverError as error:
            logger.error("the machine cannot be read now, its last state stands: %s", error)
            return
        if machine != self.machine:
            before, self.machine = self.machine, machine
            self._note()
            was, now = ({gpu.uuid for gpu in m.gpus} for m in (before, machine))
            logger.warning("the machine changed; lost %s, found %s", sorted(was - now), sorted(now - was))
            self._on_change()

    def _note(self) -> None:
        metrics.GPUS.set(len(self.machine.gpus))
