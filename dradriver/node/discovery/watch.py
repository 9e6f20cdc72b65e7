"""Reading the machine again and again, because GPUs get lost and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.discovery import Discovery
from dradriver.node.errors import RestartError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0  # eight sleeping GPUs wake up in less


class MachineWatch:
    """The machine as it was last read.

    Attributes:
        machine: The last that could be read; without GPUs before ``start``.
    """

    def __init__(self, discovery: Discovery, *, interval_s: float, on_change: Callable[[], None]) -> None:
        """Keep what is needed; nothing is read yet."""
        self._discovery = discovery
        self._interval_s = interval_s
        self._on_change = on_change
        self._again = asyncio.Event()
        self.machine = Machine(name="", gpus=(), links=(), paths=())

    async def start(self) -> None:
        """Read the machine for the first time.

        Raises:
            DriverError: It cannot be read.
        """
        self.machine = await self._read()
        self._note()

    async def run(self) -> None:
        """Read it every interval and after every ``poke``, for ever.

        Raises:
            RestartError: Only another process can read it again.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._again.wait()
            self._again.clear()
            await self._look()

    def poke(self) -> None:
        """Have the machine read again now."""
        self._again.set()

    async def _read(self) -> Machine:
        """Read it. A driver that hangs cannot be interrupted, so it is waited for, aloud."""
        if not self._discovery.slow:
            return self._discovery.read()
        reading = asyncio.get_running_loop().run_in_executor(None, self._discovery.read)
        waited_s = 0.0
        while not (await asyncio.wait({reading}, timeout=PATIENCE_S))[0]:
            waited_s += PATIENCE_S
            logger.warning("the driver has not answered for %.0f s; the last state of the machine stands", waited_s)
        return reading.result()

    async def _look(self) -> None:
        try:
            machine = await self._read()
        except RestartError:
            raise
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
