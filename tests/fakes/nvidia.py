"""Slices of NVIDIA's DRA driver, field by field as its kubelet plugin makes them.

kubernetes-sigs/dra-driver-nvidia-gpu at 9593204, cmd/gpu-kubelet-plugin: ``Attributes`` and ``CanonicalName`` in
deviceinfo.go, ``CommonAttributesMig`` and ``CommonCapacitiesMig`` in mig.go, ``publishResources`` in driver.go, and
``ResourceSliceController`` of k8s.io/dynamic-resource-allocation, which names slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dradriver.topology.machine import Gpu, Machine

Object = dict[str, Any]
DRIVER = "gpu.nvidia.com"
_MIG = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")


def gpu(found: Gpu, minor: int) -> Object:
    """A GPU as a device: named by its minor number, which is another's after a GPU was lost."""
    return {
        "name": f"gpu-{minor}",
        "attributes": _common(found) | {"type": {"string": "gpu"}, "uuid": {"string": found.uuid}},
        "capacity": {"memory": {"value": f"{found.memory_mib}Mi"}},
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
        "name": f"gpu-{minor}-mig-{profile.replace('.', '')}-{profile_id}-{start}",
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
    node: str, devices: Sequence[Object], *, generation: int = 1, count: int | None = None, suffix: str = "k2x7p"
) -> Object:
    """The slice of a node: by default one has all devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node}-{DRIVER}-{suffix}",
            "generateName": f"{node}-{DRIVER}-",
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


def _common(found: Gpu) -> Object:
    told: Object = {
        "productName": {"string": found.product},
        "brand": {"string": "Nvidia"},
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
