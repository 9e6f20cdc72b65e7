"""Reads the machine at an interval, because GPUs can get lost and come back; the agent runs it.

A reading is the machine as the agent found it at one time. The driver is the GPUs' kernel driver. A reading is stale if
the driver was loaded again since, because the numbers of device nodes may have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.errors import DriverError
from dradriver.event import Event
from dradriver.node import metrics
from dradriver.node.discovery import Discovery
from dradriver.node.discovery.gpu_slots import Slots
from dradriver.node.errors import RestartError
from dradriver.node.threads import beside
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0  # eight sleeping GPUs wake up in less
HANGS_S: Final = 60.0  # a driver that has not answered for so long does not
READINGS: Final = 5  # in a row that fail before it is said of the GPUs
AGAIN_S: Final = 2.0  # after a reading that failed
LOOK_S: Final = 1.0  # between two looks whether the driver was loaded again


class MachineWatch:
    """Reads the machine at an interval and keeps the last reading.

    Attributes:
        machine: The last successful reading; None before the first.
        trouble: The reason why the machine cannot be read, if the problem lasts; None while the machine can be read.
        changed: An ``event.Event`` that occurs when ``machine`` has changed, or the numbers of its GPUs became final.
        looked: An ``event.Event`` that occurs after every reading, also if the reading failed or takes too long.
    """

    def __init__(
        self,
        discovery: Discovery,
        *,
        interval_s: float,
        earlier: Callable[[], Machine | None] = lambda: None,
        is_stale: Callable[[], bool] = lambda: False,
        withdraw: Callable[[], Awaitable[None]] | None = None,
        slots: Slots | None = None,
    ) -> None:
        """Store the arguments; read nothing yet.

        Args:
            discovery: Reads the machine.
            interval_s: Seconds between two readings.
            earlier: Returns the machine that an earlier agent published.
            is_stale: Returns whether the GPUs' kernel driver was loaded again since the last reading.
            withdraw: Called when a reading becomes stale, and never while a reading runs; removes CDI specifications
                that were made from the reading.
            slots: Numbers the GPUs of each reading by their slots; None keeps the driver's numbers.
        """
        self._is_stale = is_stale
        self._withdraw = withdraw
        self._was_stale = False  # at the last look, so that ``withdraw`` is called once
        self.changed: Event[[]] = Event()  # called when ``machine`` has changed
        self.looked: Event[[]] = Event()  # called after every reading, also one that failed
        self._earlier = earlier
        self._slots = slots
        self._failed = 0  # readings in a row
        self._said = ""  # the last error, which is logged once
        self.trouble: str | None = None  # why the last reading failed
        self._discovery = discovery
        self._interval_s = interval_s
        self._again = asyncio.Event()  # set to have the machine read now
        self._reading = False
        self.machine: Machine | None = None  # with the slots' numbers
        self._found: Machine | None = None  # as the driver numbers the GPUs

    def last_known(self) -> Machine | None:
        """Return the last reading of the machine; None if there is none.

        If no reading has succeeded and the driver keeps failing, this is the machine that an earlier agent published.
        """
        if self.machine is None and self.trouble is not None:
            return self._earlier()
        return self.machine

    def publishable(self) -> Machine | None:
        """Return the machine as ``last_known`` does; None while the final numbers of its GPUs are unknown."""
        return self.last_known() if self._is_settled or self.machine is None else None

    @property
    def _is_settled(self) -> bool:
        return self._slots is None or self._slots.is_settled

    async def run(self) -> None:
        """Read the machine now, at every interval and after every ``poke``, until cancelled.

        Raises:
            RestartError: Only a new process can read the machine again.
        """
        try:
            while True:
                await self._look()
                await self._pause()
                self._again.clear()
        finally:
            if not self._reading:  # a driver that hangs is left hanging
                self._discovery.close()

    @property
    def current(self) -> Machine | None:
        """Return the last reading of the machine; None if the driver was loaded again since.

        If the driver was loaded again, the watch reads the machine again at once.
        """
        if self._is_stale():
            self.poke()
            return None
        return self.machine

    async def _pause(self) -> None:
        """Wait until the next reading is due.

        A reading is due if the interval is over, ``poke`` was called, or the driver was loaded again. The watch checks
        the driver's load often enough: to unload and load a driver takes longer than the time between two checks.
        """
        loop = asyncio.get_running_loop()
        is_soon = self._failed or not self._is_settled
        until = loop.time() + (min(AGAIN_S, self._interval_s) if is_soon else self._interval_s)
        while (left_s := until - loop.time()) > 0 and not self._again.is_set():
            is_stale = self._is_stale()
            if is_stale and not self._was_stale and self._withdraw is not None:
                try:
                    await self._withdraw()
                except (DriverError, OSError) as error:
                    logger.error(
                        "The GPU driver was loaded again, but CDI files with its old devices cannot be removed: %s",
                        error,
                    )
            self._was_stale = is_stale
            if is_stale and not self._failed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, left_s)):
                    await self._again.wait()

    def poke(self) -> None:
        """Make the machine watch read the machine again now."""
        self._again.set()

    async def _read(self) -> Machine:
        """Read the machine and return it; log how long a hanging driver has not answered.

        A call to a hanging driver cannot be interrupted, so this method waits until the call ends.
        """
        if not self._discovery.slow:
            return self._discovery.read()
        reading = beside(self._discovery.read)
        self._reading = True
        waited_s = 0.0
        try:
            while not (await asyncio.wait({reading}, timeout=PATIENCE_S))[0]:
                waited_s += PATIENCE_S
                logger.warning(
                    "The GPU driver has not answered for %.0f s. The last known state of the machine stays in force.",
                    waited_s,
                )
                if waited_s >= HANGS_S:
                    self._tell(f"the driver has not answered for {HANGS_S:.0f} s")
                await self._settle()
            self._reading = False
            return reading.result()
        finally:
            reading.cancel()

    def _tell(self, trouble: str | None) -> None:
        if trouble is None or self.trouble is None:  # its first words stand
            self.trouble = trouble
        metrics.DRIVER_ANSWERS.set(self.trouble is None)
        self.looked()

    async def _look(self) -> None:
        try:
            self._found = await self._read()
        except RestartError:
            raise
        except Exception as error:  # what a host says may surprise; claims are given back all the same
            self._failed += 1
            if str(error) != self._said:
                self._said = str(error)
                surprise = None if isinstance(error, DriverError) else error
                logger.error(
                    "The machine cannot be read now, and its last known state stays in force: %s",
                    error,
                    exc_info=surprise,
                )
            often = f"the GPUs could not be read {READINGS} times in a row: {error}"
            self._tell(often if self._failed >= READINGS else self.trouble)
            await self._settle()
            return
        self._said = ""
        self._failed = 0
        await self._take(self._found, None)

    async def _settle(self) -> None:
        """Number the GPUs of the last reading again, if a GPU's number was not final.

        Numbers stand for the GPUs' places in the server (slots). They may be known only after the node's published
        slices were read.
        """
        if self._found is not None and not self._is_settled:
            await self._take(self._found, self.trouble)

    async def _take(self, reading: Machine, trouble: str | None) -> None:
        was_settled = self._is_settled
        machine = reading if self._slots is None else await self._slots.number(reading)
        before, self.machine = self.machine, machine
        self._tell(trouble)  # before anything is published: a fault that is known is published with its GPU
        if machine == before and self._is_settled == was_settled:
            return
        metrics.GPUS.set(len(machine.gpus))
        if before is None or not was_settled:
            logger.info("machine %s with %d GPUs", machine.name or "unnamed", len(machine.gpus))
        else:
            was, now = ({gpu.uuid for gpu in m.gpus} for m in (before, machine))
            logger.warning("The machine changed. GPUs lost: %s. GPUs found: %s.", sorted(was - now), sorted(now - was))
        self.changed()
