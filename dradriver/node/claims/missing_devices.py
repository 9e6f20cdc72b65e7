"""Which GPUs and MIG instances of a prepared claim are missing on the machine; ``ledgers`` and ``prepare`` call it.

Another program can remove a MIG instance and make a new one at the same place. The new instance may have the same uuid
but another number. Another instance may then have the device nodes of the old number. The same can happen to a missing
GPU: while the driver stays loaded, another GPU may get its device nodes.

A reading is the machine as the agent found it the last time that it looked. The functions get it as the argument
``machine``, which is None before the first reading.
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
    """Return whether the last reading cannot tell if a prepared claim's devices exist.

    If the result is True, the agent must ask the hardware. It is True for shares by MPS, which no reading contains. It
    is also True for MIG instances that the last reading does not have: the reading may be older than the instance.
    """
    is_served = any(isinstance(device.done, MpsServed) for device in prepared.devices)
    return is_served or lacks_instance(prepared, machine)


def lacks_instance(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a MIG instance of a prepared claim is missing on the machine.

    It is missing if its GPU has no instance with its number and uuid.
    """
    return any(
        (device.done.instance, device.done.mig) not in {(one.gpu_instance, one.uuid) for one in there}
        for device, there in _given(prepared, machine)
    )


def awaited(prepared: PreparedClaim, machine: Machine | None) -> bool:
    """Return whether a prepared claim lacks a MIG instance that another program had made.

    The claim lacks it if the GPU has no instance of this profile at this place. The agent does not make the instance
    again, but waits until the other program does.
    """
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
    """Return whether a GPU has another ``/dev/nvidiaN`` now than the containers of a prepared claim get.

    A GPU that is missing on the machine does not count.
    """
    minors = {} if machine is None else {gpu.uuid: gpu.minor for gpu in machine.gpus}
    return any(minors.get(device.uuid, minor) != minor for device, minor in _opened(prepared))


def has_instances(prepared: PreparedClaim) -> bool:
    """Return whether a prepared claim has MIG instances."""
    return any(isinstance(device.done, MigInstance) for device in prepared.devices)


def _opened(prepared: PreparedClaim) -> Iterator[tuple[PreparedDevice, int]]:
    """Yield each prepared device for which containers get ``/dev/nvidiaN``, with the number N."""
    for device in prepared.devices:
        for node in device.edits.nodes:
            if (match := _NODE.fullmatch(node.path)) is not None:
                yield device, int(match[1])


def _given(prepared: PreparedClaim, machine: Machine | None) -> Iterator[tuple[PreparedDevice, tuple[MigDevice, ...]]]:
    """Yield each MIG instance of a prepared claim, together with all instances that its GPU has now.

    Instances of GPUs that the machine does not have are left out.
    """
    on = {gpu.uuid: gpu.mig or () for gpu in machine.gpus} if machine is not None else {}
    for device in prepared.devices:
        if isinstance(device.done, MigInstance) and device.uuid in on:
            yield device, on[device.uuid]
