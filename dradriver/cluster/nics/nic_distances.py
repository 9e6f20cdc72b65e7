"""The distance of a node's NICs from its GPUs, and attributes that both may share.

A distance is the path between two devices over PCIe, such as through one switch or between two CPU sockets.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from dradriver.allocator.choice import nearest_nics
from dradriver.api.base import names
from dradriver.cluster.nics.nic_devices import Nic
from dradriver.topology.machine import Gpu, Machine, PathType


class Ways:
    """The distances between a node's NICs and its GPUs, whether allocated or not.

    Attributes:
        machine: The node's machine.
        of: For each NIC (driver, pool, device name) its PCIe distance to each GPU, in the order of the machine's GPUs.
        most: The largest distance that counts as near; None if no NIC is near.
        near: The NICs that are near any GPU, by driver, pool and device name.
    """

    def __init__(self, machine: Machine, nics: Collection[Nic]) -> None:
        self.machine = machine
        self.of = {
            nic.given: nearest_nics.ways_from(machine, [nic.address, *filter(None, (nic.parent,))], nic.root, nic.numa)
            for nic in nics
        }
        own = (way for row in machine.nic_paths for way in row)
        self.most = nearest_nics.limit([*own, *itertools.chain(*self.of.values())])
        self.near = frozenset(given for given, ways in self.of.items() if any(map(self.is_near, ways)))

    def is_near(self, way: PathType) -> bool:
        """Return whether a NIC at the distance ``way`` from a GPU counts as near."""
        return self.most is not None and way <= self.most


def of_gpu(gpu: Gpu, attribute: str) -> object:
    """Return a GPU's value of an attribute that NICs have, too; None if the GPU has no value."""
    return {names.PCIE_ROOT: gpu.pcie_root, names.NUMA_NODE: gpu.numa}.get(attribute)


def same(one: object, other: object) -> bool:
    """Return whether the scheduler treats two attribute values of GPUs and NICs as equal."""
    return type(one) is type(other) and one == other
