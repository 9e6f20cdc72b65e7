"""CREATE and UPDATE of claims and templates: reads this driver's opaque configuration strictly.

Without this check a typing error would show only on the node, after the pod was bound, and few people look there.

This module also refuses some claims for which the scheduler chooses the GPUs. They could get a fraction of a GPU whose
fractions are exclusive to one namespace at a time. On the node it is too late to refuse them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import exclusive, opaque_config
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import messages
from dradriver.api.vocabulary.messages import MOST_SHOWN
from dradriver.counted import first_of
from dradriver.yamltext.value_hints import hint

MOST_BYTES: Final = 3 << 19  # of JSON in a spec; etcd stores no larger object


class _Opaque(msgspec.Struct, frozen=True, gc=False):
    driver: str = ""
    parameters: Raw = Raw(b"null")


class _Config(msgspec.Struct, frozen=True, gc=False):
    opaque: _Opaque | None = None


class _Selector(msgspec.Struct, frozen=True, gc=False):
    cel: dict[str, str] | None = None


class _Capacity(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, Raw] | None = None


class _Exactly(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    device_class_name: str = ""
    admin_access: bool | None = None
    selectors: list[_Selector] | None = None
    capacity: _Capacity | None = None


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    exactly: _Exactly | None = None
    first_available: list[_Exactly] | None = None


class _Devices(msgspec.Struct, frozen=True, gc=False):
    requests: list[_Request] | None = None
    config: list[_Config] | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False):
    devices: _Devices | None = None


class _TemplateSpec(msgspec.Struct, frozen=True, gc=False):
    spec: _Spec


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct, frozen=True, gc=False):
    spec: Raw
    metadata: _Metadata | None = None


_OBJECT: Final = msgspec.json.Decoder(_Object | None)
_SPEC: Final = msgspec.json.Decoder(_Spec)
_TEMPLATE: Final = msgspec.json.Decoder(_TemplateSpec)


def claim(kind: str, new: Raw, old: Raw, *, policies: Policies) -> list[str]:
    """Validate a claim or template before it is stored, and return warnings.

    Args:
        kind: ``ResourceClaim`` or ``ResourceClaimTemplate``; other kinds are not checked.
        new: The object.
        old: The object before an update, else ``null``. An unchanged spec is not checked: specs are immutable, and it
            must be possible to remove the finalizers of an object that an older release accepted.
        policies: The policies in force.

    Raises:
        WordError: The claim has a configuration for this driver that cannot be read or names no request of the claim;
            or it may get a fraction of a GPU that is exclusive to one namespace at a time. The message has the field's
            path.
    """
    if kind not in ("ResourceClaim", "ResourceClaimTemplate"):
        return []
    path = "spec" if kind == "ResourceClaim" else "spec.spec"
    sent = _decode_object(kind, new)
    if sent is None:
        raise WordError(f"The object is not a valid {kind}: it is null.")
    spec_json = memoryview(sent.spec)  # not decoded yet: an unchanged spec costs no more than a comparison
    if spec_json == _old_spec(kind, old):
        return []
    if len(spec_json) > MOST_BYTES:
        raise WordError(
            f"{path}: {len(spec_json)} bytes of JSON, and at most {MOST_BYTES} are allowed. Write a shorter one."
        )

    # 1. Every opaque configuration for this driver can be read, and names only requests of the claim.
    try:
        spec = _SPEC.decode(spec_json) if kind == "ResourceClaim" else _TEMPLATE.decode(spec_json).spec
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid {kind}: spec: {error}.") from None
    devices = spec.devices or _Devices()
    requests = [request.name for request in devices.requests or ()]
    for i, entry in enumerate(devices.config or ()):
        if entry.opaque is not None and entry.opaque.driver == names.DRIVER:
            try:
                _check_requests(opaque_config.read(entry.opaque.parameters), requests)
            except WordError as error:
                raise WordError(f"{path}.devices.config[{i}].opaque.parameters: {error}") from None

    # 2. The claim cannot get a part of an exclusive GPU by the scheduler alone. Such a GPU has parts (shares or MIG
    # slices) of one namespace at a time, which the scheduler cannot know. The controller chose the GPUs of claims
    # with this label, and an admission policy lets only the controller write it. From a template both may make claims,
    # so a template gets a warning instead.
    labels = (sent.metadata and sent.metadata.labels) or {}
    if kind == "ResourceClaim" and labels.get(names.LABEL) == names.LABEL_PLACED:
        return []
    request_path = next(_paths_of_exclusive_requests(devices, policies), None)
    if request_path is None:
        return []
    if kind == "ResourceClaim":
        raise WordError(f"{path}.devices.{request_path}: {_EXCLUSIVE}")
    return [
        f"{path}.devices.{request_path}: claims from this template are refused unless the driver places the pod, "
        "because the policies file has exclusiveTo. For other pods, add a selector, cel.expression: "
        f"{exclusive.ELSEWHERE}"
    ]


_EXCLUSIVE: Final = (
    "kube-scheduler does not know that the policies file limits each divided GPU to one namespace (exclusiveTo). "
    f"Remove the claim and write the annotation {names.SHARE} or {names.MIG_PROFILE} on the pod. Or exclude these GPUs "
    f"by one more entry of selectors, cel.expression: {exclusive.ELSEWHERE}"
)
_CLASSES: Final = {names.SHARE_CLASS: False, names.MIG_CLASS: True}
"""Classes of parts of GPUs, and whether these are MIG slices."""
_CAPACITIES: Final = {
    names.CAPACITY_CORES: False,
    names.CAPACITY_MEMORY_SLICES: True,
    names.CAPACITY_COMPUTE_SLICES: True,
}
"""The same of what a request of whole GPUs' class asks for, whose device may be had in parts."""


