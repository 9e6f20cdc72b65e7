"""CREATE and UPDATE of claims and templates: this driver's opaque configuration is read strictly.

Without it a typing error would come to light on the node, after a pod has been bound, where nobody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from dradriver.api import config, messages, names
from dradriver.api.errors import WordError
from dradriver.api.messages import MOST_SHOWN
from dradriver.yamltext.cures import hint

MOST_BYTES: Final = 3 << 19  # of JSON in a spec; etcd stores no larger object


class _Opaque(msgspec.Struct, frozen=True, gc=False):
    driver: str = ""
    parameters: Raw = Raw(b"null")


class _Config(msgspec.Struct, frozen=True, gc=False):
    opaque: _Opaque | None = None


class _Request(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _Devices(msgspec.Struct, frozen=True, gc=False):
    requests: list[_Request] | None = None
    config: list[_Config] | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False):
    devices: _Devices | None = None


class _TemplateSpec(msgspec.Struct, frozen=True, gc=False):
    spec: _Spec


class _Object(msgspec.Struct, frozen=True, gc=False):
    spec: Raw


_OBJECT: Final = msgspec.json.Decoder(_Object | None)
_SPEC: Final = msgspec.json.Decoder(_Spec)
_TEMPLATE: Final = msgspec.json.Decoder(_TemplateSpec)


def claim(kind: str, new: Raw, old: Raw) -> None:
    """Return when the claim or template may be stored.

    Args:
        kind: ``ResourceClaim`` or ``ResourceClaimTemplate``; others pass.
        new: The object.
        old: What it was before an update, else ``null``. A spec that did not change passes, good or bad: specs are
            immutable, and an object that an older release let in must still lose its finalizers.

    Raises:
        WordError: A configuration for this driver that it cannot read, or of no request of the claim; the message has
            the field's path.
    """
    if kind not in ("ResourceClaim", "ResourceClaimTemplate"):
        return
    path = "spec" if kind == "ResourceClaim" else "spec.spec"
    text = _spec(kind, new)
    if text is None:
        raise WordError(f"this is no {kind}: it is null")
    if text == _old_spec(kind, old):
        return
    if len(text) > MOST_BYTES:
        raise WordError(f"{path}: {len(text)} bytes; at most {MOST_BYTES} are stored")
    try:
        spec = _SPEC.decode(text) if kind == "ResourceClaim" else _TEMPLATE.decode(text).spec
    except (ValueError, RecursionError) as error:
        raise WordError(f"this is no {kind}: spec: {error}") from None
    devices = spec.devices or _Devices()
    requests = [one.name for one in devices.requests or ()]
    for i, entry in enumerate(devices.config or ()):
        if entry.opaque is not None and entry.opaque.driver == names.DRIVER:
            try:
                _check_requests(config.read(entry.opaque.parameters), requests)
            except WordError as error:
                raise WordError(f"{path}.devices.config[{i}].opaque.parameters: {error}") from None


def _check_requests(told: config.ClaimConfig, requests: Sequence[str]) -> None:
    """Refuse what is told of a request that there is not: the node agent, which looks by name, would never see it."""
    for field, said in (("order", told.order), ("mig", told.mig)):
        for name in said:
            if name not in requests:
                raise WordError(
                    f"{field}: the claim has no request {messages.shown(name)}{hint(name, requests)}; it has "
                    f"{', '.join(map(messages.shown, requests[:MOST_SHOWN])) or 'none'}"
                )


def _spec(kind: str, text: Raw) -> memoryview | None:
    """Return the spec as it stands; None where there is no object."""
    try:
        found = _OBJECT.decode(text)
    except (ValueError, RecursionError) as error:
        raise WordError(f"this is no {kind}: {error}") from None
    return None if found is None else memoryview(found.spec)


def _old_spec(kind: str, old: Raw) -> memoryview | None:
    try:
        return _spec(kind, old)
    except WordError:
        return None  # then what is new is read
