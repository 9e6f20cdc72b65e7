"""Reads a ResourceClaimTemplate as a pod's request, and builds the pod's claim from the template.

The controller calls it for pods whose GPUs it chooses. The scheduler supports all templates that the API allows. The
controller supports fewer: requests for the DeviceClasses of the allocating driver, by count or by amount. The
controller refuses all other templates, and advises what to write. Otherwise it would remove the scheduling gate of a
pod whose claim no node can satisfy, and the pod would wait for ever.
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
    """A ResourceClaimTemplate in the cluster cache.

    Attributes:
        metadata: The template's metadata, without labels and annotations.
        spec: Its ``spec`` as JSON: labels and annotations of its claims, and their spec. Empty if it is too long, None
            if the cache does not store it.
        static: Whether the controller created the template, for pods whose GPUs the scheduler chooses alone.
        digest: The digest of its spec (``same_spec.digest``), if the template has a name that the controller generates;
            else empty.
        domain: The uid of the ComputeDomain (multi-node NVLink) that its pods join (``compute_domains.domain_of``);
            None without one.
        nic_classes: The short name of the NIC driver by DeviceClass, from the policies in force.
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
    """The request that a template and the pod's annotations make together.

    Attributes:
        request: The request for the allocator: from the pod's annotations, with the template's amounts.
        requests: Names of the claim's requests.
        metadata: Labels and annotations for the claim, as the template's author wrote them. Labels and annotations
            under the driver's prefix are left out.
        devices: The fields, such as tolerations, that the claim copies from each request of the template, by the
            request's name.
        keep_env: Environment variables that no CDI edit may replace.
        nccl: The NCCL setting; None if the template has none.
        others: Configurations for other drivers.
        spec: The spec of a claim, as the template has it.
        nics: The NICs that the template requests; None without any.
        nic_entries: The template's requests for NICs, unchanged, by name.
        constraints: The template's constraints that are about NICs.
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
    """Read a ResourceClaimTemplate as a pod's request.

    If another driver allocates the GPUs, only whole GPUs are supported.

    Args:
        template: The template.
        words: The request of the pod's annotations, read as one for whole GPUs. The template replaces its amounts.

    Raises:
        WordError: The driver cannot place the template's requests. The message names the template and what to write
            instead.
    """
    try:
        return _read(template, words)
    except WordError as error:
        raise WordError(f"ResourceClaimTemplate {template.metadata.name}: {error}") from None


def _read(template: Template, words: Whole) -> TemplateRequest:
    """Return the request that a ResourceClaimTemplate and the pod's annotations make together.

    Requests for NICs and for GPUs are read separately, with their configuration and constraints.

    Args:
        template: The template.
        words: The pod's annotations, as a request for whole GPUs.

    Raises:
        WordError: The template cannot be read, or contradicts the annotations, or the driver cannot place it.
    """
    if not template.spec:  # the cluster cache keeps no spec that is too long
        raise WordError(f"the template has more than {LONGEST} bytes. Write a shorter one.")
    try:
        spec = _DECODER.decode(template.spec)
    except (ValueError, RecursionError) as error:
        raise WordError(f"the template cannot be read: {error}.") from None
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
        raise WordError(
            f"the template requests no GPU. Write a request with the class {current_ledger().device_class}."
        )
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
    """Return a template's labels or annotations, except those under the driver's prefix.

    The driver trusts such labels and annotations on a claim, so a user's template must not set them.

    Args:
        texts: The labels or annotations by name; None without any.
    """
    return {key: text for key, text in (texts or {}).items() if not key.startswith(names.PREFIX)}


def _split_config(
    entries: list[dict[str, Any]] | tuple[()], asked: Mapping[str, object]
) -> tuple[opaque_config.ClaimConfig | None, tuple[dict[str, Any], ...]]:
    """Return a template's configuration for this driver, and the entries for other drivers.

    The first value is None if the template configures only other drivers.

    Args:
        entries: The entries of the template's ``config``.
        asked: The template's requests for GPUs, by name.

    Raises:
        WordError: An entry is not one that the driver can use.
    """
    others = tuple(entry for entry in entries if (entry.get("opaque") or {}).get("driver") != names.DRIVER)
    for entry in others:
        if entry.get("opaque") and entry["opaque"].get("driver") == current_ledger().driver:
            _check_theirs(entry["opaque"].get("parameters"))
    own = [entry for entry in entries if entry not in others]
    if not own:
        return None, others
    if len(own) > 1 or set(own[0].get("requests") or asked) != set(asked):
        raise WordError(
            f"the template has several configurations for driver {names.DRIVER}. Write one for all requests."
        )
    claim_config = opaque_config.read(own[0]["opaque"].get("parameters"))
    if claim_config.order:
        raise WordError("only the controller writes the field order of the configuration. Remove it.")
    return claim_config, others


def _check_theirs(parameters: Any) -> None:
    """Raise if a template's configuration for another driver is not for whole GPUs.

    The other driver, such as NVIDIA's, allocates the GPUs of the claim. Only the ``kind`` of the configuration is
    checked. Its content says how the users of this claim share its GPUs, so it cannot affect other pods.

    Args:
        parameters: The ``opaque.parameters`` of that driver's entry in the template.

    Raises:
        WordError: The configuration's ``kind`` is not that of whole GPUs.
    """
    ledger = current_ledger()
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    if kind != ledger.config_kind:
        raise WordError(
            f"configuration {shown(str(kind or ''))} for driver {ledger.driver} is not for whole GPUs. Write "
            f"{ledger.config_kind}, or remove the pod's {names.PREFIX} annotations."
        )


def completed(
    claim: dict[str, Any], template_request: TemplateRequest, nics: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a pod's pinned claim, completed with the fields of its claim template.

    These are labels, annotations, tolerations, NIC requests and configuration for other drivers.

    Args:
        claim: The claim as ``claim_builder.pinned`` builds it from the template's request. If both have a field, this
            claim's field is kept.
        template_request: The request that was read from the template.
        nics: PCI addresses of the chosen NICs, by the name of the claim's request.
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
    """Return a claim with the labels and annotations of its claim template added.

    If both have a label or annotation of the same name, the claim's own value is kept.
    """
    metadata = claim["metadata"]
    return claim | {
        "metadata": metadata | {key: text | metadata[key] for key, text in template_request.metadata.items()}
    }
