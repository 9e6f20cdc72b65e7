"""MIG instances as devices of a slice: those that exist, one for all that are made for claims, or one a placement.

Profiles and placements are the GPU's own, as NVML gives them. A placement's device is named by its GPU, the profile's
id and its first memory slice, never by the instance's uuid, which is born when the instance is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import device_attributes
from dradriver.topology.groups import Groups
from dradriver.topology.machine import Gpu, Machine, MigDevice, MigProfile
from dradriver.topology.mig_limits import Limit, binding_limits

MOST_SETS: Final = 8  # of counters in a slice, resource/v1 types.go of 1.35
_MOST_COUNTERS: Final = 32  # in a set, ditto

_HOPPER: Final = (9, 0)  # compute capability; from there on MIG mode changes without a reset (NVIDIA's MIG user guide)
_PART_OF_INSTANCE: Final = re.compile(r"[0-9]+c\.")  # 1c.3g.40gb: it does not take all of its instance


def can_be_whole(gpu: Gpu) -> bool:
    """Return whether a GPU whose MIG instances are made for claims can also be a device as a whole.

    Elsewhere MIG mode stays on, and in MIG mode a GPU has no NVLink: its largest instance is no whole GPU.
    """
    major, _, minor = gpu.compute_capability.partition(".")
    return major.isdecimal() and (int(major), int(minor) if minor.isdecimal() else 0) >= _HOPPER


def existing(
    instances: Iterable[MigDevice], profiles: Iterable[MigProfile]
) -> tuple[tuple[MigDevice, MigProfile], ...]:
    """Return the existing MIG instances that slices can offer as devices, each with its profile, the smallest first.

    Those are the ones that take all of their GPU instance, of a profile that the GPU has, where it has a place for it.
    One of several compute instances of a GPU instance (``1c.3g.40gb``) is isolated from the others by nothing but its
    share of the multiprocessors.
    """
    by_id = {profile.id: profile for profile in profiles}
    all_instances = list(instances)
    compute_instances = Counter(instance.gpu_instance for instance in all_instances)
    usable = [
        (instance, by_id[instance.profile_id])
        for instance in all_instances
        if instance.profile_id in by_id
        and instance.start in by_id[instance.profile_id].starts
        and compute_instances[instance.gpu_instance] == 1
        and not _PART_OF_INSTANCE.match(instance.profile)
    ]
    return tuple(sorted(usable, key=lambda pair: (pair[1].size, pair[1].name, -(pair[0].start or 0))))


def static(machine: Machine, position: int, mode: Mode, *, name: str) -> list[device_attributes.Device]:
    """Return the MIG instances that exist on a GPU as devices of their own, one for each that can be handed out."""
    gpu = machine.gpus[position]
    return [
        _mig_device(machine, position, mode, profile, instance.start or 0, name=name)
        for instance, profile in existing(gpu.mig or (), gpu.profiles)
    ]


def gone(
    machine: Machine, position: int, mode: Mode, kept: Iterable[str], taint: Mapping[str, Any], *, name: str
) -> list[device_attributes.Device]:
    """Return the MIG devices that claims have and that are gone, each with a taint against new claims.

    Args:
        machine: The machine.
        position: The position of the GPU.
        mode: As it is handed out.
        kept: Names of the devices that claims have.
        taint: The taint.
        name: The GPU's device name.
    """
    gpu, held = machine.gpus[position], frozenset(kept)
    present = {(profile.id, instance.start) for instance, profile in existing(gpu.mig or (), gpu.profiles)}
    return [
        _mig_device(machine, position, mode, profile, start, name=name) | {"taints": [dict(taint)]}
        for profile in gpu.profiles
        for start in profile.starts
        if (profile.id, start) not in present and placement_name(name, profile.id, start) in held
    ]


def on_demand(machine: Machine, groups: Groups, position: int, mode: Mode, *, name: str) -> device_attributes.Device:
    """Return a GPU as one device with its MIG slices as capacities.

    Which instance a claim gets stands in its configuration; what it takes of the capacities keeps the sum right.
    """
    gpu = machine.gpus[position]
    device = device_attributes.whole(machine, groups, position, name=name)
    if mode.fractions_only or not can_be_whole(gpu):
        device["attributes"] = device_attributes.identity(machine, position) | {"type": {"string": "mig"}}
    memory, compute = max(p.size for p in gpu.profiles), max(p.compute for p in gpu.profiles)
    return device | {
        "attributes": device["attributes"] | {"mig": {"string": "dynamic"}} | device_attributes.exclusive(mode),
        "allowMultipleAllocations": True,
        "capacity": {
            names.CAPACITY_MEMORY_SLICES: device_attributes.divisible(memory, memory),
            names.CAPACITY_COMPUTE_SLICES: device_attributes.divisible(compute, compute),
        },  # and no memory: who does not ask for it would take all of it, with any slice
    }


def placements(
    machine: Machine, groups: Groups, position: int, mode: Mode, *, name: str
) -> list[device_attributes.Device]:
    """Return a GPU as a device for each placement of each profile, and whole where it can be.

    All take of the same counters, so the scheduler never hands out together what the GPU cannot have together. The
    counters are the memory slices and the limits that can be reached before these run out, as few as possible: the
    scheduler converts all of them for each pod. Starts descend, because the scheduler takes what comes first, and the
    largest profiles can only start at 0. A profile whose limit finds no place among the counters is left out.
    """
    gpu = machine.gpus[position]
    # A limit: how many instances of some profiles a GPU can have at once. A device has room for some counters only.
    uncounted = binding_limits(gpu.profiles)[len(_counted_limits(gpu)) :]
    parts = [
        _placement(machine, position, mode, profile, start, name=name)
        for profile in sorted(gpu.profiles, key=lambda profile: (profile.size, profile.name))
        if not any(limit.needs[profile] for limit in uncounted)
        for start in sorted(profile.starts, reverse=True)
    ]
    if mode.fractions_only or not can_be_whole(gpu):
        return parts
    whole = device_attributes.whole(machine, groups, position, name=name)
    whole["attributes"] |= device_attributes.exclusive(mode)
    return [whole | {"consumesCounters": [{"counterSet": name, "counters": counters(gpu)}]}, *parts]


def counters(gpu: Gpu) -> dict[str, Any]:
    """Return the counters in a slice that a GPU's MIG placements share."""
    memory_slices = {f"memory-slice-{number}": 1 for number in range(_end(gpu))}
    limits = {limit.name: limit.total for limit in _counted_limits(gpu)}
    return _values(memory_slices | limits)


