"""JSON of the API server into dicts and structs."""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import msgspec

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


@functools.lru_cache(maxsize=128)
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:  # noqa: A002
    return msgspec.json.Decoder(type)
