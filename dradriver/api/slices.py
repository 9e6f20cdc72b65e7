"""A machine as ResourceSlices, and back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dradriver.api import names
from dradriver.api.objects import ResourceSlice
from dradriver.topology import codec
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import Groups, group
from dradriver.topology.machine import Gpu, Machine

MOST_DEVICES: Final = 128  # devices in a slice without taints or counters, resource/v1 types.go
MOST_TEXT: Final = 64  # bytes in a string attribute, resource/v1 types.go (DeviceAttributeMaxValueLength)

_GROUP_SIZES: Final = (2, 4, 8)


def build(
    machine: Machine,
    *,
    node: str,
    node_uid: str,
    taints: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({}),
    taintable: bool = True,
) -> list[dict[str, Any]]:
    """Return the node's pool as slice objects of generation 0: the publisher sets generations and versions.

    The scheduler takes pools, slices and devices in the order of their names and lists, so devices stand in an order
    in which good sets are neighbours. A device's name is its GPU's identity, never an index: indices shift when a GPU
    is lost, and a claim would then hold another GPU than the one it was given.

    A GPU with a taint that keeps pods away is in no group of well-linked ones: a group is a set that can be had.

    Args:
        machine: The machine.
        node: The node's name.
        node_uid: The node's uid.
        taints: Taints of devices, by the GPU's uuid.
        taintable: Whether the API server keeps taints; where it does not, the GPUs that pods shall keep off are no
            devices.

    Raises:
        TopologyError: The machine has more GPUs than one slice can hold, or breaks a rule of ``topology.check``.
    """
    if len(machine.gpus) > MOST_DEVICES:
        raise TopologyError(f"machine {machine.name!r}: {len(machine.gpus)} GPUs; a slice holds {MOST_DEVICES}")
    annotation = codec.encode(machine)
    kept_off = [i for i, gpu in enumerate(machine.gpus) if any(map(_blocks, taints.get(gpu.uuid, ())))]
    groups = group(_apart(machine, kept_off))
    out = () if taintable else kept_off
    whole = [i for i in groups.order if machine.gpus[i].mig is None and i not in out]
    devices = [_device(machine, groups, i, taints.get(machine.gpus[i].uuid, ()) if taintable else ()) for i in whole]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": slice_name(0, node),
                "annotations": {names.MACHINE: annotation},
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": node,
                        "uid": node_uid,
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 0, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    ]


def attributes(machine: Machine) -> dict[str, dict[str, Any]]:
    """Return the attributes of each device that the machine's slice has, by the device's name."""
    groups = group(machine)
    found = (_device(machine, groups, i) for i, gpu in enumerate(machine.gpus) if gpu.mig is None)
    return {device["name"]: device["attributes"] for device in found}


def slice_name(index: int, node: str) -> str:
    """Return the name of a node's slice: the hex index leads, because the scheduler reads slices by name."""
    name = f"{index:05x}-{names.DRIVER}-{node}"
    if len(name) <= 253:
        return name
    return f"{name[:236]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def device_name(uuid: str) -> str:
    """Return the device name of a GPU: its uuid in lower case, which is a DNS label."""
    return uuid.lower()


def part_name(uuid: str, profile: int, start: int) -> str:
    """Return the device name of a MIG instance at a placement: its GPU's, the profile's id and its first slice.

    It is never the instance's own uuid, which is born when the instance is made.
    """
    return f"{device_name(uuid)}-{profile}-{start}"


def read_machine(slices: Iterable[ResourceSlice]) -> Machine | None:
    """Return the machine that a node's current slices describe, or None where none of them carries one.

    Only the highest generation counts: the annotation and the devices of one slice are written together. A GPU that is
    no device there (in MIG mode) is part of the machine, but not to be had.

    Raises:
        TopologyError: The annotation is damaged.
    """
    newest = max(
        slices,
        key=lambda s: (s.spec.pool.generation, names.MACHINE in s.metadata.annotations),
        default=None,
    )
    if newest is None or names.MACHINE not in newest.metadata.annotations:
        return None
    return codec.decode(newest.metadata.annotations[names.MACHINE])


def semver(version: str) -> str | None:
    """Return a driver version as semantic version 2.0.0 (``535.104.05`` is ``535.104.5``), or None where it is none."""
    found = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:$|[^\d])", version)
    return ".".join(str(int(part or 0)) for part in found.groups()) if found else None


def _blocks(taint: Mapping[str, Any]) -> bool:
    return taint.get("effect") != "None"


def _apart(machine: Machine, positions: Collection[int]) -> Machine:
    """Return the machine with these GPUs linked to none."""
    if not positions:
        return machine
    links = tuple(
        tuple(0 if i in positions or j in positions else count for j, count in enumerate(row))
        for i, row in enumerate(machine.links)
    )
    return msgspec.structs.replace(machine, links=links)


def _device(machine: Machine, groups: Groups, position: int, taints: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    gpu = machine.gpus[position]
    attributes: dict[str, dict[str, Any]] = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "index": {"int": gpu.index},
        "minor": {"int": gpu.minor},
    }
    texts = {
        "productName": gpu.product,
        "architecture": gpu.architecture,
        "fabric": gpu.fabric,
        "nic": _nearest_nic(machine, position),
        names.PCI_BUS_ID: gpu.pci,
        names.PCIE_ROOT: gpu.pcie_root,
    }
    attributes |= {key: {"string": _cut(text)} for key, text in texts.items() if text}
    versions = {
        "cudaComputeCapability": gpu.compute_capability,
        "driverVersion": machine.driver_version,
    }
    for key, text in versions.items():
        if (version := semver(text)) is not None:
            attributes[key] = {"version": version}
    if gpu.numa is not None and gpu.numa >= 0:
        attributes[names.NUMA_NODE] = {"int": gpu.numa}
    if (domain := groups.domain[position]) is not None:
        attributes["nvlinkDomain"] = {"int": domain}
    for size in _GROUP_SIZES:
        number = groups.by_size[size][position] if size in groups.by_size else None
        if number is not None:
            attributes[f"nvlinkGroup{size}"] = {"int": number}
            attributes[f"nvlinkGroup{size}GBps"] = {"int": int(groups.gbps[size][number])}
    return {
        "name": device_name(gpu.uuid),
        "attributes": attributes,
        "capacity": _capacity(gpu),
    } | ({"taints": list(taints)} if taints else {})


def _cut(text: str) -> str:
    """Return the whole characters at the start of ``text`` that a string attribute holds."""
    return text.encode()[:MOST_TEXT].decode(errors="ignore")


def _capacity(gpu: Gpu) -> dict[str, Any]:
    return {"memory": {"value": f"{gpu.memory_mib}Mi"}}


def _nearest_nic(machine: Machine, position: int) -> str | None:
    if not machine.nics:
        return None
    nearest = min(range(len(machine.nics)), key=lambda n: (machine.nic_paths[n][position], n))
    return machine.nics[nearest].name