def placement_name(gpu: str, profile: int, start: int) -> str:
    """Return the device name of a MIG placement: its GPU's, the profile's id and the first memory slice."""
    return f"{gpu}-{profile}-{start}"


def _placement(
    machine: Machine, position: int, mode: Mode, profile: MigProfile, start: int, *, name: str
) -> device_attributes.Device:
    memory_slices = {f"memory-slice-{number}": 1 for number in range(start, start + profile.size)}
    limits = {limit.name: limit.needs[profile] for limit in _counted_limits(machine.gpus[position])}
    device = _mig_device(machine, position, mode, profile, start, name=name)
    return device | {"consumesCounters": [{"counterSet": name, "counters": _values(memory_slices | limits)}]}


def _mig_device(
    machine: Machine, position: int, mode: Mode, profile: MigProfile, start: int, *, name: str
) -> device_attributes.Device:
    attributes = device_attributes.identity(machine, position)
    attributes["parentUUID"] = attributes.pop("uuid")
    return {
        "name": placement_name(name, profile.id, start),
        "attributes": attributes
        | {
            "type": {"string": "mig"},
            "profile": {"string": profile.name},
            "placement": {"int": start},
        }
        | device_attributes.exclusive(mode),
        "capacity": {
            names.CAPACITY_MEMORY_SLICES: {"value": str(profile.size)},
            names.CAPACITY_COMPUTE_SLICES: {"value": str(profile.compute)},
            names.CAPACITY_MEMORY: {"value": f"{profile.memory_mib}Mi"},
        },
    }


def _end(gpu: Gpu) -> int:
    return max(start + profile.size for profile in gpu.profiles for start in profile.starts)


def _counted_limits(gpu: Gpu) -> tuple[Limit, ...]:
    """Return the limits that have a counter."""
    return binding_limits(gpu.profiles)[: _MOST_COUNTERS - _end(gpu)]


def _values(counts: Mapping[str, int]) -> dict[str, Any]:
    return {counter: {"value": str(count)} for counter, count in counts.items() if count}
