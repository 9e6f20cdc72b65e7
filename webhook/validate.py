"""CREATE and UPDATE of claims and templates: this driver's opaque configuration is read strictly.

Without it a typing error would come to light on the node, after a pod has been bound, where nobody looks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api import config, names
from dradriver.api.errors import WordError


class _Opaque(msgspec.Struct):
    driver: str = ""
    parameters: Any = None


class _Config(msgspec.Struct):
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct):
    config: list[_Config] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _Devices | None = None


class _TemplateSpec(msgspec.Struct):
    spec: _ClaimSpec


class _Claim(msgspec.Struct):
    spec: _ClaimSpec


class _Template(msgspec.Struct):
    spec: _TemplateSpec


def claim(kind: str, new: object, old: object = None) -> None:
    """Return when the claim or template may be stored.

    Args:
        kind: ``ResourceClaim`` or ``ResourceClaimTemplate``; others pass.
        new: The decoded object.
        old: What it was before an update. A spec that did not change passes, good or bad: specs are immutable, and an
            object that an older release let in must still lose its finalizers.

    Raises:
        WordError: A configuration for this driver that it cannot read; the message has the field's path.
    """
    try:
        if kind == "ResourceClaim":
            path, spec = "spec", msgspec.convert(new, _Claim).spec
        elif kind == "ResourceClaimTemplate":
            path, spec = "spec.spec", msgspec.convert(new, _Template).spec.spec
        else:
            return
    except msgspec.ValidationError as error:
        raise WordError(f"this is no {kind}: {error}") from None
    assert isinstance(new, dict)
    if isinstance(old, dict) and old.get("spec") == new.get("spec"):
        return
    for i, entry in enumerate((spec.devices and spec.devices.config) or []):
        if entry.opaque is not None and entry.opaque.driver == names.DRIVER:
            try:
                config.read(entry.opaque.parameters)
            except WordError as error:
                raise WordError(f"{path}.devices.config[{i}].opaque.parameters: {error}") from None
