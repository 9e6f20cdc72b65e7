"""Builds a claim for pods that only the scheduler places: the request as a list of alternatives.

The *note* is the annotation with a pod's resolved request, which the webhook writes. The scheduler can only compare
attribute values for equality, and takes the first devices that match. So a required property becomes a constraint: all
devices must be in the same group, and slices publish the groups as attributes. A preferred property becomes an
alternative, and the scheduler takes the first alternative that fits (KEP-4816). Each alternative is one request with a
count: with N requests for one device each, the scheduler's search takes exponential time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.allocator.request import NEAR_REQUIRED, Amount, Constraint, Mig, Request, Share, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import exclusive, opaque_config
from dradriver.api.pod.resolved import Resolved
from dradriver.api.slices.device_attributes import semver
from dradriver.api.vocabulary import vendor_words
from dradriver.api.vocabulary.container_requests import request_names
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.values import NCCL_AUTO
from dradriver.topology.vendors import AMD, VENDORS

VERSION: Final = 5
"""To be raised with every change of what ``spec`` returns: templates never change, and pods would share an old one.

It is in the note of a pod that the scheduler alone places, and so in the name of its template. Another release's
controller makes the template of an older note by today's ladder, and leaves a newer note to its own."""
MOST_ALTERNATIVES: Final = 8  # FirstAvailableDeviceRequestMaxSize of resource.k8s.io/v1

_GROUP_SIZES: Final = (2, 4, 8)  # sizes of the groups of well-linked GPUs that slices publish
_DEFAULT_PREFERENCES: Final = (
    Constraint.NVLINK,
    Constraint.SAME_NUMA,
)  # what the best set that is free tries, of those who say nothing
_ANY: Final = "any"


class _Alternative(NamedTuple):
    """One alternative of a claim's request: its name, and an attribute of devices.

    All devices of the alternative must have an equal value of the attribute. Without an attribute any devices match.
    """

    name: str
    attribute: str | None


