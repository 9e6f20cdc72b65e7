"""The distance of a node's NICs from its GPUs, and attributes that both may share."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from dradriver.allocator.choice import nearest_nics
from dradriver.api.base import names
from dradriver.cluster.nics.nic_devices import Nic
from dradriver.topology.machine import Gpu, Machine, PathType


class Ways:
    """The ways from a node's NICs to its GPUs, whoever has these.

    Attributes:
        machine: The node's.
        of: How far each NIC is from each GPU, by the GPU's position, by what gave the NIC.
        most: How far is near; None for nothing.
        near: The NICs that are near any GPU, by what gave them.
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
        """Return whether a NIC at this distance is near a GPU."""
        return self.most is not None and way <= self.most


def of_gpu(gpu: Gpu, attribute: str) -> object:
    """Return a GPU's attribute that NICs may have as well; None if it has none."""
    return {names.PCIE_ROOT: gpu.pcie_root, names.NUMA_NODE: gpu.numa}.get(attribute)


def same(one: object, other: object) -> bool:
    """Return whether the scheduler takes two values of attributes of GPUs and NICs as equal."""
    return type(one) is type(other) and one == other
