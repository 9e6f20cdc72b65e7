"""Requests for NICs of other drivers: the known drivers, what a claim requests, and how a NIC is pinned.

The controller pins a NIC by a selector for its PCI address, which it adds to the request of the claim's author. The
NIC's driver publishes this address as an attribute, and the machine's description has it, too. Configuration of the NIC
is left to the claim's author.
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
    """A DRA driver that allocates NICs.

    Attributes:
        word: Its short name in the policies file.
        name: Its name, in slices and in allocations.
        domain: The domain of the attribute with a NIC's PCI address.
        address: The name of that attribute, without its domain.
        parent: For virtual functions, the attribute with the PCI address of their physical function. Empty if the
            driver publishes no such attribute.
        numa: The attribute with the NUMA node.
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
        driver: The name of the driver of the DeviceClass.
        count: The number of NICs.
        selectors: The author's selectors for each NIC, as CEL expressions.
        tolerations: The author's tolerations of taints. A NIC with any other taint cannot be allocated.
    """

    name: str
    device_class: str
    driver: str
    count: int
    selectors: tuple[str, ...] = ()
    tolerations: tuple[Tolerated, ...] = ()


class Alike(msgspec.Struct, frozen=True):
    """A constraint: the devices of all ``requests`` must have the same value of an attribute.

    At least one of the requests is for NICs.

    Attributes:
        attribute: The attribute's full name.
        requests: The requests' names.
    """

    attribute: str
    requests: tuple[str, ...]


class NicAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The NICs that a claim requests in addition to GPUs.

    Attributes:
        requests: The requests whose NICs the controller chooses.
        alike: The constraints that tie their NICs to each other or to GPUs.
        near: ``required`` or ``preferred`` if the pod wants NICs near its GPUs; else empty.
        left: The requests whose NICs the scheduler chooses, each with the reason.
    """

    requests: tuple[NicRequest, ...]
    alike: tuple[Alike, ...] = ()
    near: str = ""
    left: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        """Return how many NICs the controller chooses for the claim."""
        return sum(request.count for request in self.requests)


def selector(driver: NicDriver, addresses: Sequence[str]) -> str:
    """Return the CEL expression that selects exactly the NICs of a node with these PCI addresses.

    ``driver`` publishes the address as an attribute. For a device without the attribute the expression is false. An
    error instead would end the scheduler's attempt. JSON strings are valid CEL strings, so no text can break out of its
    quotes.
    """
    listed = json.dumps(sorted(addresses), ensure_ascii=True)
    return f'device.attributes["{driver.domain}"].?{driver.address}.orValue("") in {listed}'


_SELECTORS: Final = {
    re.compile(re.escape(selector(driver, ()))[: -len(re.escape("[]"))] + r"(?P<list>\[.*\])", re.DOTALL): driver
    for driver in DRIVERS.values()
}


def addresses(expression: str) -> tuple[str, ...] | None:
    """Return the PCI addresses in an expression that ``selector`` built; None for any other expression."""
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

    The result is empty if the claim is not allocated. NICs with admin access, for monitoring, are left out, because
    another claim can have them at the same time.
    """
    if claim.status.allocation is None:
        return ()
    return tuple(
        (result.driver, result.pool, result.device)
        for result in claim.status.allocation.devices.results
        if result.driver in DRIVERS and not result.admin_access
    )
