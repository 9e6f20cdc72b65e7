"""Kubernetes quantities as integers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from dradriver.api.base.errors import WordError

_LONGEST = 64  # characters; Python reads no number of thousands of digits
_FORM = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
}
_SUFFIX |= {letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")}
_SUFFIX |= {f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")}


def _parse(text: str) -> Fraction:
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise WordError(
            f"{text[:_LONGEST]!r} is not a quantity. Write a number with an optional suffix, for example 500m, 2 or "
            f"40Gi."
        )
    number, exponent, suffix = match.groups()
    value = Fraction(number if not number.endswith(".") else number[:-1])
    return value * Fraction(10) ** int(exponent[1:]) if exponent else value * _SUFFIX[suffix or ""]


def exact(text: str) -> Fraction:
    """Return a Kubernetes quantity as an exact fraction, without rounding.

    Raises:
        WordError: The text is not a quantity.
    """
    return _parse(text)


def milli(text: str) -> int:
    """Return a Kubernetes quantity in thousandths, rounded up as the API server does (``0.5`` is 500).

    Raises:
        WordError: The text is no quantity.
    """
    return math.ceil(_parse(text) * 1000)


def whole(text: str) -> int:
    """Return a Kubernetes quantity in whole units, rounded up (``1Ki`` is 1024).

    Raises:
        WordError: The text is no quantity.
    """
    return math.ceil(_parse(text))
