"""Small machines and their pools, made once for all seeds."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Final

import msgspec

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.node.discovery.simulated_machine import without
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Object
from tests.simulator.taking import Home, Part

PROFILES: Final = (
    "dgx1-v100", "a100-pcie-x8-bridge-pairs", "h100-pcie-x8-bridge-pairs", "rtx4090-x8", "rtx-a6000-x4-pairs",
)  # fmt: skip
LOST: Final = (frozenset[int](), frozenset({0}), frozenset({3}), frozenset({2, 3}))  # few, so that shapes are shared

WIRINGS: Final = 8  # odd ones, from 1 on; few for the same reason

_SHARED: Final = Mode(shared="time-slicing")
_ALONE: Final = Mode(shared="time-slicing", exclusive_to="namespace")
FORMS: Final[dict[str, dict[int, Mode]]] = {
    "whole": {},
    "shared": {0: _SHARED, 1: _ALONE},
    "dynamic": {2: Mode(mig="dynamic"), 3: Mode(mig="dynamic", exclusive_to="namespace")},
    "placements": {3: Mode(mig="placements")},
    "mixed": {0: _SHARED, 1: _SHARED, 2: Mode(mig="dynamic"), 3: Mode(mig="placements")},
}
"""What of a node's GPUs is handed out, by their numbers; all others are whole, and so are those that have no MIG."""


@functools.cache
def machine(profile: str, node: str, gone: frozenset[int] = frozenset(), wiring: int = 0) -> Machine:
    """Return a node's machine as it is read when some GPUs fell off the bus: indices shift, identities do not.

    One of the odd wirings has links that no machine has.
    """
    found = without(profiles.load(profile, seed=node), {str(index) for index in gone})
    if not wiring:
        return found
    rng, count = random.Random(wiring), len(found.gpus)
    drawn = {pair: rng.randint(0, 3) for pair in itertools.combinations(range(count), 2)}
    links = tuple(tuple(drawn.get((min(a, b), max(a, b)), 0) for b in range(count)) for a in range(count))
    return msgspec.structs.replace(found, links=links, link_gbps=20.0)


@functools.cache
def _built(profile: str, node: str, gone: frozenset[int], form: str, wiring: int) -> list[Object]:
    every = machine(profile, node).gpus
    modes = {every[number].uuid: mode for number, mode in FORMS[form].items()}
    return resource_slices.build(machine(profile, node, gone, wiring), node=node, node_uid="n", modes=modes)


def pool(profile: str, node: str, gone: frozenset[int], form: str, generation: int, wiring: int = 0) -> list[Object]:
    """Return a node's slices of a generation; not to be changed."""
    return [
        built | {"spec": built["spec"] | {"pool": built["spec"]["pool"] | {"generation": generation}}}
        for built in _built(profile, node, gone, form, wiring)
    ]


@functools.cache
def devices(profile: str, node: str, gone: frozenset[int], form: str, wiring: int = 0) -> dict[str, Object]:
    """Return the devices that such a pool lists, by name, in their order."""
    built = _built(profile, node, gone, form, wiring)
    return {device["name"]: device for piece in built for device in piece["spec"].get("devices", ())}


@functools.cache
def homes(profile: str, node: str) -> dict[str, Home]:
    """Return what every device is that such a node may ever list, by name."""
    found: dict[str, Home] = {}
    for gpu in machine(profile, node).gpus:
        name = resource_slices.device_name(gpu.uuid)
        whole = Home((node, name), gpu.uuid, gpu.memory_mib, max((one.size for one in gpu.profiles), default=0))
        found[name] = whole
        for one in gpu.profiles:
            for start in one.starts:
                part = Part(slices=one.size, profile=one.name, start=start)
                found[resource_slices.part_name(gpu.uuid, one.id, start)] = whole._replace(part=part)
    return found
