"""Which of a prepared claim's MIG instances a reading of the machine lacks, and what no reading tells of.

One that somebody makes anew at its place may have its uuid, and opens by its own number: the old one can be another's.
"""

from __future__ import annotations

from collections.abc import Iterator

from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.devices.records import MigInstance, MpsServed
from dradriver.topology.machine import Machine, MigDevice


def doubtful(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether the hardware must be asked: an instance is gone, by number and uuid, or a share is by MPS."""
    return any(isinstance(device.done, MpsServed) for device in prepared.devices) or any(
        (device.done.instance, device.done.mig) not in {(one.gpu_instance, one.uuid) for one in there}
        for device, there in _given(prepared, machine)
    )


def awaited(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether an instance that the agent did not make is gone from its place: it is not made again."""
    return any(
        device.wanted.found and device.wanted.placed not in {(one.profile_id, one.start) for one in there}
        for device, there in _given(prepared, machine)
    )


def _given(prepared: PreparedClaim, machine: Machine | None) -> Iterator[tuple[PreparedDevice, tuple[MigDevice, ...]]]:
    """Yield each device that is an instance, with all instances on its GPU; none of a GPU that the machine lacks."""
    on = {gpu.uuid: gpu.mig or () for gpu in machine.gpus} if machine is not None else {}
    for device in prepared.devices:
        if isinstance(device.done, MigInstance) and device.uuid in on:
            yield device, on[device.uuid]