def spec(resolved: Resolved, *, keep_env: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the spec of a claim with alternatives, one of which the scheduler chooses.

    Each preferred property becomes an alternative (``firstAvailable``), the best first. Annotations that only the
    driver's own choice can follow (``strategy``, weights) are left out.

    Args:
        resolved: The pod's resolved request.
        keep_env: The author's environment variables that no CDI edit may replace.

    Raises:
        WordError: A claim cannot express an annotation; the message names it.
    """
    request = resolved.request
    amounts: tuple[int | Amount, ...] = _amounts_by_request(request)
    # By the claim's request, one for each container: a number of GPUs or a share.
    requests = dict(zip(_request_names(resolved), amounts, strict=True))
    selectors = [{"cel": {"expression": text}} for text in _device_conditions(request)]
    exactly_of_request = {
        name: _exactly_of(amount, request.vendor) | ({"selectors": selectors} if selectors else {})
        for name, amount in requests.items()
    }

    # A set of GPUs: required properties are constraints on all its devices. Each preferred one is an alternative, with
    # a constraint on the devices of this alternative alone (``request/alternative``).
    constraints: list[dict[str, Any]] = []
    alternatives: list[_Alternative] = []
    if isinstance(request, Whole) and request.gpus > 1:
        constraints = [
            {"requests": list(exactly_of_request), "matchAttribute": attribute}
            for attribute in _required_attributes(request)
        ]
        alternatives = _preferred_alternatives(request)
    for alternative in alternatives:
        if alternative.attribute is not None:
            constraints.append(
                {
                    "requests": [f"{name}/{alternative.name}" for name in exactly_of_request],
                    "matchAttribute": alternative.attribute,
                }
            )

    # A request has either a list of alternatives or a single ``exactly``.
    built = [
        {"name": name, "firstAvailable": [{"name": alternative.name} | exactly for alternative in alternatives]}
        if alternatives
        else {"name": name, "exactly": exactly}
        for name, exactly in exactly_of_request.items()
    ]
    # The scheduler chooses the GPUs, so there is no order of ranks.
    opaque = opaque_config.make(order={}, keep_env=sorted(keep_env), nccl=_nccl_setting(resolved))
    devices: dict[str, Any] = {"requests": built}
    if constraints:
        devices["constraints"] = constraints
    devices["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": opaque}}]
    return {"devices": devices}


def demanding(spec: Mapping[str, Any], request: Request, requests: Collection[str] | None = None) -> dict[str, Any]:
    """Return a template's claim spec with the conditions that the pod's annotations require added.

    Preferred properties are ignored, because the template's requests are ``exactly`` requests, without alternatives.

    Args:
        spec: The template's spec, which ``claim_templates.read`` has read.
        request: The request from the pod's annotations and the template.
        requests: Names of the template's requests for GPUs; None for all requests.

    Raises:
        WordError: A claim cannot express an annotation.
    """
    required: list[str] = []
    if isinstance(request, Whole):
        _refuse_not_expressible(request)
        required = _required_attributes(request) if request.gpus > 1 else []

    # A MIG device publishes its own memory, if any, and not that of its GPU.
    elif isinstance(request, Mig) and request.min_memory_mib:
        raise _not_expressible(f"{names.MIN_MEMORY} of MIG slices", f"Write {names.PRODUCT}.")
    devices: dict[str, Any] = dict(spec["devices"])
    constrained_attributes = {constraint.get("matchAttribute") for constraint in devices.get("constraints") or ()}

    # The template may have some of the constraints already.
    if missing_attributes := [attribute for attribute in required if attribute not in constrained_attributes]:
        gpu_names = [entry["name"] for entry in devices["requests"] if requests is None or entry["name"] in requests]
        constraints = [{"requests": gpu_names, "matchAttribute": attribute} for attribute in missing_attributes]
        devices["constraints"] = [*(devices.get("constraints") or ()), *constraints]
    selectors = [{"cel": {"expression": text}} for text in _device_conditions(request)]

    def with_selectors(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        if requests is not None and entry["name"] not in requests:
            return entry
        exactly = entry["exactly"]
        return {**entry, "exactly": exactly | {"selectors": [*(exactly.get("selectors") or ()), *selectors]}}

    if selectors:
        devices["requests"] = [with_selectors(entry) for entry in devices["requests"]]
    return {**spec, "devices": devices}


TEMPLATE_NAME: Final = re.compile(re.escape(names.CLAIM_PREFIX) + "[a-z2-7]{16}")
"""What ``template_name`` returns; an admission policy keeps others from such names."""


def template_name(note: str) -> str:
    """Return the name of the claim template for pods with ``note``: a hash of it.

    The note is the annotation with a pod's resolved request. So pods with equal notes share one template. Every release
    computes the same name for a note, even if that release builds another template from the note.
    """
    return names.CLAIM_PREFIX + base64.b32encode(hashlib.sha256(note.encode()).digest())[:16].decode().lower()


def template(namespace: str, note: str, resolved: Resolved) -> dict[str, Any]:
    """Return the ResourceClaimTemplate, with alternatives, for pods that only the scheduler places.

    Args:
        namespace: The pods' namespace.
        note: The text of the pods' note. The template's name is a hash of it.
        resolved: The resolved request in the note.

    Raises:
        WordError: A claim cannot express an annotation.
    """
    keep_env = () if resolved.keep_env is msgspec.UNSET else resolved.keep_env
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": template_name(note),
            "namespace": namespace,
            "labels": {names.LABEL: names.LABEL_STATIC},
        },
        "spec": {"spec": spec(resolved, keep_env=keep_env)},
    }


def _request_names(resolved: Resolved) -> list[str]:
    return [name for own in request_names(resolved.asked).values() for name in own]


def _amounts_by_request(request: Request) -> tuple[int, ...] | tuple[Amount, ...]:
    vendor_words.check(msgspec.structs.asdict(request), parts=not isinstance(request, Whole))
    if isinstance(request, Whole):
        _refuse_not_expressible(request)
        return request.containers
    if not isinstance(request, Share):
        raise _not_expressible("MIG slices", f"Create a ResourceClaimTemplate with the class {names.MIG_CLASS}.")
    for amount in request.amounts:
        if not amount.cores or not amount.memory_mib:
            raise WordError(
                f"a share that kube-scheduler places needs both compute and memory, because the driver cannot derive "
                f"one from the other without a GPU. Write {names.SHARE_CORES} and {names.SHARE_MEMORY}."
            )
    return request.amounts


def _refuse_not_expressible(request: Whole) -> None:
    if request.min_busbw_gbps:
        raise _not_expressible(names.MIN_BUSBW, f"Write {names.MIN_BANDWIDTH}.")
    if request.max_cross_nvswitch_gpus is not None:
        raise _not_expressible(names.MAX_CROSS_NVSWITCH, f"Write {names.REQUIRED}: {Constraint.NVLINK}.")
    if request.near_nic == NEAR_REQUIRED:
        raise _not_expressible(
            f"{names.NEAR_NIC}: {NEAR_REQUIRED}", f"Write {names.REQUIRED}: {Constraint.SAME_PCIE_ROOT}."
        )


def _exactly_of(asked: int | Amount, vendor: str) -> dict[str, Any]:
    if isinstance(asked, int):
        return {"deviceClassName": VENDORS[vendor].device_class, "allocationMode": "ExactCount", "count": asked}
    amounts = {names.CAPACITY_CORES: str(asked.cores), names.CAPACITY_MEMORY: f"{asked.memory_mib}Mi"}
    share = {"deviceClassName": names.SHARE_CLASS, "allocationMode": "ExactCount", "count": 1}
    return share | {"capacity": {"requests": amounts}}


def _preferred_alternatives(request: Whole) -> list[_Alternative]:
    """Return the alternatives of a request for whole GPUs, the best first.

    A request that neither prefers nor requires anything has default preferences. The result is empty if the request
    only has required properties.
    """
    preferred: tuple[Constraint, ...] = request.preferred
    if request.prefer_same_numa:
        preferred = (*preferred, Constraint.SAME_NUMA)
    if not (preferred or request.required or request.min_bandwidth_gbps):
        preferred = _DEFAULT_PREFERENCES
    preferred = tuple(constraint for constraint in dict.fromkeys(preferred) if constraint not in request.required)
    if not preferred:
        return []
    alternatives = [_Alternative(constraint.value, _attribute(constraint, request.gpus)) for constraint in preferred]
    return [*alternatives, _Alternative(_ANY, None)][-MOST_ALTERNATIVES:]


def _required_attributes(request: Whole) -> list[str]:
    """Return the device attributes that must be equal for all GPUs of a request.

    Each attribute numbers a group of GPUs, such as an NVLink set. Equal values meet a required property.
    """
    required = [_attribute(constraint, request.gpus) for constraint in request.required]
    if request.min_bandwidth_gbps:
        required.append(_attribute(Constraint.NVLINK, request.gpus))
    return list(dict.fromkeys(required))


def _attribute(constraint: Constraint, gpus: int) -> str:
    match constraint:
        case Constraint.NVLINK:
            size = _group_size(gpus)
            return (
                f"{names.ATTRIBUTE_DOMAIN}/nvlinkDomain"
                if size is None
                else f"{names.ATTRIBUTE_DOMAIN}/nvlinkGroup{size}"
            )
        case Constraint.SAME_NUMA:
            return names.NUMA_NODE
        case Constraint.SAME_PCIE_ROOT:
            return names.PCIE_ROOT
        case Constraint.SAME_PCIE_SWITCH:
            raise _not_expressible(constraint.value, f"Write {Constraint.SAME_PCIE_ROOT}.")


def _group_size(gpus: int) -> int | None:
    """Return the size of the smallest group of linked GPUs that has room for this many GPUs.

    Slices publish groups of 2, 4 and 8 GPUs. None for more than 8 GPUs.
    """
    return next((size for size in _GROUP_SIZES if size >= gpus), None)


def _device_conditions(request: Request) -> list[str]:
    """Return the conditions that each device of a request must meet, as CEL expressions.

    Text from a pod is inserted into an expression only as a JSON string.
    """
    attributes = f'device.attributes["{names.ATTRIBUTE_DOMAIN}"]'

    # Some GPUs are shared by one namespace at a time. The scheduler does not know the namespace of the fractions on a
    # GPU, so a request for a fraction excludes these GPUs.
    expressions = [] if isinstance(request, Whole) else [exclusive.ELSEWHERE]

    # The conditions use ``has()`` and not ``?.``. The API server does not know the maximum length of a value that is
    # read by ``?.``, and refuses functions on it as too costly.
    if request.product:
        if re.search(r"[*?\[]", request.product):
            comparison = f".matches({_cel_string(_regex_of_glob(request.product))})"
        else:
            comparison = f" == {_cel_string(request.product)}"
        product_attributes = ("productName", "boardName") if request.vendor == AMD.word else ("productName",)
        conditions = [f"has({attributes}.{name}) && {attributes}.{name}{comparison}" for name in product_attributes]
        expressions.append(
            conditions[0] if len(conditions) == 1 else " || ".join(f"({condition})" for condition in conditions)
        )
    if request.architecture:
        name = f"{attributes}.architecture"
        expressions.append(f"has({name}) && {name}.lowerAscii() == {_cel_string(request.architecture.lower())}")
    if request.min_memory_mib:
        memory = f'device.capacity["{names.ATTRIBUTE_DOMAIN}"].?memory'
        expressions.append(
            f'{memory}.hasValue() && {memory}.value().compareTo(quantity("{request.min_memory_mib}Mi")) >= 0'
        )
    # Versions are attributes in semantic version 2.0.0. ``semver`` writes NVIDIA's versions so.
    for attribute, minimum in (("driverVersion", request.min_driver), ("cudaDriverVersion", request.min_cuda)):
        if minimum:
            name = f"{attributes}.{attribute}"
            expressions.append(f'has({name}) && {name}.compareTo(semver("{semver(minimum)}")) >= 0')

    # Slices publish two rates of the group of 2, 4 or 8 well-linked GPUs that a GPU is in: that of the group's ring,
    # and that of the weakest link between any two of its GPUs. A set that is smaller than its group needs the second.
    if isinstance(request, Whole) and (least_link_gbps := _least_link_gbps(request)):
        size = _group_size(request.gpus)
        bandwidth_attribute = f"nvlinkGroup{size}GBps" if size == request.gpus else f"nvlinkGroup{size}AnyGBps"
        expressions.append(f"{attributes}.?{bandwidth_attribute}.orValue(0) >= {least_link_gbps}")
    return expressions


def larger_group(request: Request) -> int | None:
    """Return the size of the group of linked GPUs that is larger than the request.

    For a request of 5 linked GPUs the result is 8, and the scheduler takes any 5 GPUs of a group of 8. The GPUs of a
    group have a ring of links, but some pairs may have no link. So the caller must require that all pairs have one.

    Returns:
        None if the request needs no links, if a group has exactly as many GPUs as the request needs, or if every group
        has fewer.
    """
    if not isinstance(request, Whole) or request.gpus < 2:
        return None
    demanded = Constraint.NVLINK in request.required or request.min_bandwidth_gbps
    size = _group_size(request.gpus)
    return size if demanded and size != request.gpus else None


def _least_link_gbps(request: Whole) -> int:
    """Return the lowest link rate, in GB/s, that the GPUs of a request must publish; 0 for no condition.

    Raises:
        WordError: A claim cannot express the required links or bandwidth.
    """
    if request.gpus == 1:
        return 0
    if not VENDORS[request.vendor].rated:  # and so nothing says which two of a group have a link
        if (size := larger_group(request)) is not None:
            raise _not_expressible(
                f"{names.REQUIRED}: nvlink of {request.gpus} GPUs of {request.vendor}", f"Request {size} GPUs."
            )
        return 0
    if request.min_bandwidth_gbps:
        if _group_size(request.gpus) is None:
            raise _not_expressible(f"{names.MIN_BANDWIDTH} of {request.gpus} GPUs", f"Write {names.REQUIRED}: nvlink.")
        return math.ceil(request.min_bandwidth_gbps)
    return int(larger_group(request) is not None)


def _regex_of_glob(glob: str) -> str:
    """Return a regular expression (RE2) that matches a text exactly if the glob matches it.

    Raises:
        WordError: The glob has a set of characters (``[ab]``), which globs and RE2 read differently.
    """
    if "[" in glob:
        raise WordError(
            f"{names.PRODUCT}: {shown(glob)}: kube-scheduler reads only * and ? in a pattern. Write the pattern "
            f"without [ ]."
        )
    return "^" + "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in glob) + "$"


def _cel_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _nccl_setting(resolved: Resolved) -> str:
    return resolved.nccl if isinstance(resolved.nccl, str) else NCCL_AUTO


def _not_expressible(word: str, cure: str) -> WordError:
    return WordError(
        f"{word} is not possible if kube-scheduler chooses the GPUs, because it takes the first that fit. {cure}"
    )
