"""Slices of AMD's DRA driver, field by field as its docs/driver-attributes.md and cmd/gpu-kubeletplugin say.

ROCm/k8s-gpu-dra-driver at 06dbe58 (2026): a node's one slice has its devices sorted by name. What it does not say is
whose links a GPU has, and no uuid. An older release (2622427) has the address as ``pciAddr`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dradriver.topology.machine import Gpu, Machine

Object = dict[str, Any]

DRIVER: Final = "gpu.amd.com"
CLASS_CEL: Final = "device.driver == 'gpu.amd.com'"
WORDS: Final[dict[str, str]] = {"vendor": "amd"}
LIMIT: Final = "amd.com/gpu"
_SPELLED: Final = str.maketrans({" ": "_", "(": None, ")": None})  # its pkg/amdgpu/amdgpu.go of product_name in /sys


def gpu(found: Gpu, card: int, *, kind: str = "amdgpu", render: int | None = None) -> Object:
    """A whole GPU, or a partition: named by DRM's numbers, which are others' after a reboot."""
    return {
        "name": f"gpu-{card}-{128 + card if render is None else render}",
        "attributes": {
            "type": {"string": kind},
            "deviceID": {"string": "0x740f"},
            "productName": {"string": (found.board or found.product).translate(_SPELLED)},
            "driverVersion": {"version": "6.12.12"},
            "driverVersionFull": {"string": "6.12.12"},
            "partitionProfile": {"string": "spx_nps1"},
            "resource.kubernetes.io/pciBusID": {"string": found.pci},
        }
        | ({} if found.numa is None else {"numaNode": {"int": found.numa}}),
        "capacity": {
            "memory": {"value": f"{found.memory_mib}Mi"},
            "computeUnits": {"value": "104"},
            "simdUnits": {"value": "416"},
        },
    }


def vfio(found: Gpu, index: int) -> Object:
    """The same GPU as it is passed through to a virtual machine: beside the other, where that gate is on."""
    made = gpu(found, index, kind="vfio")
    return made | {"name": f"gpu-vfio-{index}"}


def by_partition(found: Gpu, index: int) -> list[Object]:
    """A GPU with its gate AutoPartition: a device for each way to divide it, which claims share."""
    made = []
    for mode, kind, parts in (("spx-nps1", "amdgpu", 1), ("cpx-nps1", "amdgpu-partition", 8)):
        device = gpu(found, index, kind=kind) | {"name": f"gpu-{index}-{mode}", "allowMultipleAllocations": True}
        policy = {"default": "1", "validRange": {"min": "1", "step": "1", "max": str(parts)}}
        device["capacity"]["partitions"] = {"value": str(parts), "requestPolicy": policy}
        made.append(device)
    return made


def whole(machine: Machine, cards: Mapping[str, int] | None = None) -> list[Object]:
    """All GPUs of a machine, by their cards' numbers where these are not the machine's own."""
    found = [gpu(one, one.index if cards is None else cards[one.uuid]) for one in machine.gpus]
    return sorted(found, key=lambda device: str(device["name"]))


def resource_slice(node: str, devices: Sequence[Object]) -> Object:
    """The slice of a node."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node}-{DRIVER}-h5t2m",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "node-uid", "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }
