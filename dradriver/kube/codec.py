"""JSON of the API server into dicts and structs."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

T = TypeVar("T")

Reading: TypeAlias = type[T] | Callable[[msgspec.Raw], T | None]
"""How one object's JSON is read: as a type, or by a function that returns what is kept of it, None for nothing.

A function must not keep the JSON itself: it is a view of all that came with it."""

DEEPEST: Final = 20_000  # levels of nesting; Go's encoding/json, and so the API server, refuses more than 10,000


class BadJson(ValueError):  # noqa: N818 - says what it is
    """Not JSON, or not of the type that was expected."""


def decode(data: bytes | msgspec.Raw, type: Any) -> Any:  # noqa: A002 - what msgspec calls it
    """Return the decoded JSON as an object of the given type, however deeply nested.

    A ResourceClaim's opaque parameters hold any JSON of 10 KiB, so their author can nest it deeper than Python's
    recursion limit. Without the second try one such claim would end every list and watch of claims.

    Raises:
        BadJson: No JSON, or not of that type.
    """
    decoder = _decoder(type)
    try:
        try:
            return decoder.decode(data)
        except RecursionError:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(DEEPEST)
            try:
                return decoder.decode(data)
            finally:
                sys.setrecursionlimit(limit)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadJson(str(error)) from error


def reader(reading: Reading[T]) -> Callable[[msgspec.Raw], T | None]:
    """Return a reading as a function."""
    if not isinstance(reading, builtins.type):
        return reading
    return cast("Callable[[msgspec.Raw], T | None]", functools.partial(decode, type=reading))


@functools.lru_cache(maxsize=128)
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:  # noqa: A002
    return msgspec.json.Decoder(type)
