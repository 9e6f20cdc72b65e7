"""What a kind of device offers the rest of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dradriver.node.devices.control import Control
from dradriver.node.devices.made import Made
from dradriver.node.edits import Edits
from dradriver.topology.machine import Gpu, Machine


class Kind(Protocol):
    """One kind of device.

    Attributes:
        name: Stands in the ledger: an agent that starts later finds the kind by it.
        makes: Whether a device has to be made before it can be used.
    """

    name: str
    makes: bool

    def publish(self, machine: Machine) -> Mapping[str, Gpu]:
        """Return the GPU of each device of this kind that the machine has, by the name it is published under."""

    def make(self, control: Control, made: Made) -> dict[str, Any]:
        """Make the device and return what edits and ``undo`` need to know of it: JSON.

        What half is there at a failure is undone by ``undo``.

        Raises:
            HardwareError: The hardware refused.
        """

    def undo(self, control: Control, made: Made) -> None:
        """Make what was made, wholly or in part, be gone. Nothing there is fine: it is called until it succeeds.

        Raises:
            HardwareError: The hardware refused; something may be gone already.
        """

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:
        """Return what the device brings to a container; ``made`` is None for a kind that makes nothing."""
