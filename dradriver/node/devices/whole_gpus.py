"""Whole GPUs: nothing has to be made for them."""

from __future__ import annotations

from collections.abc import Callable

from dradriver.api.slices import resource_slices
from dradriver.node.container_edits import Edits
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.topology.machine import Gpu, Machine


class Whole:
    """The kind of whole GPUs: every GPU that is not in MIG mode is one device."""

    name = "gpu"
    part = False

    def __init__(self, edits: Callable[[Gpu], Edits]) -> None:
        """Store the arguments; look for no GPU yet.

        Args:
            edits: Returns the container edits of a GPU; it comes from the discovery that found the GPU.
        """
        self.edits = edits

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[None] | None:
        """Return the allocated GPU; None if it is in MIG mode or not on this machine.

        The agent asks this kind last, after the kinds of fractions have not found the device.
        """
        gpu = named(machine, wish.device)
        return None if gpu is None or gpu.mig is not None else Found(gpu, None)


def named(machine: Machine, device: str) -> Gpu | None:
    """Return the whole GPU with the device name ``device``; None if there is none.

    The GPU may be in MIG mode; then no claim can get it as a whole.
    """
    return next((gpu for gpu in machine.gpus if resource_slices.device_name(gpu.uuid) == device), None)
