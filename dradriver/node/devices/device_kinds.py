"""What a kind of device offers the rest of the agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from dradriver.api.claims.opaque_config import ClaimConfig
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import Control
from dradriver.node.devices.hardware_journal import Change, Made
from dradriver.topology.machine import Gpu, Machine

A = TypeVar("A")  # what is asked for,
W = TypeVar("W")  # wanted
D = TypeVar("D")  # and done


class AllocatedDevice(NamedTuple):
    """One allocated device, as a claim has it.

    Attributes:
        device: Its published name.
        request: The request that it is for, without its subrequest.
        consumed: How much of each of its capacities the claim has; empty where the device is not shared.
        config: The request's configuration.
    """

    device: str
    request: str = ""
    consumed: Mapping[str, str] = {}
    config: ClaimConfig | None = None


class Found(NamedTuple, Generic[A]):
    """What a device is on a machine.

    Attributes:
        gpu: The GPU that it is, or is a part of.
        asked: What the claim says of what has to be made; None where nothing has.
        told: What is said of a part beside its GPU, as far as it is known before it is made.
    """

    gpu: Gpu
    asked: A
    told: Mapping[str, Any] = {}


class Kind(Protocol):
    """One kind of device.

    Attributes:
        name: Stands in the ledgers: an agent that starts later finds the kind by it.
        part: Whether a device leaves room on its GPU for others of its kind.
    """

    name: str
    part: bool

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[Any] | None:
        """Return the device of this kind on this machine; None if it is not of this kind, or not there.

        Raises:
            DriverError: What the claim says of it cannot be understood, or not now.
        """


class ReadyKind(Kind, Protocol):
    """A kind of which nothing has to be made."""

    def edits(self, gpu: Gpu) -> Edits:
        """Return the container edits of a device of a kind that needs no hardware change.

        Raises:
            DriverError: It cannot be known now.
        """


@runtime_checkable
class MadeKind(Kind, Protocol[A, W, D]):
    """A kind whose devices have to be made: from what is asked follows what is wanted, and then what is done.

    Both of these stand in the ledgers, in records of the kind's own (``hardware_journal.typed``).
    """

    def settle(self, control: Control, intents: Sequence[Change[A, D]], beside: Sequence[Made]) -> list[W]:
        """Return the intents for devices of this kind with all choices made; nothing is changed.

        It is called before the intents are written, so that ``undo`` knows what to look for whatever happens then.

        Args:
            control: The hardware.
            intents: What is to be made for one claim on one GPU, as it was asked for.
            beside: The ledger's other entries of the same GPU, of any kind.

        Raises:
            DriverError: It cannot be made, or not now.
        """

    def make(self, control: Control, made: Change[W, D]) -> Iterator[Change[W, D]]:
        """Make a device of this kind in steps, and yield after each step the entry to be noted before the next.

        The last says, as ``done``, what ``edits`` and ``undo`` need to know of the device; those before it, as ``was``,
        what ``undo`` does. What half is there at a failure is undone by ``undo``.

        Raises:
            HardwareError: The hardware refused.
        """

    def undo(self, control: Control, made: Change[W, D], beside: Sequence[Made]) -> None:
        """Undo a device of this kind, wholly or partly made; none is fine. It is called until it succeeds.

        Args:
            control: The hardware.
            made: What was made.
            beside: The ledger's other entries of the same GPU, of any kind.

        Raises:
            HardwareError: The hardware refused; something may be gone already.
        """

    def check(self, control: Control, made: Change[W, D]) -> None:
        """Raise unless a device of this kind that was made can be used now. It asks no driver.

        Raises:
            HardwareError: Why not.
        """

    def there(self, control: Control, made: Change[W, D]) -> bool:
        """Return whether a device of this kind that was made still exists.

        What can be put right beside those who use it is.

        Raises:
            HardwareError: The hardware does not say.
        """

    def rest(self, control: Control, gpu: str) -> None:
        """Clear what devices of this kind may have left on a free GPU; nothing left is fine.

        Args:
            control: The hardware.
            gpu: Its uuid; the ledger has no entry of it.

        Raises:
            HardwareError: The hardware refused.
        """

    def told(self, made: Change[W, D]) -> dict[str, Any]:
        """Return the attributes of a device of this kind that was made, in the words of slices."""

    def edits(self, gpu: Gpu, made: Change[W, D]) -> Edits:
        """Return the container edits of a device of this kind that was made.

        Raises:
            DriverError: It cannot be known now.
        """


AnyKind = ReadyKind | MadeKind[Any, Any, Any]
