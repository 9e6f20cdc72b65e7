"""Makes devices and undoes them, in the one thread that changes hardware."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from dradriver.node.devices.control import Control
from dradriver.node.devices.kinds import Kind
from dradriver.node.devices.made import Made
from dradriver.node.devices.simulated import SimulatedGpu
from dradriver.node.edits import Edits
from dradriver.node.errors import NotYetError
from dradriver.node.threads import Thread
from dradriver.topology.machine import Gpu, Machine

T = TypeVar("T")

PATIENCE_S: Final = 30.0  # making a MIG instance takes a second


class Workshop:
    """All kinds of devices of this node."""

    def __init__(self, kinds: Sequence[Kind], control: Control | None = None, *, thread: Thread | None = None) -> None:
        """Keep what is needed.

        Args:
            kinds: A device's kind is the first that publishes its name.
            control: What changes hardware; None where nothing can be made.
            thread: Where it does; one of its own by default.
        """
        self._kinds = {kind.name: kind for kind in kinds}
        self._control = control
        self._thread = thread or Thread("hardware")

    def find(self, machine: Machine) -> Mapping[str, tuple[Kind, Gpu]]:
        """Return kind and GPU of every device that the machine has, by its published name."""
        found: dict[str, tuple[Kind, Gpu]] = {}
        for kind in self._kinds.values():
            for name, gpu in kind.publish(machine).items():
                found.setdefault(name, (kind, gpu))
        return found

    def edits(self, kind: str, gpu: Gpu, made: Made | None) -> Edits:
        """Return what a device of a kind brings to a container."""
        return self._kinds[kind].edits(gpu, made)

    async def make(self, intent: Made) -> Made:
        """Make the device and return the entry that says so.

        Raises:
            NotYetError: The hardware refused or did not answer; ``undo`` is wanted.
        """
        kind, control = self._of(intent)
        done = await self._answer(lambda: kind.make(control, intent), intent)
        return msgspec.structs.replace(intent, done=done)

    async def undo(self, made: Made) -> None:
        """Make what was made be gone; nothing there is fine.

        Raises:
            NotYetError: The hardware refused or did not answer.
        """
        kind, control = self._of(made)
        await self._answer(lambda: kind.undo(control, made), made)

    def _of(self, made: Made) -> tuple[Kind, Control]:
        kind = self._kinds.get(made.kind)
        if kind is None or self._control is None:
            raise NotYetError(f"device {made.device}: this agent knows no devices of kind {made.kind[:64]!r}")
        return kind, self._control

    async def _answer(self, work: Callable[[], T], made: Made) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._thread.run(work)
        except TimeoutError as error:
            raise NotYetError(f"device {made.device}: the driver has not answered for {PATIENCE_S:.0f} s") from error
        except OSError as error:
            raise NotYetError(f"device {made.device}: {error}") from error


def simulated(kinds: Sequence[Kind], folder: Path) -> Workshop:
    """Return a workshop whose hardware is a file in the folder."""
    return Workshop(kinds, SimulatedGpu(folder / "hardware.json"))
