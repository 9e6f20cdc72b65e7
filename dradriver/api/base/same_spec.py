"""Whether two specs ask for the same: the server has its own way with quantities and with what is empty."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from dradriver.api.base import quantity
from dradriver.api.base.errors import WordError

_NOTHING: Final[tuple[Any, ...]] = (None, {}, [], "")


def digest(spec: Any) -> str:
    """Return a digest that is the same for specs that request the same; empty for one that nests too deeply.

    What is empty counts as left out, and an amount of a capacity by its value: the server makes 10Gi of 10240Mi. A
    default that it fills in counts: only the server knows what that means.

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
    """Return a request's capacity with its amounts as numbers."""
    requests = capacity.get("requests") if isinstance(capacity, dict) else None
    if not isinstance(requests, dict):
        return _plain(capacity)
    return _plain(capacity | {"requests": {name: _amount(text) for name, text in requests.items()}})


def _amount(text: Any) -> Any:
    try:
        return str(quantity.exact(text)) if isinstance(text, str) else text
    except WordError:
        return text
