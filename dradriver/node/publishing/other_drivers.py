"""Whether something else hands out this node's GPUs: two ledgers would give one GPU to two pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dradriver.api import ledger, quantity
from dradriver.api.dra_objects import ResourceSlice
from dradriver.api.objects import Node

OTHER_DRIVERS: Final = frozenset(other.driver for other in ledger.OTHERS)
_PLUGIN_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")  # gpu also as gpu.shared


def other_owner(node: Node, slices: Iterable[ResourceSlice]) -> str | None:
    """Return who else hands out the node's GPUs, in words; None when nobody does.

    Extended resources that a DeviceClass serves are in no node's allocatable, so they do not count.

    Args:
        node: This node.
        slices: All drivers' slices of this node.

    Raises:
        WordError: An amount in the node's allocatable is no quantity.
    """
    for resource, amount in sorted(node.status.allocatable.items()):
        if resource.startswith(_PLUGIN_RESOURCES) and quantity.whole(amount) > 0:
            return f"a device plugin offers {amount} {resource}"
    others = {s.spec.driver for s in slices if s.spec.driver in OTHER_DRIVERS and s.spec.devices}
    return f"driver {min(others)} has published slices" if others else None
