"""Whole GPUs: nothing has to be made for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dradriver.api import slices
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control import Control
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.kinds import AllocatedDevice, Found
from dradriver.topology.machine import Gpu, Machine


class Whole:
    """Every GPU that is not in MIG mode, as one device."""

    name = "gpu"
    makes = False
    part = False

    def __init__(self, edits: Callable[[Gpu], Edits]) -> None:
        """Keep what says how a container is given a GPU, which is for the way it was discovered to know."""
        self._edits = edits

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found | None:
        """Return the GPU of this name unless it is in MIG mode. Kinds of parts were asked before."""
        gpu = named(machine, wish.device)
        return None if gpu is None or gpu.mig is not None else Found(gpu, {})

    def settle(self, control: Control, intents: Sequence[Made], beside: Sequence[Made]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Decide nothing."""
        return [intent.wanted for intent in intents]

    def make(self, control: Control, made: Made) -> dict[str, Any]:  # noqa: ARG002  # the kinds' signature
        """Make nothing."""
        return {}

    def undo(self, control: Control, made: Made, beside: Sequence[Made]) -> None:
        """Undo nothing."""

    def there(self, control: Control, made: Made) -> bool:  # noqa: ARG002
        """Return that it is."""
        return True

    def rest(self, control: Control, gpu: str) -> None:
        """Leave nothing."""

    def told(self, wanted: Mapping[str, Any], done: Mapping[str, Any] | None) -> dict[str, Any]:  # noqa: ARG002
        """Say nothing more."""
        return {}

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:  # noqa: ARG002
        """Return what the GPU brings to a container."""
        return self._edits(gpu)


def named(machine: Machine, device: str) -> Gpu | None:
    """Return the GPU whose own device has this name."""
    return next((gpu for gpu in machine.gpus if slices.device_name(gpu.uuid) == device), None)
