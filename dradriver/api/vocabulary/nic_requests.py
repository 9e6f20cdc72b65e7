"""Requests for NICs of other drivers: which drivers these are, what a claim asks them for, how a NIC is pinned.

A NIC is pinned by its PCI address, in the request of the claim's author, who also configures it: the driver that hands
it out has it as an attribute, and so has the machine's description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim

Given = tuple[str, str, str]
"""A NIC by what gave it: driver, pool and device."""

Tolerated = tuple[str, str, str, str]
"""A toleration of a device's taints: key, operator, value and effect, as a claim says them."""


class NicDriver(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that hands out NICs.

    Attributes:
        word: What the policies file calls it.
        name: Its name, in slices and in allocations.
        domain: The domain of the attribute that is a NIC's PCI address.
        address: That attribute, without its domain.
        parent: The attribute with the address of the physical function that a virtual one belongs to; empty for none.
        numa: The attribute with its NUMA node.
    """

    word: str
    name: str
    domain: str
    address: str
    parent: str = ""
    numa: str = "dra.net/numaNode"


DRANET: Final = NicDriver(word="dranet", name="dra.net", domain="dra.net", address="pciAddress")
"""kubernetes-sigs/dranet (``pkg/apis/attributes.go``); it publishes no ``resource.kubernetes.io/pciBusID``."""

SRIOV: Final = NicDriver(
    word="sriov",
    name="sriovnetwork.k8snetworkplumbingwg.io",
    domain="resource.kubernetes.io",
    address="pciBusID",
    parent="sriovnetwork.k8snetworkplumbingwg.io/pfPciAddress",
)
"""k8snetworkplumbingwg/dra-driver-sriov (``pkg/consts/consts.go``): its devices are virtual functions."""

DRIVERS: Final[Mapping[str, NicDriver]] = MappingProxyType({one.name: one for one in (DRANET, SRIOV)})
"""By the driver's name."""

BY_WORD: Final[Mapping[str, NicDriver]] = MappingProxyType({one.word: one for one in DRIVERS.values()})

CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("dranet", "dra.net", "dranet.net", "efa.networking.k8s.aws"), DRANET.word) | {SRIOV.name: SRIOV.word}
)
"""DeviceClasses by the names that the drivers' own manifests give them, each with its driver's word."""


class NicRequest(msgspec.Struct, frozen=True):
    """One request of a claim for NICs.

    Attributes:
        name: Its name.
        device_class: The DeviceClass.
        driver: The name of the driver that the class is of.
        count: How many NICs.
        selectors: What its author says that each must be, as CEL expressions.
        tolerations: The taints that each may have.
    """

    name: str
    device_class: str
    driver: str
    count: int
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Tolerated, ...] = ()


class Alike(msgspec.Struct, frozen=True):
    """An attribute that the devices of some requests, at least one of them for NICs, must have in common.

    Attributes:
        attribute: Its full name.
        requests: The requests' names.
    """

    attribute: str
    requests: tuple[str, ...]


class NicAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The NICs that a claim requests in addition to GPUs.

    Attributes:
        requests: Those whose NICs are chosen here.
        alike: What they must have in common, with each other or with GPUs.
        near: ``required`` or ``preferred`` where the pod says so of their being near its GPUs; else empty.
        left: Requests that the scheduler alone fills, each with why.
    """

    requests: tuple[NicRequest, ...]
    alike: tuple[Alike, ...] = ()
    near: str = ""
    left: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        """Return how many NICs a request of a claim is for."""
        return sum(request.count for request in self.requests)


def selector(driver: NicDriver, addresses: Sequence[str]) -> str:
    """Return a CEL expression that requests exactly the NICs of a node with these addresses.

    A device without the attribute answers false instead of ending the scheduler's attempt. JSON strings are valid CEL
    strings, so no text can break out of its quotes.
    """
    listed = json.dumps(sorted(addresses), ensure_ascii=True)
    return f'device.attributes["{driver.domain}"].?{driver.address}.orValue("") in {listed}'


_SELECTORS: Final = {
    re.compile(re.escape(selector(driver, ()))[: -len(re.escape("[]"))] + r"(?P<list>\[.*\])", re.DOTALL): driver
    for driver in DRIVERS.values()
}


def addresses(expression: str) -> tuple[str, ...] | None:
    """Return the NIC addresses that ``selector`` was given; None if it did not write this expression."""
    for pattern, driver in _SELECTORS.items():
        match = pattern.fullmatch(expression)
        if match is None:
            continue
        try:
            listed = msgspec.json.decode(match["list"], type=tuple[str, ...])
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None
        return listed if expression == selector(driver, listed) else None
    return None


def given(claim: ResourceClaim) -> tuple[Given, ...]:
    """Return the NICs that the scheduler allocated to a claim.

    Monitoring takes nothing away.
    """
    if claim.status.allocation is None:
        return ()
    return tuple(
        (result.driver, result.pool, result.device)
        for result in claim.status.allocation.devices.results
        if result.driver in DRIVERS and not result.admin_access
    )
