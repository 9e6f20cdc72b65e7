"""Builds a slice's devices for a GPU with MIG.

A *placement* is a MIG profile together with the memory slice at which an instance starts. There are three forms: one
device for each existing instance, one device for all MIG slices, or one device for each placement. Profiles and
placements are those that NVML reports for the GPU. The device of a placement is named by its GPU, the profile's id and
its first memory slice. It is not named by the instance's uuid, which exists only after the instance was created.
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
_PLACEMENT_NAME: Final = re.compile(r"(gpu-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-[0-9]+-[0-9]+")
_PART_OF_INSTANCE: Final = re.compile(r"[0-9]+c\.")  # 1c.3g.40gb: it does not take all of its instance


def can_be_whole(gpu: Gpu) -> bool:
    """Return whether a GPU whose MIG instances are created on demand can also be published as a whole.

    This is possible from Hopper on. On older GPUs MIG mode must stay on, and a GPU in MIG mode has no NVLink. So the
    largest instance of an older GPU cannot replace the whole GPU.
    """
    major, _, minor = gpu.compute_capability.partition(".")
    return major.isdecimal() and (int(major), int(minor) if minor.isdecimal() else 0) >= _HOPPER


def existing(
    instances: Iterable[MigDevice], profiles: Iterable[MigProfile]
) -> tuple[tuple[MigDevice, MigProfile], ...]:
    """Return the existing MIG instances that can be devices, each with its profile, smallest first.

    A compute instance must use all of its GPU instance, with a profile that the GPU has and at a possible place. If a
    GPU instance is divided into several compute instances (``1c.3g.40gb``), they are not supported: only the
    multiprocessors are divided, and nothing else isolates them.
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
    """Return a device for each existing MIG instance of a GPU that claims can use.

    An instance counts only if ``existing`` accepts it. ``position`` is the GPU's position in ``machine.gpus``, ``mode``
    says how the GPU is handed out, and ``name`` is the GPU's device name.
    """
    gpu = machine.gpus[position]
    return [
        _mig_device(machine, position, mode, profile, instance.start or 0, name=name)
        for instance, profile in existing(gpu.mig or (), gpu.profiles)
    ]


def gone(
    machine: Machine, position: int, mode: Mode, kept: Iterable[str], taint: Mapping[str, Any], *, name: str
) -> list[device_attributes.Device]:
    """Return tainted devices for MIG instances that no longer exist, but that claims still use.

    The taint keeps new claims away.

    Args:
        machine: The machine.
        position: The position of the GPU in ``machine.gpus``.
        mode: How the GPU is handed out.
        kept: Names of the devices that claims use.
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
    """Return a GPU as one device, for MIG slices that the node agent creates for each claim.

    A claim's configuration says which instance the claim gets. The consumed capacities only ensure that all claims
    together fit on the GPU.

    ``groups`` are the machine's groups of well-linked GPUs. ``position`` is the GPU's position in ``machine.gpus``,
    ``mode`` says how the GPU is handed out, and ``name`` is the GPU's device name.
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
    """Return a device for each MIG placement of a GPU, and the whole GPU if possible.

    All devices consume the same counters, so the scheduler never allocates devices together that cannot exist together.
    There is a counter for each memory slice, and for each limit that can be reached before the memory slices run out.
    There are as few counters as possible, because the scheduler converts all of them for each pod.

    Starts are in descending order: the scheduler takes the first device that fits, and the largest profiles can only
    start at 0. A profile is left out if there is no room for a counter of its limit.

    ``groups`` are the machine's groups of well-linked GPUs, ``position`` is the GPU's position in ``machine.gpus``.
    ``mode`` says how the GPU is handed out, ``name`` is the GPU's device name.
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
    """Return the counters of a GPU with MIG: one for each memory slice and for some limits.

    The slice publishes them. The devices of MIG placements consume them, so that the scheduler cannot allocate two that
    overlap.
    """
    memory_slices = {f"memory-slice-{number}": 1 for number in range(_end(gpu))}
    limits = {limit.name: limit.total for limit in _counted_limits(gpu)}
    return _values(memory_slices | limits)


def placement_name(gpu: str, profile: int, start: int) -> str:
    """Return the device name of a MIG placement.

    It consists of the device name of the GPU (``gpu``), the id of the MIG profile (``profile``) and the first memory
    slice (``start``).
    """
    return f"{gpu}-{profile}-{start}"


def gpu_of_placement(name: str) -> str | None:
    """Return the device name of the GPU of a MIG placement; None if ``name`` is no ``placement_name``."""
    match = _PLACEMENT_NAME.fullmatch(name)
    return None if match is None else match[1]


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
    """Return the limits of a GPU's MIG profiles that get a counter in the slice.

    A limit says how many instances of some profiles the GPU can have at the same time. Limits are left out if a slice
    has no room for more counters.
    """
    return binding_limits(gpu.profiles)[: _MOST_COUNTERS - _end(gpu)]


def _values(counts: Mapping[str, int]) -> dict[str, Any]:
    return {counter: {"value": str(count)} for counter, count in counts.items() if count}
