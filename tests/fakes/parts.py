"""A kind of device that has to be made: halves of GPUs in MIG mode, as simple as such a kind can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dradriver.api.slices import resource_slices
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import Control
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.node.devices.hardware_journal import Made
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.profiles import simulated_mig_profiles

PRODUCT = "NVIDIA H100 80GB HBM3"
PROFILES = {profile.name: profile for profile in simulated_mig_profiles.profiles(PRODUCT)}
PROFILE = PROFILES["3g.40gb"]
STARTS = (0, 4)


class Halves:
    """Two devices of each GPU, ``<gpu>-half-0`` and ``-half-4``, beside the whole one."""

    name = "half"
    part = True

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[Any] | None:
        known = {half(gpu.uuid, start): gpu for gpu in machine.gpus for start in STARTS}
        return Found(known[wish.device], {}) if wish.device in known else None

    def settle(self, control: Control, intents: Sequence[Made], beside: Sequence[Made]) -> list[dict[str, Any]]:
        return [intent.wanted for intent in intents]

    def make(self, control: Control, made: Made) -> Iterator[Made]:
        instance = control.create_gpu_instance(made.uuid, PROFILE, _start(made))
        compute = control.create_compute_instance(made.uuid, instance)
        done = {"instance": instance, "mig": control.compute_instances(made.uuid, instance)[compute]}
        yield msgspec.structs.replace(made, done=done)

    def undo(self, control: Control, made: Made, beside: Sequence[Made]) -> None:
        for number, placed in control.gpu_instances(made.uuid).items():
            if placed == (PROFILE.id, _start(made)):
                for compute in control.compute_instances(made.uuid, number):
                    control.destroy_compute_instance(made.uuid, number, compute)
                control.destroy_gpu_instance(made.uuid, number)

    def check(self, control: Control, made: Made) -> None:
        """They can be used at once."""

    def there(self, control: Control, made: Made) -> bool:
        return True

    def rest(self, control: Control, gpu: str) -> None:
        """Leave nothing."""

    def told(self, made: Made) -> dict[str, Any]:
        assert made.done is not None
        return {"type": "half", "uuid": made.done["mig"]}

    def edits(self, gpu: Gpu, made: Made) -> Edits:
        assert made.done is not None
        return Edits(env=(f"MIG={made.done['mig']}",))


def sliceable(machine: Machine) -> Machine:
    """The machine, whose GPUs can have MIG instances."""
    gpus = tuple(msgspec.structs.replace(gpu, profiles=tuple(PROFILES.values())) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


def half(uuid: str, start: int) -> str:
    """The published name of a half of a GPU."""
    return f"{resource_slices.device_name(uuid)}-half-{start}"


def _start(made: Made) -> int:
    return int(made.device.rpartition("-")[2])
