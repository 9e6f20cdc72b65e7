"""What a kind of device offers the rest of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dradriver.api.config import ClaimConfig
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control import Control
from dradriver.node.devices.hardware_journal import Made
from dradriver.topology.machine import Gpu, Machine


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


class Found(NamedTuple):
    """The GPU that a device is, or is a part of, and what the kind has to know to make it: JSON."""

    gpu: Gpu
    wanted: dict[str, Any]


class Kind(Protocol):
    """One kind of device.

    Attributes:
        name: Stands in the ledger: an agent that starts later finds the kind by it.
        makes: Whether a device has to be made before it can be used.
        part: Whether a device leaves room on its GPU for others of its kind.
    """

    name: str
    makes: bool
    part: bool

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found | None:
        """Return what the device is on this machine; None where it is not of this kind, or not there.

        Raises:
            DriverError: What the claim says of it cannot be understood, or not now.
        """

    def settle(self, control: Control, intents: Sequence[Made], beside: Sequence[Made]) -> list[dict[str, Any]]:
        """Return each intent's ``wanted`` with all that is left open decided; nothing is changed.

        It is called before the intents are written, so that ``undo`` knows what to look for whatever happens then.

        Args:
            control: The hardware.
            intents: What is to be made for one claim on one GPU.
            beside: The ledger's other entries of the same GPU.

        Raises:
            DriverError: It cannot be made, or not now.
        """

    def make(self, control: Control, made: Made) -> dict[str, Any]:
        """Make the device and return what ``edits`` needs to know of it: JSON.

        What half is there at a failure is undone by ``undo``.

        Raises:
            HardwareError: The hardware refused.
        """

    def undo(self, control: Control, made: Made, beside: Sequence[Made]) -> None:
        """Make what was made, wholly or in part, be gone. Nothing there is fine: it is called until it succeeds.

        Args:
            control: The hardware.
            made: What was made.
            beside: The ledger's other entries of the same GPU.

        Raises:
            HardwareError: The hardware refused; something may be gone already.
        """

    def there(self, control: Control, made: Made) -> bool:
        """Return whether what was made is there still: others may have ended it, or a reset of the GPU.

        Raises:
            HardwareError: The hardware does not say.
        """

    def rest(self, control: Control, gpu: str) -> None:
        """End what devices that are gone may have left of a GPU that nobody has; nothing left is fine.

        Args:
            control: The hardware.
            gpu: Its uuid; the ledger has no entry of it.

        Raises:
            HardwareError: The hardware refused.
        """

    def told(self, wanted: Mapping[str, Any], done: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what is said of a part beside its GPU, in the words of slices' attributes; nothing of a whole one.

        Args:
            wanted: As ``find`` or ``settle`` gave it.
            done: What ``make`` returned; None for a kind that makes nothing, or before.
        """

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:
        """Return what the device brings to a container; ``made`` is None for a kind that makes nothing.

        Raises:
            DriverError: It cannot be known now.
        """
