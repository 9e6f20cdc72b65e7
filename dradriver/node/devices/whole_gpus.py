"""Whole GPUs: nothing has to be made for them."""

from __future__ import annotations

from collections.abc import Callable

from dradriver.api.slices import resource_slices
from dradriver.node.container_edits import Edits
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.topology.machine import Gpu, Machine


class Whole:
    """Every GPU that is not in MIG mode, as one device."""

    name = "gpu"
    part = False

    def __init__(self, edits: Callable[[Gpu], Edits]) -> None:
        """Look for no GPU yet.

        Args:
            edits: Says how a container is given a GPU; the discovery that found it knows.
        """
        self.edits = edits

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[None] | None:
        """Return the whole GPU of this name unless it is in MIG mode. Kinds of parts were asked before."""
        gpu = named(machine, wish.device)
        return None if gpu is None or gpu.mig is not None else Found(gpu, None)


def named(machine: Machine, device: str) -> Gpu | None:
    """Return the GPU that has this name as a whole device; it may be in MIG mode."""
    return next((gpu for gpu in machine.gpus if resource_slices.device_name(gpu.uuid) == device), None)
