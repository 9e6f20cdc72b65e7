"""Small machines and their pools, made once for all seeds."""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from dradriver.api import slices
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Object

PROFILES: Final = ("dgx1-v100", "a100-pcie-x8-bridge-pairs", "rtx4090-x8", "rtx-a6000-x4-pairs")
LOST: Final = (frozenset[int](), frozenset({0}), frozenset({3}), frozenset({2, 3}))  # few, so that shapes are shared


@functools.cache
def machine(profile: str, node: str, gone: frozenset[int] = frozenset()) -> Machine:
    """Return a node's machine as it is read when some GPUs fell off the bus: indices shift, identities do not."""
    if not gone:
        return profiles.load(profile, seed=node)
    whole = machine(profile, node)
    kept = [position for position, gpu in enumerate(whole.gpus) if gpu.index not in gone]
    return msgspec.structs.replace(
        whole,
        gpus=tuple(msgspec.structs.replace(whole.gpus[p], index=i, minor=i) for i, p in enumerate(kept)),
        links=tuple(tuple(whole.links[a][b] for b in kept) for a in kept),
        paths=tuple(tuple(whole.paths[a][b] for b in kept) for a in kept),
        nics=(),
        nic_paths=(),
    )


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
