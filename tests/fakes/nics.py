"""Slices of NICs as dranet and the SR-IOV driver publish them: attribute by attribute, as in captured ones.

dranet (kubernetes-sigs/dranet f258477, ``pkg/inventory/db.go``) calls a device by its PCI address and says more or less
of it by what the cloud and the network namespace show; the SR-IOV driver (k8snetworkplumbingwg/dra-driver-sriov
cd9404f, ``pkg/devicestate/discovery.go``) calls a virtual function by its address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dradriver.topology.machine import Machine

Object = dict[str, Any]

DRANET: Final = "dra.net"
SRIOV: Final = "sriovnetwork.k8snetworkplumbingwg.io"
DRANET_CLASS: Final = "dranet.net"


def boxed(values: Mapping[str, str | int | bool]) -> Object:
    """Return attributes as the API writes them."""
    kinds = {str: "string", int: "int", bool: "bool"}
    return {name: {kinds[type(value)]: value} for name, value in values.items()}


def device(
    address: str, *, number: int = 0, numa: int | None = 0, root: str | None = None, **more: str | int | bool
) -> Object:
    """Return a NIC of dranet's.

    Args:
        address: Its PCI address.
        number: Of the RDMA device.
        numa: Its NUMA node; None where the cloud says none.
        root: Its root complex; the same.
        more: Further attributes of dranet's, or others than these.
    """
    said: dict[str, str | int | bool] = {
        "dra.net/ifName": f"rdma{number}",
        "dra.net/pciAddress": address,
        "dra.net/rdma": True,
        "dra.net/rdmaDevice": f"mlx5_{number}",
        "dra.net/virtual": False,
    }
    said.update({f"dra.net/{name}": value for name, value in more.items()})
    if numa is not None:
        said["dra.net/numaNode"] = numa
    if root is not None:
        said["resource.kubernetes.io/pcieRoot"] = root
    return {"name": "pci-" + address.replace(":", "-").replace(".", "-"), "attributes": boxed(said)}


def of_machine(machine: Machine, roots: Mapping[str, str] | None = None) -> list[Object]:
    """Return the NICs of a machine, without what only clouds and roots say; ``roots`` by address say the latter."""
    return [
        device(nic.pci, number=number, numa=nic.numa, root=(roots or {}).get(nic.pci))
        for number, nic in enumerate(machine.nics)
    ]


def function(address: str, parent: str, number: int = 0) -> Object:
    """Return a virtual function of the SR-IOV driver's."""
    said: dict[str, str | int | bool] = {
        f"{SRIOV}/pciAddress": address,
        f"{SRIOV}/pfPciAddress": parent,
        f"{SRIOV}/vfID": number,
        f"{SRIOV}/rdmaCapable": True,
        f"{SRIOV}/resourceName": "rail",
        "resource.kubernetes.io/pciBusID": address,
        "dra.net/numaNode": -1,
    }
    return {"name": address.replace(":", "-").replace(".", "-"), "attributes": boxed(said)}


def published(node: str, devices: Iterable[Object], *, driver: str = DRANET) -> Object:
    """Return a node's only slice of a driver."""
    return {
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def device_class(name: str = DRANET_CLASS, driver: str = DRANET, *more: str) -> Object:
    """Return the DeviceClass of a driver's NICs; ``more`` are further selectors."""
    texts = (f'device.driver == "{driver}"', *more)
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}} for text in texts]}}
