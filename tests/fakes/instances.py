"""Machines with GPUs in MIG mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dradriver.topology.machine import Gpu, Machine, MigDevice


def in_mig_mode(machine: Machine, instances: Mapping[int, Sequence[tuple[str, int]]]) -> Machine:
    """The machine with MIG mode on, and these instances there, profiles and starts, on the GPUs at these positions."""
    gpus = list(machine.gpus)
    for position, there in instances.items():
        gpus[position] = msgspec.structs.replace(gpus[position], mig=_devices(gpus[position], there))
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def _devices(gpu: Gpu, there: Sequence[tuple[str, int]]) -> tuple[MigDevice, ...]:
    by_name = {profile.name: profile for profile in gpu.profiles}
    return tuple(
        MigDevice(
            slot,
            f"MIG-{gpu.index:08x}-0000-0000-0000-{slot:012x}",
            slot + 1,
            0,
            name,
            by_name[name].memory_mib,
            by_name[name].id,
            start,
        )
        for slot, (name, start) in enumerate(there)
    )
