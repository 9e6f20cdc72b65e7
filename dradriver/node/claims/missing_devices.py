"""Which GPUs and MIG instances of a prepared claim are missing on the machine.

An instance that somebody makes anew at its place may have its uuid, and opens by its own number: the old one can be
another's. So it is with the device nodes of a GPU that is away: another GPU may have them while the driver stays
loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.devices.part_records import MigInstance, MpsServed
from dradriver.topology.machine import Machine, MigDevice

_NODE: Final = re.compile(r"/dev/nvidia([0-9]{1,5})")


def doubtful(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether the hardware must be asked if a prepared device is missing."""
    is_served = any(isinstance(device.done, MpsServed) for device in prepared.devices)
    return is_served or lacks_instance(prepared, machine)


def lacks_instance(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a MIG instance of a prepared claim is missing on its GPU, by number and uuid."""
    return any(
        (device.done.instance, device.done.mig) not in {(one.gpu_instance, one.uuid) for one in there}
        for device, there in _given(prepared, machine)
    )


def awaited(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a MIG instance is missing that the agent did not make: the agent does not make it again."""
    return any(
        device.wanted.found and device.wanted.placed not in {(one.profile_id, one.start) for one in there}
        for device, there in _given(prepared, machine)
    )


def is_away(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a GPU of a prepared claim is missing on the machine; False if the machine is not known."""
    if machine is None:
        return False
    present = {gpu.uuid for gpu in machine.gpus}
    return any(device.uuid not in present for device in prepared.devices)


def has_moved(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a GPU of a prepared claim has other device nodes now than those that it opens."""
    minors = {} if machine is None else {gpu.uuid: gpu.minor for gpu in machine.gpus}
    return any(minors.get(device.uuid, minor) != minor for device, minor in _opened(prepared))


def has_instances(prepared: PreparedClaim) -> bool:
    """Return whether MIG instances, which may be missing, are among a prepared claim's devices."""
    return any(isinstance(device.done, MigInstance) for device in prepared.devices)


def _opened(prepared: PreparedClaim) -> Iterator[tuple[PreparedDevice, int]]:
    """Yield each device that opens a GPU's node, with N of ``/dev/nvidiaN``."""
    for device in prepared.devices:
        for node in device.edits.nodes:
            if (match := _NODE.fullmatch(node.path)) is not None:
                yield device, int(match[1])


def _given(prepared: PreparedClaim, machine: Machine | None) -> Iterator[tuple[PreparedDevice, tuple[MigDevice, ...]]]:
    """Yield each device that is an instance, with all instances on its GPU; none of a GPU that the machine lacks."""
    on = {gpu.uuid: gpu.mig or () for gpu in machine.gpus} if machine is not None else {}
    for device in prepared.devices:
        if isinstance(device.done, MigInstance) and device.uuid in on:
            yield device, on[device.uuid]
