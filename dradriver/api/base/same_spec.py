"""Compares what two specs request, although the API server rewrites quantities and drops empty fields."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from dradriver.api.base import quantity
from dradriver.api.base.errors import WordError

_NOTHING: Final[tuple[Any, ...]] = (None, {}, [], "")


def digest(spec: Any) -> str:
    """Return a digest by which two specs of claims can be compared; empty if nested too deeply.

    Specs that request the same have the same digest. So empty fields count as missing, and amounts of capacity are
    compared by value: the API server writes 10240Mi as 10Gi. A default that the server adds changes the digest, because
    only the server knows the meaning of a default.

    Args:
        spec: The spec of a template or of a claim, decoded from JSON: dicts, lists, texts and numbers.
    """
    try:
        return hashlib.sha256(msgspec.json.encode(_plain(spec), order="deterministic")).hexdigest()[:32]
    except RecursionError:
        return ""


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key: _amounts(member) if key == "capacity" else _plain(member) for key, member in value.items()}
        return {key: member for key, member in plain.items() if member not in _NOTHING}
    return [_plain(member) for member in value] if isinstance(value, list) else value


def _amounts(capacity: Any) -> Any:
    """Return the ``capacity`` of a device request with each quantity as a number, for comparison."""
    requests = capacity.get("requests") if isinstance(capacity, dict) else None
    if not isinstance(requests, dict):
        return _plain(capacity)
    return _plain(capacity | {"requests": {name: _amount(text) for name, text in requests.items()}})


def _amount(text: Any) -> Any:
    try:
        return str(quantity.exact(text)) if isinstance(text, str) else text
    except WordError:
        return text