def _paths_of_exclusive_requests(devices: _Devices, policies: Policies) -> Iterator[str]:
    """Yield the paths of the requests that may get a fraction of an exclusive GPU.

    ``devices`` has the claim's requests. The fractions of an exclusive GPU belong to one namespace at a time.
    """
    kinds = {sliced for sliced in (False, True) if exclusive.some(policies, sliced=sliced)}
    for i, request in enumerate((devices.requests or ()) if kinds else ()):
        for way in (request.exactly, *(request.first_available or ())):
            if (
                way is not None
                and not way.admin_access
                and not kinds.isdisjoint(_parts(way))
                and not _excludes_exclusive_gpus(way)
            ):
                yield f"requests[{i}]"


def _parts(way: _Exactly) -> set[bool]:
    """Return which fractions a request may get: True for MIG slices, False for shares.

    ``way`` is the request, or one of its alternatives. The set is empty if it gets whole GPUs.
    """
    if way.device_class_name == names.DEVICE_CLASS:
        said = (way.capacity and way.capacity.requests) or {}
        return {sliced for capacity, sliced in _CAPACITIES.items() if capacity in said}
    return {_CLASSES[way.device_class_name]} if way.device_class_name in _CLASSES else set()


def _excludes_exclusive_gpus(way: _Exactly) -> bool:
    said = [(selector.cel or {}).get("expression", "") for selector in way.selectors or ()]
    return exclusive.ELSEWHERE in map(str.strip, said)


def _check_requests(told: opaque_config.ClaimConfig, requests: Sequence[str]) -> None:
    """Raise if a claim's configuration names a request that the claim does not have.

    Otherwise the node agent would ignore this part of the configuration.

    Args:
        told: The configuration.
        requests: The names of the claim's requests.

    Raises:
        WordError: With the unknown request and the requests of the claim.
    """
    shown_requests = first_of([messages.shown(request) for request in requests], MOST_SHOWN)
    for field, said in (("order", told.order), ("mig", told.mig)):
        for name in said:
            if name not in requests:
                raise WordError(
                    f"{field}: the claim has no request {messages.shown(name)}{hint(name, requests)}. Its requests: "
                    f"{shown_requests or 'none'}."
                )


def _decode_object(kind: str, text: Raw) -> _Object | None:
    """Return the object with its undecoded spec; None if there is no object (JSON ``null``)."""
    try:
        found: _Object | None = _OBJECT.decode(text)
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid {kind}: {error}.") from None
    return found


def _old_spec(kind: str, old: Raw) -> memoryview | None:
    try:
        before = _decode_object(kind, old)
    except WordError:
        return None  # then what is new is read
    return None if before is None else memoryview(before.spec)
