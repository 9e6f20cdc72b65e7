"""Reading the machine again and again, because GPUs get lost and come back."""

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
    """The machine as it was last read.

    Attributes:
        machine: The last that could be read; None before the first.
        trouble: What keeps it from being read, once that lasts; None while it can be.
        changed: Told when ``machine`` has changed.
        looked: Told after every reading, also one that failed or goes on for too long.
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
        """Read nothing yet.

        Args:
            discovery: Reads the machine.
            interval_s: Seconds between two readings.
            earlier: Gives the machine that an earlier agent published.
            is_stale: Says whether the driver was loaded again since the last reading.
            withdraw: Called when a reading becomes stale; removes CDI specifications that were made by it.
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
        """Return the machine as it was last read, or as it is published if the driver has hung from the start."""
        if self.machine is None and self.trouble is not None:
            return self._earlier()
        return self.machine

    def publishable(self) -> Machine | None:
        """Return the machine as ``last_known`` does; None while it is not known which slots its GPUs are in."""
        return self.last_known() if self._is_settled or self.machine is None else None

    @property
    def _is_settled(self) -> bool:
        return self._slots is None or self._slots.is_settled

    async def run(self) -> None:
        """Watch the machine for ever: read it now, at every interval and after every ``poke``.

        Raises:
            RestartError: Only another process can read it again.
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
        """Return the machine as the watch last read it; None from a new load of the driver until the next reading."""
        if self._is_stale():
            self.poke()
            return None
        return self.machine

    async def _pause(self) -> None:
        """Wait until the machine is to be read again: after a while, after a ``poke``, or since its driver is another.

        A driver takes longer to be unloaded and loaded again than the time between two looks.
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
                    logger.error("what the driver of before gave to containers cannot be taken back: %s", error)
            self._was_stale = is_stale
            if is_stale and not self._failed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, left_s)):
                    await self._again.wait()

    def poke(self) -> None:
        """Let the machine watch read the machine again now."""
        self._again.set()

    async def _read(self) -> Machine:
        """Return the machine, newly read; a driver that hangs cannot be interrupted, so it is waited for, aloud."""
        if not self._discovery.slow:
            return self._discovery.read()
        reading = beside(self._discovery.read)
        self._reading = True
        waited_s = 0.0
        try:
            while not (await asyncio.wait({reading}, timeout=PATIENCE_S))[0]:
                waited_s += PATIENCE_S
                logger.warning("the driver has not answered for %.0f s; the last state of the machine stands", waited_s)
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
                logger.error("the machine cannot be read now, its last state stands: %s", error, exc_info=surprise)
            often = f"the GPUs could not be read {READINGS} times in a row: {error}"
            self._tell(often if self._failed >= READINGS else self.trouble)
            await self._settle()
            return
        self._said = ""
        self._failed = 0
        await self._take(self._found, None)

    async def _settle(self) -> None:
        """Number the GPUs of the last reading again, if their numbers were not final."""
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
            logger.warning("the machine changed; lost %s, found %s", sorted(was - now), sorted(now - was))
        self.changed()
