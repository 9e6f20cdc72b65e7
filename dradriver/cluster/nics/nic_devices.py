"""Reads NICs from the ResourceSlices that their drivers publish."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import Device, ResourceSlice
from dradriver.api.base.objects import Taint
from dradriver.api.vocabulary.nic_requests import DRIVERS, Given, NicDriver, Tolerated
from dradriver.api.vocabulary.simple_cel import Other, Value
from dradriver.cluster.nodes.taints import pattern_of, patterns
from dradriver.cluster.records.slice_records import PoolSlice, place_in_pool
from dradriver.kube import codec

# In the order of getAttributeValue (k8s.io/dynamic-resource-allocation, cel/compile.go).
_KINDS: Final = ("ints", "bools", "strings", "versions", "int", "bool", "string", "version")
_LITERALS: Final[Mapping[str, type]] = {"int": int, "bool": bool, "string": str}


class Nic(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One NIC as its driver publishes it.

    Attributes:
        given: Driver, pool and device name, as an allocation names the NIC.
        address: The PCI address.
        parent: The PCI address of the physical function that the NIC belongs to; empty if there is none.
        root: The PCIe root complex; None if it is not published.
        numa: The NUMA node; None if it is not published.
        attributes: All published attributes, by full names. Claims can select by them.
        taints: The taints that keep a claim from the NIC unless the claim tolerates them.
    """

    given: Given
    address: str
    parent: str
    root: str | None
    numa: int | None
    attributes: dict[str, Value]
    taints: tuple[Taint, ...]

    def tolerated(self, tolerations: Collection[Tolerated]) -> bool:
        """Return whether tolerations cover all taints of the NIC, by the rules for node taints."""
        if not self.taints:
            return True
        own = {pattern_of(*one) for one in tolerations}
        return all(not own.isdisjoint(patterns(taint)) for taint in self.taints)


class NicSlice(PoolSlice, frozen=True, kw_only=True, gc=False):
    """A ResourceSlice of a NIC driver.

    Attributes:
        nics: The devices that have a PCI address.
    """

    nics: tuple[Nic, ...]


def read_slice(data: msgspec.Raw) -> NicSlice | None:
    """Return the fields that the cluster cache keeps of a NIC driver's ResourceSlice.

    None for a slice of another driver, or one that does not belong to a single node.

    Raises:
        BadJson: The JSON is not a ResourceSlice.
    """
    piece: ResourceSlice = codec.decode(data, ResourceSlice)
    driver = DRIVERS.get(piece.spec.driver)
    if driver is None or not piece.spec.node_name:
        return None
    pool = sys.intern(piece.spec.pool.name)
    every = (_nic(device, driver, pool) for device in piece.spec.devices)
    return NicSlice(**place_in_pool(piece), nics=tuple(nic for nic in every if nic is not None))


def _nic(device: Device, driver: NicDriver, pool: str) -> Nic | None:
    attributes = {
        sys.intern(name if "/" in name else f"{driver.name}/{name}"): _value(said)
        for name, said in device.attributes.items()
    }
    address = attributes.get(f"{driver.domain}/{driver.address}")
    if not isinstance(address, str) or not address:
        return None
    numa = attributes.get(driver.numa, attributes.get(names.NUMA_NODE))
    parent = attributes.get(driver.parent, "")
    root = attributes.get(names.PCIE_ROOT)
    return Nic(
        given=(driver.name, pool, device.name),
        address=address,
        parent=parent if isinstance(parent, str) else "",
        root=root if isinstance(root, str) and root else None,
        numa=numa if isinstance(numa, int) and not isinstance(numa, bool) and numa >= 0 else None,
        attributes=attributes,
        taints=tuple(taint for taint in device.taints if taint.blocks),
    )


def _value(attribute: Mapping[str, Any]) -> Value:
    """Return the value of a device attribute as the scheduler reads it.

    An attribute has one field for each type of value. The first field that is set counts, in the scheduler's order.
    """
    for kind in _KINDS:
        value: Any = attribute.get(kind)
        if value is not None:
            python_type = type(value)
            if python_type is _LITERALS.get(kind):
                return sys.intern(value) if isinstance(value, str) and len(value) <= 64 else value
            return Other("" if kind in _LITERALS else kind, repr(value))
    return Other("", "")
