"""Evaluates one expression of a node or label selector on one label, as the API server defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LARGEST: Final = 2**63
_DIGITS: Final = 19


def holds(value: str | None, operator: str, values: Sequence[str]) -> bool:
    """Return whether a selector's expression is true for a label's value.

    ``operator`` is ``In`` or another operator of Kubernetes. ``value`` is None if the label is missing.
    """
    match operator:
        case "In":
            return value in values
        case "NotIn":  # a missing label counts as different
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            left = integer(value)
            right = integer(values[0]) if len(values) == 1 else None
            if left is None or right is None:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False


def integer(text: str | None) -> int | None:
    """Return the 64-bit number that Go's ``ParseInt`` reads from a text; None if it is no such number."""
    if text is None or not text.isascii():
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdigit() or len(digits.lstrip("0")) > _DIGITS:
        return None
    number = -int(digits.lstrip("0") or "0") if text[0] == "-" else int(digits.lstrip("0") or "0")
    return number if -_LARGEST <= number < _LARGEST else None
