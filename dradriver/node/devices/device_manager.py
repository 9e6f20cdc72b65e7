"""Makes devices and undoes them, in the one thread that changes hardware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import GPU_IS_LOST, IN_USE, NOT_FOUND, Control
from dradriver.node.devices.device_kinds import AllocatedDevice, AnyKind, MadeKind
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.errors import HardwareError, InUseError, NotYetError
from dradriver.node.threads import Thread
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 30.0  # making a MIG instance takes a second
IN_USE_S: Final = 3.0  # a process that was killed lets go of its GPU a moment later
_AGAIN_S: Final = 0.2


class Device(NamedTuple):
    """A device that a claim has: its kind, and what the kind found of it (``device_kinds.Found``)."""

    kind: AnyKind
    gpu: Gpu
    asked: Any
    told: Mapping[str, Any]


class DeviceManager:
    """All kinds of devices of this node."""

    def __init__(
        self,
        kinds: Sequence[AnyKind],
        control: Control | None = None,
        *,
        thread: Thread | None = None,
        in_use_s: float = IN_USE_S,
    ) -> None:
        """Make nothing yet.

        Args:
            kinds: A device's kind is the first that finds it: kinds of parts before whole GPUs.
            control: What changes hardware; None where nothing can be made.
            thread: Where hardware is changed; one of its own by default.
            in_use_s: How long to wait for a device that is in use while it is undone.
        """
        self._kinds = tuple(kinds)
        self._made = {kind.name: kind for kind in kinds if isinstance(kind, MadeKind)}
        self._control = control
        self._thread = thread or Thread("hardware")
        self._in_use_s = in_use_s

    def find(self, machine: Machine, wish: AllocatedDevice) -> Device | None:
        """Return a device with its kind, which the device manager finds on this machine; None if it is not there now.

        Raises:
            DriverError: What the claim says of it cannot be understood, or not now.
        """
        for kind in self._kinds:
            if (found := kind.find(machine, wish)) is not None:
                return Device(kind, *found)
        return None

    def edits(self, gpu: Gpu, made: Made) -> Edits:
        """Return the container edits of a device that the manager made.

        Raises:
            DriverError: It cannot be known now.
        """
        return self._made[made.kind].edits(gpu, made)

    def told(self, made: Made) -> dict[str, Any]:
        """Return the attributes of a device that the manager made, in addition to its GPU's."""
        return self._made[made.kind].told(made)

    async def settle(self, intents: Sequence[Made], ledger: Sequence[Made]) -> list[Made]:
        """Let the device manager choose how one claim's devices are made; return the settled intents, in order.

        Args:
            intents: What is to be made, as it was asked for.
            ledger: All that was made, or may have been.

        Raises:
            DriverError: It cannot be made, or not now.
        """
        settled = {intent.key: intent for intent in intents}
        for kind_name, uuid in dict.fromkeys((intent.kind, intent.uuid) for intent in intents):
            group = [intent for intent in intents if (intent.kind, intent.uuid) == (kind_name, uuid)]
            kind, control = self._of(group[0])
            beside = [entry for entry in ledger if entry.uuid == uuid and entry.key not in settled]
            wanted = await self._answer(lambda: kind.settle(control, group, beside), group[0].device)  # noqa: B023
            for intent, decided in zip(group, wanted, strict=True):
                settled[intent.key] = msgspec.structs.replace(intent, wanted=decided, driver=control.driver())
        return list(settled.values())

    async def make(self, intent: Made) -> AsyncIterator[Made]:
        """Let the device manager make a device, and yield its entry to be noted after each step; the last has all.

        Raises:
            DriverError: The hardware refused or did not answer; ``undo`` of the last entry is wanted.
        """
        kind, control = self._of(intent)
        steps = kind.make(control, intent)
        while (noted := await self._answer(lambda: next(steps, None), intent.device)) is not None:
            yield noted

    def driver(self) -> str:
        """Return the identifier of the driver's load that the device manager works with; empty if none is loaded."""
        return self._control.driver() if self._control is not None else ""

    async def undo(self, made: Made, ledger: Sequence[Made]) -> None:
        """Undo a device that the manager made.

        A device that does not exist any more is no error. The call waits a short time for a device in use.

        Args:
            made: What was made, or may have been.
            ledger: All that was made, or may have been.

        Raises:
            InUseError: A process is on it.
            NotYetError: The hardware refused, which is its cause, or did not answer.
        """
        device_kind, control = self._of(made)
        # Other devices on the same GPU, which the kind must leave alone.
        others_on_gpu = [entry for entry in ledger if entry.uuid == made.uuid and entry.key != made.key]
        loop = asyncio.get_running_loop()
        until = loop.time() + self._in_use_s
        while True:
            try:
                return await self._answer(lambda: device_kind.undo(control, made, others_on_gpu), made.device)
            except HardwareError as error:
                if _is_gone(error):
                    logger.warning("device %s is gone with its GPU: %s", made.device, error)
                    return None
                if error.code != IN_USE:
                    raise NotYetError(f"device {made.device} cannot be undone: {error}") from error
                if loop.time() >= until:
                    raise InUseError(f"device {made.device} cannot be undone: {error}") from error
            await asyncio.sleep(_AGAIN_S)

    def check(self, made: Made) -> None:
        """Raise unless a device that the manager made can be used now.

        Raises:
            NotYetError: Why not.
        """
        kind, control = self._of(made)
        try:
            kind.check(control, made)
        except OSError as error:
            raise NotYetError(f"device {made.device}: {error}") from error

    async def there(self, made: Made) -> bool:
        """Return whether a device that the manager made still exists.

        Raises:
            NotYetError: The hardware does not say.
        """
        kind, control = self._of(made)
        return await self._answer(lambda: kind.there(control, made), made.device)

    async def rest(self, gpu: str) -> None:
        """Let the device manager clear what gone devices may have left on a GPU without an entry in the ledger.

        Raises:
            NotYetError: The hardware refused or did not answer.
        """
        control = self._control
        for kind in self._made.values() if control is not None else ():
            await self._answer(lambda kind=kind: kind.rest(control, gpu), gpu)  # type: ignore[misc]

    def afterwards(self, work: Callable[[], None]) -> None:
        """Run work in the device manager's thread once all calls to hardware have ended, also abandoned ones."""
        self._thread.put(work)

    def _of(self, made: Made) -> tuple[MadeKind[Any, Any, Any], Control]:
        kind = self._made.get(made.kind)
        if kind is None or self._control is None:
            raise NotYetError(f"device {made.device}: this agent knows no devices of kind {made.kind[:64]!r}")
        return kind, self._control

    async def _answer(self, work: Callable[[], T], device: str) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._thread.run(work)
        except TimeoutError as error:
            raise NotYetError(f"device {device}: the driver has not answered for {PATIENCE_S:.0f} s") from error
        except OSError as error:
            raise NotYetError(f"device {device}: {error}") from error


def _is_gone(error: HardwareError) -> bool:
    """Return whether there is no such GPU any more; whatever was made on it went with it.

    The look-up of a uuid asks each GPU by itself, and says that one is lost only where none that answers is the one.
    """
    return error.code in (NOT_FOUND, GPU_IS_LOST)
