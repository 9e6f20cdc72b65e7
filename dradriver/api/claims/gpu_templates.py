"""Reads the requests for GPUs in a ResourceClaimTemplate as a request of this driver. ``claim_templates`` calls it."""

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
        WordError: The request has alternatives, the DeviceClass of another driver, fields that only the scheduler
            reads, or an impossible count.
    """
    # ``driver`` is the DRA driver that allocates the GPUs, by the process's option ``--allocating-driver``: this one
    # (``OURS``), NVIDIA's or AMD's. Only this one has classes for parts of GPUs.
    driver, named_request = current_ledger(), f"request {shown(str(request.get('name', '')))}"
    if "firstAvailable" in request:
        raise WordError(
            f"{named_request}: only kube-scheduler can try the alternatives of firstAvailable. Write exactly, and "
            f"write the alternatives as {names.PREFERRED} on the pod. Or remove the pod's {names.PREFIX} annotations."
        )
    exactly = request.get("exactly")
    if not isinstance(exactly, dict):
        raise WordError(f"{named_request}: the field exactly is missing. Write it with deviceClassName and count.")
    if exactly.get("deviceClassName") == compute_domains.DEVICE_CLASS:
        raise WordError(
            f"{named_request}: a channel of multi-node NVLink is not a GPU. Give the containers a limit "
            f"{names.GPU_RESOURCE}, or name the claim with the GPUs as {names.CLAIM}. Then delete the pod and create "
            f"it again."
        )
    classes = (*driver.vendor_of, *(_FRACTION_CLASSES if driver is OURS else ()))
    if exactly.get("deviceClassName") not in classes:
        raise WordError(
            f"{named_request}: class {shown(str(exactly.get('deviceClassName', '')))} is neither a GPU class "
            f"({', '.join(classes)}) nor a NIC class of the policies file (nics.classes). Write a template of its own "
            f"for other devices, or remove the pod's {names.PREFIX} annotations."
        )
    if unknown_fields := sorted(set(exactly) - set(_KNOWN_FIELDS)):
        raise WordError(
            f"{named_request}: the driver cannot place a request with the field {shown(unknown_fields[0])}. Remove it."
        )
    if exactly.get("adminAccess"):
        raise WordError(
            f"{named_request}: a request with adminAccess allocates no GPU. Remove the pod's {names.PREFIX} "
            f"annotations."
        )
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise WordError(
            f"{named_request}: the driver cannot place a request with allocationMode All. Write count instead."
        )
    count = exactly.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= values.MOST_GPUS:
        raise WordError(
            f"{named_request}: {shown(str(count))} is not a valid count. Write a whole number from 1 to "
            f"{values.MOST_GPUS}."
        )
    # ``vendor_of`` has the classes of whole GPUs, so any other class is one of parts.
    is_fraction = exactly["deviceClassName"] not in driver.vendor_of
    if is_fraction and count > 1:
        raise WordError(
            f"{named_request}: count {count} is not possible for fractions of GPUs. Write one request for each "
            f"fraction."
        )
    if not is_fraction and exactly.get("capacity"):
        cure = f"Write the class {names.SHARE_CLASS}, or remove it." if driver is OURS else f"Write {names.MIN_MEMORY}."
        raise WordError(f"{named_request}: capacity requests a fraction of a GPU, and the class has whole GPUs. {cure}")
    return exactly


def selected_kind(words: Whole, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the GPU product and architecture that a template's selectors require.

    The keys of the result are ``product`` and ``architecture``, as far as selectors require them. Only selectors of the
    form ``attribute == value`` are read.

    Args:
        words: The pod's annotations. They are read as a request for whole GPUs, whatever the template requests.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: A selector has another form, or selectors contradict each other or the annotations.
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
                    f"request {shown(name)}: only kube-scheduler can evaluate the selector {shown(text)}. Write "
                    f"{names.PRODUCT}, {names.ARCHITECTURE} or {names.MIN_MEMORY} on the pod instead."
                )
            # ``productName`` and ``boardName`` are both a product.
            field = "architecture" if match["name"] == "architecture" else "product"
            if required.setdefault(field, value) != value:
                raise WordError(
                    f"the requests select different GPUs ({required[field]!r}, {value!r}). Select one kind of GPU in "
                    f"a pod, and use the same name in each request."
                )

    # 2. Compare them with the annotations.
    for field, value in required.items():
        annotated_value = getattr(words, field)
        if annotated_value and annotated_value != value:
            raise WordError(
                f"its selectors require {field} {value!r}, and the pod requires {annotated_value!r}. Write only one "
                f"of the two."
            )
    return required


def required_properties(
    constraints: list[dict[str, Any]] | tuple[()], asked: Mapping[str, Mapping[str, Any]]
) -> tuple[Constraint, ...]:
    """Return the properties, such as NVLink, that a template's constraints require of its GPUs.

    The built claim does not have these constraints: it names only GPUs that have the properties.

    Args:
        constraints: The template's constraints that are about GPUs.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: A constraint is on another attribute, or on some of the requests only.
    """
    # A constraint without names is about all requests. The driver knows these properties for the whole set only.
    properties: list[Constraint] = []
    for constraint in constraints:
        attribute = constraint.get("matchAttribute")
        if attribute not in _PROPERTY_OF_ATTRIBUTE or set(constraint.get("requests") or asked) != set(asked):
            what = f"constraint {shown(str(attribute or constraint.get('distinctAttribute', '')))}"
            raise WordError(
                f"the driver cannot place {what}, or the constraint does not cover all requests. Write "
                f"{names.REQUIRED} on the pod instead, with one or several of: {', '.join(Constraint)}."
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
    """Return a template's requests for GPUs as one request: whole GPUs, shares or MIG slices.

    Args:
        words: The pod's annotations. They are read as a request for whole GPUs, whatever the template requests.
        asked: The ``exactly`` parts of the template's requests for GPUs, by name. Their DeviceClass says whether they
            are for whole GPUs, shares or MIG slices.
        claim_config: The template's configuration for this driver; None if it has none.
        fields: Product and architecture from selectors.
        required: The properties that the template's constraints demand.

    Raises:
        WordError: The requests have several classes or too many GPUs, or require links between shares or MIG slices.
    """
    device_classes = {str(exactly["deviceClassName"]) for exactly in asked.values()}
    if len(device_classes) > 1:
        raise WordError(
            f"the requests have the classes {' and '.join(sorted(device_classes))}. A pod gets devices of one class. "
            f"Use one pod for each class."
        )
    device_class = device_classes.pop()
    counts = tuple(int(exactly.get("count", 1)) for exactly in asked.values())
    if sum(counts) > values.MOST_GPUS:
        raise WordError(
            f"the claim requests {sum(counts)} GPUs. A claim can have at most {values.MOST_GPUS}. Use several pods."
        )
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
            f"the pod's annotations, or the template's constraints, are about sets of whole GPUs, and the template's "
            f"class is {device_class}. Remove them, or use the class of whole GPUs."
        )

    # ``exactly_of`` has refused other classes, so a class that is not for shares is for MIG slices. Each request is a
    # container with one fraction.
    if device_class == names.SHARE_CLASS:
        amounts = tuple(_amount(name, exactly) for name, exactly in asked.items())
        return msgspec.convert({"kind": "share", "amounts": amounts} | common, Share)
    profiles = tuple((_profile(name, claim_config),) for name in asked)
    return msgspec.convert({"kind": "mig", "profiles": profiles} | common, Mig)


def _of_class_vendor(whole: Whole, vendor: str, kind: str) -> Whole:
    """Return the request ``whole`` with the vendor of the template's DeviceClass, ``kind``.

    The annotations must name no vendor or the same one.

    Raises:
        WordError: The annotations name another vendor, or require a property that this vendor's GPUs do not have.
    """
    if whole.vendor not in (NVIDIA.word, vendor):
        raise WordError(
            f"its class {kind} is for GPUs of {vendor}, and the pod's annotations request {whole.vendor}. Write only "
            f"one of the two."
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
            f"request {shown(name)}: a share needs compute and memory. Write capacity.requests with "
            f"{names.CAPACITY_CORES} (1 to 100) and {names.CAPACITY_MEMORY} (at least 1Mi)."
        )
    return Amount(cores, memory_mib)


def _profile(name: str, claim_config: opaque_config.ClaimConfig | None) -> str:
    if claim_config is None or name not in claim_config.mig:
        raise WordError(
            f"request {shown(name)}: its MIG profile is missing. Write it into the configuration for driver "
            f"{names.DRIVER}: mig: {{{name[:63]}: {{profile: 1g.10gb}}}}."
        )
    if claim_config.mig[name].starts:
        raise WordError(f"request {shown(name)}: only the controller writes starts of MIG slices. Remove them.")
    return claim_config.mig[name].profile
