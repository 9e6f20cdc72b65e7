"""A ResourceClaimTemplate of a pod whose GPUs the controller chooses: what it asks for, and the claim made from it.

The scheduler reads all that the API allows; the controller places what it can say in advance to fit: requests of the
classes of the driver whose devices are handed out, by count or amount. What it cannot promise is refused with the cure:
a pod that is lifted with a claim that no node can fill would wait for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dradriver.allocator.request import Amount, Constraint, Mig, Request, Share, Whole
from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.claims import compute_domains, nic_templates, opaque_config
from dradriver.api.vocabulary import values, vendor_words
from dradriver.api.vocabulary.container_requests import COMMON
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.nic_requests import NicAsk
from dradriver.topology.vendors import NVIDIA

LONGEST: Final = 1 << 14  # bytes of a template's spec; a longer one is not read

_PARTS: Final = (names.SHARE_CLASS, names.MIG_CLASS)
_KNOWN: Final = ("deviceClassName", "allocationMode", "count", "capacity", "tolerations", "selectors", "adminAccess")
_ALIKE: Final = {  # what constraints of claims say by attributes, in words
    names.NUMA_NODE: Constraint.SAME_NUMA,
    names.PCIE_ROOT: Constraint.SAME_PCIE_ROOT,
} | {
    f"{names.PREFIX}{links}{what}": Constraint.NVLINK
    for links in names.OF_LINKS
    for what in ("Domain", "Group2", "Group4", "Group8")
}
_EQUALS: Final = re.compile(
    r"""\s*device\.attributes\[(["'])(?P<domain>[a-z.]+)\1\]\.(?P<name>productName|boardName|architecture)"""
    r"""\s*==\s*(["'])(?P<value>[^"'\\]*)\4\s*"""
)
_MIB: Final = 1 << 20


class Template(msgspec.Struct, frozen=True):
    """A ResourceClaimTemplate as it is kept.

    Attributes:
        metadata: Without labels and annotations.
        spec: Its ``spec`` as JSON: labels and annotations of its claims, and their spec. Empty where that is too long,
            None where it is not kept.
        static: Whether the controller made it, for pods that the scheduler alone places.
        digest: What its spec is known by (``likeness.digest``), of one with a name that such pods would name.
        domain: The ComputeDomain whose channel it asks for (``compute_domains.domain_of``); None for any other.
        nic_classes: DeviceClasses of NICs, each with its driver's word, as the policies file in force says.
    """

    metadata: Metadata
    spec: bytes | None
    static: bool = False
    digest: str = ""
    domain: str | None = None
    nic_classes: Mapping[str, str] = {}


class _ClaimMetadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Devices(msgspec.Struct, frozen=True):
    requests: list[dict[str, Any]] | None = None
    constraints: list[dict[str, Any]] | None = None
    config: list[dict[str, Any]] | None = None


class _ClaimSpec(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _Spec(msgspec.Struct, frozen=True):
    spec: _ClaimSpec
    metadata: _ClaimMetadata = _ClaimMetadata()


class TemplateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod gets by a template.

    Attributes:
        request: What the allocator is asked: the pod's words, with the template's amounts.
        requests: Names of the claim's requests.
        metadata: Labels and annotations of the claim, as the template's author has them, but none under our prefix.
        devices: For each request what the claim takes over as it stands, by the request's name.
        keep_env: Variables that no edit may replace.
        nccl: What NCCL is told; None where the template does not say.
        others: Configurations for other drivers.
        spec: The spec of a claim as the template has it.
        nics: What it asks of NICs; None for nothing.
        nic_entries: Its requests for NICs as they stand, by name.
        constraints: Its constraints that are about NICs.
    """

    request: Request
    requests: tuple[str, ...]
    metadata: dict[str, dict[str, str]]
    devices: dict[str, dict[str, Any]]
    keep_env: tuple[str, ...] = ()
    nccl: str | None = None
    others: tuple[dict[str, Any], ...] = ()
    spec: dict[str, Any]
    nics: NicAsk | None = None
    nic_entries: dict[str, dict[str, Any]] = {}
    constraints: tuple[dict[str, Any], ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Spec)


def read(template: Template, words: Whole) -> TemplateRequest:
    """Return what a pod gets by a ResourceClaimTemplate; of another driver's devices there are whole GPUs only.

    Args:
        template: The template.
        words: What the pod's words say of a set of GPUs, whatever it is of.

    Raises:
        WordError: It asks for what cannot be placed; the message names the template and says what to write instead.
    """
    try:
        return _read(template, words)
    except WordError as error:
        raise WordError(f"ResourceClaimTemplate {template.metadata.name}: {error}") from None


def _read(template: Template, words: Whole) -> TemplateRequest:
    """Return what a ResourceClaimTemplate and the pod's annotations request together.

    Requests for NICs are read apart from those for GPUs. Configuration and constraints are sorted the same way.

    Args:
        template: The template.
        words: The pod's annotations, as a request for whole GPUs.

    Raises:
        WordError: The template cannot be read, or contradicts the annotations, or the driver cannot place it.
    """
    if not template.spec:
        raise WordError(f"more than {LONGEST} bytes; write a shorter one")
    try:
        spec = _DECODER.decode(template.spec)
    except (ValueError, RecursionError) as error:
        raise WordError(f"it cannot be read: {error}") from None
    devices = spec.spec.devices
    gpu_requests: dict[str, dict[str, Any]] = {}
    nic_entries: dict[str, dict[str, Any]] = {}
    for request in devices.requests or ():
        name = str(request.get("name", ""))
        if nic_templates.is_for_nics(request, template.nic_classes):
            nic_entries[name] = request
        else:
            gpu_requests[name] = _exactly(request)
    if not gpu_requests:
        raise WordError(f"it asks for no device; write a request of the class {current_ledger().device_class}")
    claim_config, others = _configured(devices.config or (), gpu_requests)
    constraints, about_nics = nic_templates.divided(devices.constraints or (), tuple(gpu_requests), nic_entries)
    nics = nic_templates.ask(nic_entries, about_nics, gpu_requests, template.nic_classes, near=words.near_nic)

    # "Near a NIC" now means the NICs of these requests, not any NIC of the machine.
    if nics is not None:
        words = msgspec.structs.replace(words, near_nic="")
    selected_kind = _selected(words, gpu_requests)
    required = _alike(constraints, gpu_requests)
    return TemplateRequest(
        request=_request(words, gpu_requests, claim_config, selected_kind, required),
        requests=tuple(gpu_requests),
        metadata={"labels": _theirs(spec.metadata.labels), "annotations": _theirs(spec.metadata.annotations)},
        devices={
            name: {key: exactly[key] for key in ("tolerations",) if exactly.get(key)}
            for name, exactly in gpu_requests.items()
        },
        keep_env=tuple(claim_config.keep_env) if claim_config is not None else (),
        nccl=claim_config.nccl if claim_config is not None and claim_config.nccl != values.NCCL_AUTO else None,
        others=others,
        spec=msgspec.json.decode(template.spec)["spec"],
        nics=nics,
        nic_entries=nic_entries,
        constraints=tuple(about_nics),
    )


def _theirs(texts: Mapping[str, str] | None) -> dict[str, str]:
    """Return a template's labels or annotations without those under our prefix, which are believed on a claim."""
    return {key: text for key, text in (texts or {}).items() if not key.startswith(names.PREFIX)}


def _exactly(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``exactly`` part of a request for GPUs, if the driver can place it.

    Raises:
        WordError: It has alternatives, another class, fields that only the scheduler reads, or an impossible count.
    """
    device_driver, where = current_ledger(), f"request {shown(str(request.get('name', '')))}"
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
    classes = (*device_driver.vendor_of, *(_PARTS if device_driver is OURS else ()))
    if exactly.get("deviceClassName") not in classes:
        raise WordError(
            f"{where}: class {shown(str(exactly.get('deviceClassName', '')))} is none of {', '.join(classes)}, and no "
            "class of NICs of the policies file (nics.classes); have a template of its own for other devices, or "
            f"remove the pod's {names.PREFIX} annotations"
        )
    if unknown_fields := sorted(set(exactly) - set(_KNOWN)):
        raise WordError(f"{where}: {shown(unknown_fields[0])} cannot be placed; remove it")
    if exactly.get("adminAccess"):
        raise WordError(f"{where}: adminAccess takes no GPU; remove the pod's {names.PREFIX} annotations")
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise WordError(f"{where}: allocationMode All cannot be placed; write count")
    count = exactly.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= values.MOST_GPUS:
        raise WordError(f"{where}: count {shown(str(count))}; write a whole number from 1 to {values.MOST_GPUS}")
    is_fraction = exactly["deviceClassName"] not in device_driver.vendor_of
    if is_fraction and count > 1:
        raise WordError(f"{where}: count {count} of parts of GPUs; write a request for each of them")
    if not is_fraction and exactly.get("capacity"):
        cure = f"write the class {names.SHARE_CLASS}, or none" if device_driver is OURS else f"write {names.MIN_MEMORY}"
        raise WordError(f"{where}: capacity asks for a part of a GPU; {cure}")
    return exactly


def _configured(
    entries: list[dict[str, Any]] | tuple[()], asked: Mapping[str, object]
) -> tuple[opaque_config.ClaimConfig | None, tuple[dict[str, Any], ...]]:
    """Return the configuration for this driver, and all entries for others."""
    others = tuple(entry for entry in entries if (entry.get("opaque") or {}).get("driver") != names.DRIVER)
    for entry in others:
        if entry.get("opaque") and entry["opaque"].get("driver") == current_ledger().driver:
            _check_theirs(entry["opaque"].get("parameters"))
    own = [entry for entry in entries if entry not in others]
    if not own:
        return None, others
    if len(own) > 1 or set(own[0].get("requests") or asked) != set(asked):
        raise WordError(f"write one configuration for driver {names.DRIVER}, for all requests")
    told = opaque_config.read(own[0]["opaque"].get("parameters"))
    if told.order:
        raise WordError("the configuration's order is the controller's to write; remove it")
    return told, others


def _check_theirs(parameters: Any) -> None:
    """Raise unless a driver prepares a whole GPU by this configuration of its own, as far as its kind says.

    How a claim's own users share its GPUs is in it: that takes nothing from anybody else.
    """
    ledger = current_ledger()
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    if kind != ledger.config_kind:
        raise WordError(
            f"configuration {shown(str(kind or ''))} for driver {ledger.driver} is for no whole GPU; write "
            f"{ledger.config_kind}, or remove the pod's {names.PREFIX} annotations"
        )


def _selected(words: Whole, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the product and architecture that selectors require, as fields of a request.

    Only selectors of the form ``attribute == value`` are read.

    Args:
        words: The pod's annotations, as a request for whole GPUs.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: Another selector, selectors that contradict each other, or that contradict the annotations.
    """
    required: dict[str, str] = {}
    for name, request in asked.items():
        for selector in request.get("selectors") or ():
            text = str((selector.get("cel") or {}).get("expression", ""))
            match = _EQUALS.fullmatch(text)
            value = None
            if match is not None and match["domain"] == current_ledger().attribute_domain:
                normalise = values.architecture if match["name"] == "architecture" else values.product
                value = None if re.search(r"[*?\[]", match["value"]) else normalise(match["value"])
            if match is None or value is None:
                raise WordError(
                    f"request {shown(name)}: selector {shown(text)} is for the scheduler alone to judge; write "
                    f"{names.PRODUCT}, {names.ARCHITECTURE} or {names.MIN_MEMORY} on the pod instead"
                )
            field = "architecture" if match["name"] == "architecture" else "product"
            if required.setdefault(field, value) != value:
                raise WordError(
                    f"requests of several kinds of GPUs ({required[field]!r}, {value!r}); write one kind a pod, by one "
                    "name"
                )
    for field, value in required.items():
        annotated_value = getattr(words, field)
        if annotated_value and annotated_value != value:
            raise WordError(
                f"its selectors want {field} {value!r}, and the pod {annotated_value!r}; write one of the two"
            )
    return required


def _alike(
    constraints: list[dict[str, Any]] | tuple[()], asked: Mapping[str, Mapping[str, Any]]
) -> tuple[Constraint, ...]:
    """Return what constraints on attributes come to in words; the claim has the pin in their place."""
    alike: list[Constraint] = []
    for constraint in constraints:
        attribute = constraint.get("matchAttribute")
        if attribute not in _ALIKE or set(constraint.get("requests") or asked) != set(asked):
            what = f"constraint {shown(str(attribute or constraint.get('distinctAttribute', '')))}"
            raise WordError(
                f"{what} cannot be placed, or not of some of the requests; write {names.REQUIRED} on the pod "
                f"instead, with {', '.join(Constraint)}"
            )
        alike.append(_ALIKE[attribute])
    return tuple(alike)


def _request(
    words: Whole,
    asked: Mapping[str, Mapping[str, Any]],
    told: opaque_config.ClaimConfig | None,
    fields: Mapping[str, str],
    required: tuple[Constraint, ...],
) -> Request:
    """Return the request of a template: whole GPUs, shares or MIG slices, by its device class.

    Args:
        words: The pod's annotations, as a request for whole GPUs.
        asked: The ``exactly`` parts of the template's requests for GPUs, by name.
        told: The template's configuration for this driver; None if it has none.
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

    # A class of whole GPUs.
    if (vendor := current_ledger().vendor_of.get(device_class)) is not None:
        return _of_vendor(whole, vendor, device_class)

    # Fractions take the common fields only. Anything else that is set is about sets of whole GPUs.
    common = {field: getattr(whole, field) for field in COMMON}
    if whole != msgspec.convert({"kind": "whole", "containers": counts} | common, Whole):
        raise WordError(
            f"the pod's words, or constraints, are about sets of whole GPUs, and its class is {device_class}"
        )

    # One class is left besides shares: MIG.
    if device_class == names.SHARE_CLASS:
        amounts = tuple(_amount(name, exactly) for name, exactly in asked.items())
        return msgspec.convert({"kind": "share", "amounts": amounts} | common, Share)
    profiles = tuple((_profile(name, told),) for name in asked)
    return msgspec.convert({"kind": "mig", "profiles": profiles} | common, Mig)


def _of_vendor(whole: Whole, vendor: str, kind: str) -> Whole:
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
    said = (exactly.get("capacity") or {}).get("requests") or {}
    try:
        cores = quantity.whole(str(said.get(names.CAPACITY_CORES, "0")))
        memory_mib = -(-quantity.whole(str(said.get(names.CAPACITY_MEMORY, "0"))) // _MIB)
    except WordError as error:
        raise WordError(f"request {shown(name)}: capacity: {error}") from None
    if not 1 <= cores <= 100 or not 1 <= memory_mib <= values.MOST_MEMORY_MIB:
        raise WordError(
            f"request {shown(name)}: write capacity.requests with both {names.CAPACITY_CORES}, 1 to 100, and "
            f"{names.CAPACITY_MEMORY}, 1Mi or more"
        )
    return Amount(cores, memory_mib)


def _profile(name: str, told: opaque_config.ClaimConfig | None) -> str:
    if told is None or name not in told.mig:
        raise WordError(
            f"request {shown(name)}: write its profile into the configuration for driver {names.DRIVER}: "
            f"mig: {{{name[:63]}: {{profile: 1g.10gb}}}}"
        )
    if told.mig[name].starts:
        raise WordError(f"request {shown(name)}: starts of MIG slices are the controller's to write; remove them")
    return told.mig[name].profile


def completed(
    claim: dict[str, Any], asked: TemplateRequest, nics: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a pod's pinned claim with its template's labels, tolerations and other drivers' configuration.

    Args:
        claim: The claim as ``claim_builder.pinned`` builds it of the template's request; what it says stands.
        asked: What was read of the template.
        nics: PCI addresses of the NICs that were chosen, by the claim's request.
    """
    spec = claim["spec"]["devices"]
    requests = [
        entry | {"exactly": asked.devices.get(entry["name"], {}) | entry["exactly"]} for entry in spec["requests"]
    ]
    devices: dict[str, Any] = {"requests": requests, "config": [*asked.others, *spec["config"]]}
    if asked.nics is not None:
        devices["requests"] = [*requests, *nic_templates.pinned(asked.nics, asked.nic_entries, nics)]
        if asked.constraints:
            devices["constraints"] = list(asked.constraints)
        # Which requests were chosen for: what an author writes in others may look like a pin (``pins.pin``).
        chosen_for = [*(entry["name"] for entry in requests), *(name for name in asked.nic_entries if nics.get(name))]
        devices["config"][-1] = devices["config"][-1] | {"requests": chosen_for}
    return marked(claim, asked) | {"spec": {"devices": devices}}


def marked(claim: dict[str, Any], asked: TemplateRequest) -> dict[str, Any]:
    """Return a claim with its template's labels and annotations in addition to its own, which win."""
    metadata = claim["metadata"]
    return claim | {"metadata": metadata | {key: text | metadata[key] for key, text in asked.metadata.items()}}
