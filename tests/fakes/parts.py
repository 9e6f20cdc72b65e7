"""A kind of device that has to be made: halves of GPUs in MIG mode, as simple as such a kind can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dradriver.api import slices
from dradriver.node.devices.control import NOT_FOUND, Control
from dradriver.node.devices.made import Made
from dradriver.node.edits import Edits
from dradriver.node.errors import HardwareError
from dradriver.topology.machine import Gpu, Machine

PROFILE = "3g.40gb"
STARTS = (0, 4)


class Halves:
    """Two devices of each GPU, ``<gpu>-half-0`` and ``-half-4``, beside the whole one."""

    name = "half"
    makes = True

    def publish(self, machine: Machine) -> Mapping[str, Gpu]:
        return {half(gpu.uuid, start): gpu for gpu in machine.gpus for start in STARTS}

    def make(self, control: Control, made: Made) -> dict[str, Any]:
        instance = control.create_gpu_instance(made.uuid, PROFILE, _start(made))
        return {"instance": instance, "mig": control.create_compute_instance(made.uuid, instance)}

    def undo(self, control: Control, made: Made) -> None:
        for number, placed in control.gpu_instances(made.uuid).items():
            if placed == (PROFILE, _start(made)):
                try:
                    control.destroy_compute_instance(made.uuid, number)
                except HardwareError as error:
                    if error.code != NOT_FOUND:
                        raise
                control.destroy_gpu_instance(made.uuid, number)

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:
        assert made is not None
        assert made.done is not None
        return Edits(env=(f"MIG={made.done['mig']}",))


def half(uuid: str, start: int) -> str:
    """The published name of a half of a GPU."""
    return f"{slices.device_name(uuid)}-half-{start}"


def _start(made: Made) -> int:
    return int(made.device.rpartition("-")[2])
