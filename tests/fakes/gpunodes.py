"""Nodes with GPUs and claims on them, as the API has them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from dradriver.allocator.request import Choice, Level
from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims import claim_builder
from dradriver.api.claims.pins import Claim
from dradriver.api.slices import resource_slices
from dradriver.topology import profiles
from dradriver.topology.machine import Machine

Object = dict[str, Any]


@functools.cache  # reading a profile takes 20 ms
def machine(node: str, profile: str = "dgx1-v100") -> Machine:
    """The machine that a node pretends to be."""
    return profiles.load(profile, seed=node)


def pieces(node: str, profile: str = "dgx1-v100") -> list[Object]:
    """A node's slices."""
    return resource_slices.build(machine(node, profile), node=node, node_uid=f"uid-{node}")


def piece(node: str, profile: str = "dgx1-v100", *, generation: int = 1, text: str | None = None) -> Object:
    """A node's only slice; ``text`` replaces the machine in its annotation."""
    (built,) = pieces(node, profile)
    built["spec"]["pool"]["generation"] = generation
    if text is not None:
        built["metadata"]["annotations"][names.MACHINE] = text
    return built


def allocated(
    name: str,
    node: str,
    gpus: Sequence[int],
    *,
    pods: Sequence[str] = (),
    namespace: str = "team-a",
    profile: str = "dgx1-v100",
    driver: str = names.DRIVER,
    **more: Any,
) -> Object:
    """An allocated claim; ``more`` are further fields of each result."""
    uuids = {gpu.index: gpu.uuid for gpu in machine(node, profile).gpus}
    results = [
        {"request": "main", "driver": driver, "pool": node, "device": resource_slices.device_name(uuids[index])} | more
        for index in gpus
    ]
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
        },
    }


def promised(name: str, node: str, gpus: Sequence[int], *, pod: str, namespace: str = "team-a") -> Object:
    """A claim that the controller has pinned and the scheduler has not allocated."""
    choice = Choice(
        gpus=tuple(gpus),
        containers=(tuple(gpus),),
        ring=tuple(gpus),
        busbw_gbps=1,
        bandwidth_gbps=1,
        level=Level.NVLINK,
        score=100,
        node=node,
    )
    owner = Pod(
        metadata=Metadata(name=pod, namespace=namespace, uid=f"uid-{pod}"),
        spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name=name)]),
    )
    uuids = {gpu.index: gpu.uuid for gpu in machine(node).gpus}
    return claim_builder.pinned(owner, choice, uuids={"main": [uuids[number] for number in gpus]})


def read_slices(*objects: Object) -> list[ResourceSlice]:
    """The objects as the client gives them."""
    return msgspec.convert(objects, list[ResourceSlice])


def read_claims(*objects: Object) -> list[Claim]:
    """The objects as the client gives them."""
    return msgspec.json.decode(msgspec.json.encode(objects), type=list[Claim])
