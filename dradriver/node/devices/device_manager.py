"""Makes devices and undoes them, in the one thread that changes hardware.

A device is a whole GPU, a MIG instance or a share; each of these is one kind of device. The hardware journal is the
record on disk of the devices that were made. The driver is the GPUs' kernel driver.
"""

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
    """A claim's device as found on the machine: kind, GPU, request and attributes.

    ``device_kinds.Found`` describes all fields except ``kind``.
    """

    kind: AnyKind
    gpu: Gpu
    asked: Any
    told: Mapping[str, Any]


class DeviceManager:
    """Finds, makes and undoes devices of all kinds of this node."""

    def __init__(
        self,
        kinds: Sequence[AnyKind],
        control: Control | None = None,
        *,
        thread: Thread | None = None,
        in_use_s: float = IN_USE_S,
    ) -> None:
        """Store the arguments; make nothing yet.

        Args:
            kinds: The kinds of devices. The first kind that finds a device handles it, so kinds of fractions come
                before whole GPUs.
            control: Changes hardware; None if nothing can be made.
            thread: The thread in which hardware is changed; by default a new one.
            in_use_s: Seconds to wait for a device that is in use while it is undone.
        """
        self._kinds = tuple(kinds)
        self._made = {kind.name: kind for kind in kinds if isinstance(kind, MadeKind)}
        self._control = control
        self._thread = thread or Thread("hardware")
        self._in_use_s = in_use_s

    def find(self, machine: Machine, wish: AllocatedDevice) -> Device | None:
        """Return an allocated device of this machine with its kind; None if the device is not on the machine now.

        ``wish`` is the device as the claim's allocation describes it.

        Raises:
            DriverError: The claim's description of the device is wrong, or cannot be understood now.
        """
        for kind in self._kinds:
            if (found := kind.find(machine, wish)) is not None:
                return Device(kind, *found)
        return None

    def edits(self, gpu: Gpu, made: Made) -> Edits:
        """Return the container edits of a device that the manager made.

        Raises:
            DriverError: The edits cannot be known now.
        """
        return self._made[made.kind].edits(gpu, made)

    def told(self, made: Made) -> dict[str, Any]:
        """Return the attributes of a device that the manager made, in addition to its GPU's."""
        return self._made[made.kind].told(made)

    async def settle(self, intents: Sequence[Made], ledger: Sequence[Made]) -> list[Made]:
        """Choose how one claim's devices are made, for example the places of MIG instances.

        The result has the same intents in the same order, each with its choice (``wanted``). The hardware is not
        changed.

        Args:
            intents: The devices to make, as the claim requests them.
            ledger: All entries of the hardware journal: devices that were made, or may have been made.

        Raises:
            DriverError: A device cannot be made now, or never.
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
        """Make a device in steps; yield after each step the journal entry to store.

        The last entry describes the complete device, earlier entries what exists so far. ``intent`` is the device to
        make, with all choices made (``settle``).

        Raises:
            DriverError: The hardware refused or did not answer. The caller must call ``undo`` with the last entry.
        """
        kind, control = self._of(intent)
        steps = kind.make(control, intent)
        while (noted := await self._answer(lambda: next(steps, None), intent.device)) is not None:
            yield noted

    def driver(self) -> str:
        """Return an id that is new each time that the GPUs' kernel module is loaded.

        The id is empty if the module is not loaded.
        """
        return self._control.driver() if self._control is not None else ""

    async def undo(self, made: Made, ledger: Sequence[Made]) -> None:
        """Undo a device that the manager made.

        A device that does not exist any more is no error. The call waits a short time for a device in use.

        Args:
            made: The entry of a device that was made, or may have been made.
            ledger: All entries of the hardware journal: devices that were made, or may have been made.

        Raises:
            InUseError: A process is on the device.
            NotYetError: The hardware refused (its error is the cause), or did not answer.
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
                    logger.warning("Device %s is gone together with its GPU: %s", made.device, error)
                    return None
                if error.code != IN_USE:
                    raise NotYetError(f"device {made.device} cannot be undone: {error}") from error
                if loop.time() >= until:
                    raise InUseError(f"device {made.device} cannot be undone: {error}") from error
            await asyncio.sleep(_AGAIN_S)

    def check(self, made: Made) -> None:
        """Check that a device that the manager made can be used now; raise if not.

        ``made`` is the device's entry in the hardware journal.

        Raises:
            NotYetError: The device cannot be used; the message says why.
        """
        kind, control = self._of(made)
        try:
            kind.check(control, made)
        except OSError as error:
            raise NotYetError(f"device {made.device}: {error}") from error

    async def there(self, made: Made) -> bool:
        """Return whether a device that the manager made still exists.

        Raises:
            NotYetError: The hardware does not answer the question.
        """
        kind, control = self._of(made)
        return await self._answer(lambda: kind.there(control, made), made.device)

    async def rest(self, gpu: str) -> None:
        """Restore the normal state of a GPU without MIG instances and shares, for example end MIG mode.

        The GPU must have no entry in the hardware journal.

        Raises:
            NotYetError: The hardware refused or did not answer.
        """
        control = self._control
        for kind in self._made.values() if control is not None else ():
            await self._answer(lambda kind=kind: kind.rest(control, gpu), gpu)  # type: ignore[misc]

    def afterwards(self, work: Callable[[], None]) -> None:
        """Run work in the thread that changes hardware, after all earlier calls have ended.

        So the lock of the hardware can be released only when no call changes hardware any more. Earlier calls include
        those for which no caller waits any more.
        """
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
            raise NotYetError(f"device {device}: the GPU driver has not answered for {PATIENCE_S:.0f} s") from error
        except OSError as error:
            raise NotYetError(f"device {device}: {error}") from error


def _is_gone(error: HardwareError) -> bool:
    """Return whether an error means that the GPU does not exist any more, with everything that was made on it.

    The agent finds a GPU by asking each GPU for its uuid. So the error is "GPU is lost" only if no GPU that answers has
    the uuid.
    """
    return error.code in (NOT_FOUND, GPU_IS_LOST)
