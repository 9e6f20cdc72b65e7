"""Requests for GPUs in a ResourceClaimTemplate: what ``claim_templates`` reads of them as a request of the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dradriver.allocator.request import Amount, Constraint, Mig, Request, Share, Whole
from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.claims import compute_domains, opaque_config
from dradriver.api.vocabulary import values, vendor_words
from dradriver.api.vocabulary.container_requests import COMMON
from dradriver.api.vocabulary.messages import shown
from dradriver.topology.vendors import NVIDIA

_FRACTION_CLASSES: Final = (names.SHARE_CLASS, names.MIG_CLASS)
_KNOWN_FIELDS: Final = (
    "deviceClassName",
    "allocationMode",
    "count",
    "capacity",
    "tolerations",
    "selectors",
    "adminAccess",
)
_PROPERTY_OF_ATTRIBUTE: Final = {  # what constraints of claims say by attributes, in words
    names.NUMA_NODE: Constraint.SAME_NUMA,
    names.PCIE_ROOT: Constraint.SAME_PCIE_ROOT,
} | {
    f"{names.PREFIX}{links}{what}": Constraint.NVLINK
    for links in names.OF_LINKS
    for what in ("Domain", "Group2", "Group4", "Group8")
}
_ATTRIBUTE_EQUALS: Final = re.compile(
    r"""\s*device\.attributes\[(["'])(?P<domain>[a-z.]+)\1\]\.(?P<name>productName|boardName|architecture)"""
    r"""\s*==\s*(["'])(?P<value>[^"'\\]*)\4\s*"""
)
_MIB: Final = 1 << 20


def exactly_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``exactly`` part of a template's request for GPUs, if the driver can place it.

    Raises:
        WordError: It has alternatives, another class, fields that only the scheduler reads, or an impossible count.
    """
    # ``driver`` is the DRA driver that allocates the GPUs, by the process's option ``--allocating-driver``: this one
    # (``OURS``), NVIDIA's or AMD's. Only this one has classes for parts of GPUs.
    driver, where = current_ledger(), f"request {shown(str(request.get('name', '')))}"
    if "firstAvailable" in request:
        raise WordError(
            f"{where}: firstAvailable is a ladder that only the scheduler climbs; write exactly, and the ladder as "
            f"{names.PREFERRED} on the pod, or remove the pod's {names.PREFIX} annotations"
        )
    exactly = request.get("exactly")
    if not isinstance(exactly, dict):
        raise WordError(f"{where}: it has no exactly; write deviceClassName and count there")
    if exactly.get("deviceClassName") == compute_domains.DEVICE_CLASS:
        raise WordError(
            f"{where}: a channel of multi-node NVLink is no GPU; give the containers a limit {names.GPU_RESOURCE}, or "
            f"say which claim is the pod's GPUs as {names.CLAIM}, and create the pod anew"
        )
    classes = (*driver.vendor_of, *(_FRACTION_CLASSES if driver is OURS else ()))
    if exactly.get("deviceClassName") not in classes:
        raise WordError(
            f"{where}: class {shown(str(exactly.get('deviceClassName', '')))} is none of {', '.join(classes)}, and no "
            "class of NICs of the policies file (nics.classes); have a template of its own for other devices, or "
            f"remove the pod's {names.PREFIX} annotations"
        )
    if unknown_fields := sorted(set(exactly) - set(_KNOWN_FIELDS)):
        raise WordError(f"{where}: {shown(unknown_fields[0])} cannot be placed; remove it")
    if exactly.get("adminAccess"):
        raise WordError(f"{where}: adminAccess takes no GPU; remove the pod's {names.PREFIX} annotations")
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise WordError(f"{where}: allocationMode All cannot be placed; write count")
    count = exactly.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= values.MOST_GPUS:
        raise WordError(f"{where}: count {shown(str(count))}; write a whole number from 1 to {values.MOST_GPUS}")
    # ``vendor_of`` has the classes of whole GPUs, so any other class is one of parts.
    is_fraction = exactly["deviceClassName"] not in driver.vendor_of
    if is_fraction and count > 1:
        raise WordError(f"{where}: count {count} of parts of GPUs; write a request for each of them")
    if not is_fraction and exactly.get("capacity"):
        cure = f"write the class {names.SHARE_CLASS}, or none" if driver is OURS else f"write {names.MIN_MEMORY}"
        raise WordError(f"{where}: capacity asks for a part of a GPU; {cure}")
    return exactly


def selected_kind(words: Whole, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the GPU product and architecture that a template's selectors require, as fields of a request.

    Only selectors of the form ``attribute == value`` are read.

    Args:
        words: The pod's annotations, as a request for whole GPUs.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: Another selector, selectors that contradict each other, or that contradict the annotations.
    """
    # 1. Read each selector. ``product`` and ``architecture`` return a value as annotations have it, or None.
    required: dict[str, str] = {}
    for name, request in asked.items():
        for selector in request.get("selectors") or ():
            text = str((selector.get("cel") or {}).get("expression", ""))
            match = _ATTRIBUTE_EQUALS.fullmatch(text)
            value = None
            if match is not None and match["domain"] == current_ledger().attribute_domain:
                # In an annotation ``*?[`` begin a pattern. In CEL they are plain characters, which no product has.
                normalise = values.architecture if match["name"] == "architecture" else values.product
                value = None if re.search(r"[*?\[]", match["value"]) else normalise(match["value"])
            if match is None or value is None:
                raise WordError(
                    f"request {shown(name)}: selector {shown(text)} is for the scheduler alone to judge; write "
                    f"{names.PRODUCT}, {names.ARCHITECTURE} or {names.MIN_MEMORY} on the pod instead"
                )
            # ``productName`` and ``boardName`` are both a product.
            field = "architecture" if match["name"] == "architecture" else "product"
            if required.setdefault(field, value) != value:
                raise WordError(
                    f"requests of several kinds of GPUs ({required[field]!r}, {value!r}); write one kind a pod, by one "
                    "name"
                )

    # 2. Compare them with the annotations.
    for field, value in required.items():
        annotated_value = getattr(words, field)
        if annotated_value and annotated_value != value:
            raise WordError(
                f"its selectors want {field} {value!r}, and the pod {annotated_value!r}; write one of the two"
            )
    return required


def required_properties(
    constraints: list[dict[str, Any]] | tuple[()], asked: Mapping[str, Mapping[str, Any]]
) -> tuple[Constraint, ...]:
    """Return the GPU properties that a template's constraints demand; the built claim has the pin in their place.

    Args:
        constraints: The constraints that are about GPUs.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: A constraint on another attribute, or on some of the requests only.
    """
    # A constraint without names is about all requests. The driver knows these properties for the whole set only.
    properties: list[Constraint] = []
    for constraint in constraints:
        attribute = constraint.get("matchAttribute")
        if attribute not in _PROPERTY_OF_ATTRIBUTE or set(constraint.get("requests") or asked) != set(asked):
            what = f"constraint {shown(str(attribute or constraint.get('distinctAttribute', '')))}"
            raise WordError(
                f"{what} cannot be placed, or not of some of the requests; write {names.REQUIRED} on the pod "
                f"instead, with {', '.join(Constraint)}"
            )
        properties.append(_PROPERTY_OF_ATTRIBUTE[attribute])
    return tuple(properties)


def request_of(
    words: Whole,
    asked: Mapping[str, Mapping[str, Any]],
    claim_config: opaque_config.ClaimConfig | None,
    fields: Mapping[str, str],
    required: tuple[Constraint, ...],
) -> Request:
    """Return the request that a template's requests for GPUs make: whole GPUs, shares or MIG slices, by class.

    Args:
        words: The pod's annotations, as a request for whole GPUs.
        asked: The ``exactly`` parts of the template's requests for GPUs, by name.
        claim_config: The template's configuration for this driver; None if it has none.
        fields: Product and architecture from selectors.
        required: The properties that the template's constraints demand.

    Raises:
        WordError: Several classes, too many GPUs, or properties of sets with a class of fractions.
    """
    device_classes = {str(exactly["deviceClassName"]) for exactly in asked.values()}
    if len(device_classes) > 1:
        raise WordError(
            f"requests of {' and '.join(sorted(device_classes))}: a pod gets one kind of these; use several pods"
        )
    device_class = device_classes.pop()
    counts = tuple(int(exactly.get("count", 1)) for exactly in asked.values())
    if sum(counts) > values.MOST_GPUS:
        raise WordError(f"{sum(counts)} GPUs in one claim, which can hold {values.MOST_GPUS}; use several pods")
    all_required = tuple(dict.fromkeys((*words.required, *required)))
    whole = msgspec.structs.replace(words, containers=counts, required=all_required, **fields)

    # 1. A class of whole GPUs. ``vendor_of`` has the vendor of each of these classes.
    if (vendor := current_ledger().vendor_of.get(device_class)) is not None:
        return _of_class_vendor(whole, vendor, device_class)

    # 2. A class of fractions. These take the common fields only (product, memory, versions): if a request with these
    # alone differs from ``whole``, something is set that is about sets of whole GPUs.
    common = {field: getattr(whole, field) for field in COMMON}
    if whole != msgspec.convert({"kind": "whole", "containers": counts} | common, Whole):
        raise WordError(
            f"the pod's words, or constraints, are about sets of whole GPUs, and its class is {device_class}"
        )

    # ``exactly_of`` has refused other classes, so a class that is not for shares is for MIG slices. Each request is a
    # container with one fraction.
    if device_class == names.SHARE_CLASS:
        amounts = tuple(_amount(name, exactly) for name, exactly in asked.items())
        return msgspec.convert({"kind": "share", "amounts": amounts} | common, Share)
    profiles = tuple((_profile(name, claim_config),) for name in asked)
    return msgspec.convert({"kind": "mig", "profiles": profiles} | common, Mig)


def _of_class_vendor(whole: Whole, vendor: str, kind: str) -> Whole:
    """Return a request for a vendor's GPUs, as the class says: words say nothing of any, or the same.

    Raises:
        WordError: They say another, or what cannot be had of that vendor's.
    """
    if whole.vendor not in (NVIDIA.word, vendor):
        raise WordError(
            f"its class {kind} is of {vendor}, and the pod's words say {whole.vendor}; write one of the two"
        )
    found = msgspec.structs.replace(whole, vendor=vendor)
    vendor_words.check(msgspec.structs.asdict(found), parts=False)
    return found


def _amount(name: str, exactly: Mapping[str, Any]) -> Amount:
    requested = (exactly.get("capacity") or {}).get("requests") or {}
    try:
        cores = quantity.whole(str(requested.get(names.CAPACITY_CORES, "0")))
        memory_mib = -(-quantity.whole(str(requested.get(names.CAPACITY_MEMORY, "0"))) // _MIB)
    except WordError as error:
        raise WordError(f"request {shown(name)}: capacity: {error}") from None
    if not 1 <= cores <= 100 or not 1 <= memory_mib <= values.MOST_MEMORY_MIB:
        raise WordError(
            f"request {shown(name)}: write capacity.requests with both {names.CAPACITY_CORES}, 1 to 100, and "
            f"{names.CAPACITY_MEMORY}, 1Mi or more"
        )
    return Amount(cores, memory_mib)


def _profile(name: str, claim_config: opaque_config.ClaimConfig | None) -> str:
    if claim_config is None or name not in claim_config.mig:
        raise WordError(
            f"request {shown(name)}: write its profile into the configuration for driver {names.DRIVER}: "
            f"mig: {{{name[:63]}: {{profile: 1g.10gb}}}}"
        )
    if claim_config.mig[name].starts:
        raise WordError(f"request {shown(name)}: starts of MIG slices are the controller's to write; remove them")
    return claim_config.mig[name].profile
