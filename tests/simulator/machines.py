"""Small machines and their pools, made once for all seeds."""

from __future__ import annotations

import functools
from typing import Final

from dradriver.api import slices
from dradriver.node.discovery.simulated import without
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Object

PROFILES: Final = ("dgx1-v100", "a100-pcie-x8-bridge-pairs", "rtx4090-x8", "rtx-a6000-x4-pairs")
LOST: Final = (frozenset[int](), frozenset({0}), frozenset({3}), frozenset({2, 3}))  # few, so that shapes are shared


@functools.cache
def machine(profile: str, node: str, gone: frozenset[int] = frozenset()) -> Machine:
    """Return a node's machine as it is read when some GPUs fell off the bus: indices shift, identities do not."""
    return without(profiles.load(profile, seed=node), {str(index) for index in gone})


@functools.cache
def _built(profile: str, node: str, gone: frozenset[int]) -> list[Object]:
    return slices.build(machine(profile, node, gone), node=node, node_uid="n")


def pool(profile: str, node: str, gone: frozenset[int], generation: int) -> list[Object]:
    """Return a node's slices of a generation; not to be changed."""
    return [
        built | {"spec": built["spec"] | {"pool": built["spec"]["pool"] | {"generation": generation}}}
        for built in _built(profile, node, gone)
    ]


@functools.cache
def devices(profile: str, node: str, gone: frozenset[int]) -> frozenset[str]:
    """Return the names of the devices that such a pool lists."""
    return frozenset(device["name"] for built in _built(profile, node, gone) for device in built["spec"]["devices"])
