"""Checks whether another driver or plugin hands out this node's GPUs.

If so, two pods could get one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dradriver.api.base import allocating_driver, quantity
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Node
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import ASCEND, NVIDIA, Vendor

_DRIVERS: Final[Mapping[str, str]] = {other.vendor: other.driver for other in allocating_driver.OTHERS} | {
    ASCEND.word: "npu.huawei.com"
}
OTHER_DRIVERS: Final = frozenset(_DRIVERS.values())


def other_owner(node: Node, slices: Iterable[ResourceSlice], vendor: Vendor = NVIDIA) -> str | None:
    """Return the reason why the node's GPUs are not this driver's: another driver or plugin hands them out.

    The result is None if there is no other driver or plugin. Extended resources that a DeviceClass serves do not count,
    because they are not in the allocatable of a node.

    Args:
        node: This node.
        slices: All drivers' slices of this node.
        vendor: The vendor of the GPUs that are published.

    Raises:
        WordError: An amount in the node's allocatable is not a quantity.
    """
    for resource, amount in sorted(node.status.allocatable.items()):
        if resource.startswith((*vendor.resources, *vendor.offered)) and quantity.whole(amount) > 0:
            return f"a device plugin offers {amount} {resource}"
    other = _DRIVERS[vendor.word]
    there = any(piece.spec.driver == other and piece.spec.devices for piece in slices)
    return f"driver {other} has published slices" if there else None


def of_another_vendor(machine: Machine) -> str | None:
    """Return a message if the cluster is set up for another vendor's GPUs than this machine has; else None."""
    current = allocating_driver.current_ledger()
    if not current.vendor or not machine.gpus or machine.vendor.word == current.vendor:
        return None
    return f"in this cluster only GPUs of {current.driver} are chosen, and these are of {machine.vendor.word}"
