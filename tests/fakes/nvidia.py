"""Slices of NVIDIA's DRA driver, field by field as its kubelet plugin publishes them.

kubernetes-sigs/dra-driver-nvidia-gpu at 9593204 (v0.5.0-dev) was run on the machines of ``nvml.py`` and ``sysfs.py``,
which were given the few answers more that it asks for; what it published is in ``nvidia_slices.json``, and
``tests/unit/test_fake_nvidia.py`` holds this file to it. From its source, ``deviceinfo.go`` and ``mig.go``, are MIG
devices that exist and devices for virtual machines.

Its pool has one slice, which it changes in place: what one write can do keeps the generation. With its feature gate
``DynamicMIG`` there is a slice for each GPU, and a change of several is a new generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dradriver.topology.machine import Gpu, Machine

Object = dict[str, Any]
DRIVER = "gpu.nvidia.com"
RECORDED: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("nvidia_slices.json").read_text())
"""What it published, without what is another's each time: by the machine's profile, of the node ``node-a``."""

_MIG = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_COUNTED = ("multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")


def gpu(found: Gpu, minor: int) -> Object:
    """A GPU as a device: named by its minor number, which is another's after a GPU was lost."""
    return {
        "name": f"gpu-{minor}",
        "attributes": _common(found) | {"type": {"string": "gpu"}, "uuid": {"string": found.uuid}},
        "capacity": {"memory": {"value": _memory(found.memory_mib)}},
    }


def mig(found: Gpu, minor: int, *, profile: str = "1g.10gb", profile_id: int = 19, start: int = 0) -> Object:
    """A MIG device that exists; its GPU is no device then."""
    own = {
        "type": {"string": "mig"},
        "uuid": {"string": f"MIG-00000000-0000-4000-8000-{minor:06d}{start:06d}"},
        "parentUUID": {"string": found.uuid},
        "profile": {"string": profile},
    }
    capacity = {"memory": {"value": "9856Mi"}, f"memorySlice{start}": {"value": "1"}}
    return {
        "name": f"gpu-{minor}-mig-{profile.replace('.', '').replace('+', '-')}-{profile_id}-{start}",
        "attributes": _common(found) | own,
        "capacity": capacity | {name: {"value": "1"} for name in _MIG},
    }


def vfio(found: Gpu, index: int) -> Object:
    """A GPU to be passed through to a virtual machine: its uuid is made up."""
    return {
        "name": f"gpu-vfio-{index}",
        "attributes": {
            "type": {"string": "vfio"},
            "uuid": {"string": f"12345678-0000-5000-8000-{index:012d}"},
            "deviceID": {"string": "0x2330"},
            "vendorID": {"string": "0x10de"},
            "productName": {"string": found.product},
            "iommuFDEnabled": {"bool": False},
            "resource.kubernetes.io/pciBusID": {"string": found.pci},
        },
        "capacity": {"addressableMemory": {"value": "128Gi"}},
    }


def slices(
    node: str, devices: Sequence[Object], *, generation: int = 1, count: int | None = None, index: int = 0
) -> Object:
    """The slice of a node: by default one has all devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{index:05}-{DRIVER}-{node}-k2x7p",
            "generateName": f"{index:05}-{DRIVER}-{node}-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "node-uid", "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1 if count is None else count},
            "devices": list(devices),
        },
    }


def whole(machine: Machine, minors: Mapping[str, int] | None = None, *, without: Iterable[int] = ()) -> list[Object]:
    """All GPUs of a machine but those without, in no order: the plugin appends them while it ranges over a map."""
    left = [one for one in machine.gpus if one.index not in set(without)]
    return [gpu(one, one.minor if minors is None else minors[one.uuid]) for one in reversed(left)]


def in_parts(node: str, machine: Machine, minors: Mapping[str, int], *, generation: int = 1) -> list[Object]:
    """The slices with its feature gate ``DynamicMIG``, as of Kubernetes 1.35: counters, then a slice for each GPU.

    A GPU may be had whole or by its MIG placements, which have no uuid before they are made; engines are not counted.
    """
    gpus = sorted((one for one in machine.gpus if one.uuid in minors), key=lambda one: one.pci)
    found = [slices(node, [], generation=generation, count=1 + len(gpus))]
    del found[0]["spec"]["devices"]
    found[0]["spec"]["sharedCounters"] = []
    for index, one in enumerate(gpus, 1):
        minor = minors[one.uuid]
        most = max(one.profiles, key=lambda profile: profile.size)
        whole = _counters(minor, most.memory_mib, range(most.size))
        found[0]["spec"]["sharedCounters"].append({"name": whole["counterSet"], "counters": whole["counters"]})
        devices = [gpu(one, minor) | {"consumesCounters": [whole], "capacity": _capacity(most.memory_mib)}]
        for profile in one.profiles:
            for start in profile.starts:
                part = mig(one, minor, profile=profile.name, profile_id=profile.id, start=start)
                del part["attributes"]["uuid"]
                counters = _counters(minor, profile.memory_mib, range(start, start + profile.size))
                devices.append(part | {"consumesCounters": [counters], "capacity": _capacity(profile.memory_mib)})
        devices.sort(key=lambda device: str(device["name"]))
        found.append(slices(node, devices, generation=generation, count=1 + len(gpus), index=index))
    return found


def _capacity(memory_mib: int) -> Object:
    return {"memory": {"value": _memory(memory_mib)}} | {name: {"value": "1"} for name in _MIG}


def _counters(minor: int, memory_mib: int, taken: Iterable[int]) -> Object:
    counters = {f"memory-slice-{number}": {"value": "1"} for number in taken}
    counters |= {name: {"value": "1"} for name in _COUNTED} | {"memory": {"value": _memory(memory_mib)}}
    return {"counterSet": f"gpu-{minor}-counter-set", "counters": counters}


def _memory(mib: int) -> str:
    """A quantity as the API server gives it back."""
    return f"{mib >> 10}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _common(found: Gpu) -> Object:
    told: Object = {
        "productName": {"string": found.product},
        "brand": {"string": "Tesla" if found.product.startswith("Tesla") else "Nvidia"},
        "architecture": {"string": found.architecture.title()},
        "cudaComputeCapability": {"version": f"{found.compute_capability}.0"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": found.pci},
    }
    if found.pcie_root is not None:
        told["resource.kubernetes.io/pcieRoot"] = {"string": found.pcie_root}
    if found.numa is not None:
        told["resource.kubernetes.io/numaNode"] = {"int": found.numa}
    return told
