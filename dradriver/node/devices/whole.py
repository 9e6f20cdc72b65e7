"""Whole GPUs: nothing has to be made for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dradriver.api import slices
from dradriver.node.devices.control import Control
from dradriver.node.devices.made import Made
from dradriver.node.edits import Edits
from dradriver.topology.machine import Gpu, Machine


class Whole:
    """Every GPU that is not in MIG mode, as one device."""

    name = "gpu"
    makes = False

    def __init__(self, edits: Callable[[Gpu], Edits]) -> None:
        """Keep what says how a container is given a GPU, which is for the way it was discovered to know."""
        self._edits = edits

    def publish(self, machine: Machine) -> Mapping[str, Gpu]:
        """Return the GPUs that are not in MIG mode, by name."""
        return {slices.device_name(gpu.uuid): gpu for gpu in machine.gpus if gpu.mig is None}

    def make(self, control: Control, made: Made) -> dict[str, Any]:  # noqa: ARG002  # the kinds' signature
        """Make nothing."""
        return {}

    def undo(self, control: Control, made: Made) -> None:
        """Undo nothing."""

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:  # noqa: ARG002
        """Return what the GPU brings to a container."""
        return self._edits(gpu)
