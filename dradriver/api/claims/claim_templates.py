"""A ResourceClaimTemplate of a pod whose GPUs the controller chooses: what it asks for, and the claim made from it.

The scheduler reads all that the API allows; the controller places what it can say in advance to fit: requests of the
classes of the driver whose devices are handed out, by count or amount. What it cannot promise is refused with the cure:
a pod that is lifted with a claim that no node can fill would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.claims import gpu_templates, nic_templates, opaque_config
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.nic_requests import NicAsk

LONGEST: Final = 1 << 14  # bytes of a template's spec; a longer one is not read


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
    """Read a claim template (ResourceClaimTemplate) as a pod's request; of another driver's devices, whole GPUs only.

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

    Requests for NICs and for GPUs are read separately, with their configuration and constraints.

    Args:
        template: The template.
        words: The pod's annotations, as a request for whole GPUs.

    Raises:
        WordError: The template cannot be read, or contradicts the annotations, or the driver cannot place it.
    """
    if not template.spec:  # the cluster cache keeps no spec that is too long
        raise WordError(f"more than {LONGEST} bytes; write a shorter one")
    try:
        spec = _DECODER.decode(template.spec)
    except (ValueError, RecursionError) as error:
        raise WordError(f"it cannot be read: {error}") from None
    devices = spec.spec.devices  # a template's spec has the spec of its claims

    # 1. Divide requests, configuration and constraints into those for GPUs and those for NICs.
    gpu_requests: dict[str, dict[str, Any]] = {}  # the ``exactly`` part of each request, by its name
    nic_entries: dict[str, dict[str, Any]] = {}  # the whole entry of each request, by its name
    for request in devices.requests or ():
        name = str(request.get("name", ""))
        if nic_templates.is_for_nics(request, template.nic_classes):
            nic_entries[name] = request
        else:
            gpu_requests[name] = gpu_templates.exactly_of(request)
    if not gpu_requests:
        raise WordError(f"it asks for no device; write a request of the class {current_ledger().device_class}")
    # The configuration for this driver (None without one), and the entries for other drivers.
    claim_config, other_configs = _split_config(devices.config or (), gpu_requests)
    # A constraint about NICs and all GPUs is in both lists.
    gpu_constraints, nic_constraints = nic_templates.divided(
        devices.constraints or (), tuple(gpu_requests), nic_entries
    )
    nics = nic_templates.ask(nic_entries, nic_constraints, gpu_requests, template.nic_classes, near=words.near_nic)

    # 2. Read the request for GPUs. If the claim requests NICs, "near a NIC" is about these NICs. So it is part of
    #    ``nics``, and no longer part of the request for GPUs.
    if nics is not None:
        words = msgspec.structs.replace(words, near_nic="")
    selected_kind = gpu_templates.selected_kind(words, gpu_requests)
    required = gpu_templates.required_properties(gpu_constraints, gpu_requests)
    return TemplateRequest(
        request=gpu_templates.request_of(words, gpu_requests, claim_config, selected_kind, required),
        requests=tuple(gpu_requests),
        metadata={
            "labels": _without_our_prefix(spec.metadata.labels),
            "annotations": _without_our_prefix(spec.metadata.annotations),
        },
        # What the claim copies from the template. The controller writes everything else.
        devices={
            name: {key: exactly[key] for key in ("tolerations",) if exactly.get(key)}
            for name, exactly in gpu_requests.items()
        },
        keep_env=tuple(claim_config.keep_env) if claim_config is not None else (),
        nccl=claim_config.nccl if claim_config is not None and claim_config.nccl != values.NCCL_AUTO else None,
        others=other_configs,
        spec=msgspec.json.decode(template.spec)["spec"],
        nics=nics,
        nic_entries=nic_entries,
        constraints=tuple(nic_constraints),
    )


def _without_our_prefix(texts: Mapping[str, str] | None) -> dict[str, str]:
    """Return a template's labels or annotations without those under our prefix, which are believed on a claim."""
    return {key: text for key, text in (texts or {}).items() if not key.startswith(names.PREFIX)}


def _split_config(
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
    claim_config = opaque_config.read(own[0]["opaque"].get("parameters"))
    if claim_config.order:
        raise WordError("the configuration's order is the controller's to write; remove it")
    return claim_config, others


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


def completed(
    claim: dict[str, Any], template_request: TemplateRequest, nics: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a pod's pinned claim with its claim template's labels, tolerations and other drivers' configuration.

    Args:
        claim: The claim as ``claim_builder.pinned`` builds it of the template's request; what it says stands.
        template_request: What was read of the template.
        nics: PCI addresses of the NICs that were chosen, by the claim's request.
    """
    pinned_devices = claim["spec"]["devices"]
    requests = [
        entry | {"exactly": template_request.devices.get(entry["name"], {}) | entry["exactly"]}
        for entry in pinned_devices["requests"]
    ]
    devices: dict[str, Any] = {"requests": requests, "config": [*template_request.others, *pinned_devices["config"]]}
    if template_request.nics is not None:
        devices["requests"] = [
            *requests,
            *nic_templates.pinned(template_request.nics, template_request.nic_entries, nics),
        ]
        if template_request.constraints:
            devices["constraints"] = list(template_request.constraints)
        # Which requests were chosen for: what an author writes in others may look like a pin (``pins.pin``).
        chosen_for = [
            *(entry["name"] for entry in requests),
            *(name for name in template_request.nic_entries if nics.get(name)),
        ]
        devices["config"][-1] = devices["config"][-1] | {"requests": chosen_for}
    return marked(claim, template_request) | {"spec": {"devices": devices}}


def marked(claim: dict[str, Any], template_request: TemplateRequest) -> dict[str, Any]:
    """Return a claim with its claim template's labels and annotations in addition to its own, which win."""
    metadata = claim["metadata"]
    return claim | {
        "metadata": metadata | {key: text | metadata[key] for key, text in template_request.metadata.items()}
    }
