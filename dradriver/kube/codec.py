"""JSON of the API server into dicts and structs.

What the server passes on is not always what a strict reader takes: Go writes ``null`` for an empty list, and what a
tenant wrote into another driver's parameters comes back byte by byte, escapes that are half a letter included.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

T = TypeVar("T")

Reading: TypeAlias = type[T] | Callable[[msgspec.Raw], T | None]
"""How one object's JSON is read: as a type, or by a function that returns what is kept of it, None for nothing.

A function must not keep the JSON itself: it is a view of all that came with it."""

DEEPEST: Final = 20_000  # levels of nesting; Go's encoding/json, and so the API server, refuses more than 10,000
_REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_PLACES: Final = 4  # places that an error names
_REPLACEMENT: Final = rb"\ufffd"
_HALF: Final = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[89a-fA-F][0-9a-fA-F]{2})")
_ESCAPE_BYTES: Final = 6  # of \uXXXX


class BadJson(ValueError):  # noqa: N818 - says what it is
    """Not JSON, or not of the type that was expected.

    Attributes:
        rest: The struct that was expected, in which what cannot be read counts as left out; None where no more is known
            than that.
    """

    def __init__(self, message: str, rest: Any = None) -> None:
        super().__init__(message)
        self.rest = rest


class PartlyRead(BadJson):
    """A reading function could read an object in part only.

    Attributes:
        kept: What is kept of the object all the same.
    """

    def __init__(self, message: str, kept: Any) -> None:
        super().__init__(message)
        self.kept = kept


def decode(data: bytes | msgspec.Raw, type: Any) -> Any:  # noqa: A002 - what msgspec calls it
    """Decode JSON of the API server as an object of the given type, whatever stands where nobody looks.

    A ResourceClaim's opaque parameters hold any JSON of 10 KiB, so their author can nest it deeper than Python's
    recursion limit, and write half a surrogate pair, which Go reads as U+FFFD. Null where the type has something else
    is as if it were left out. None of that would be forgiven without a second try: one such claim would end every list
    and watch of claims.

    Raises:
        BadJson: No JSON, or not of that type.
    """
    # 1. The fast way, for nearly all objects.
    try:
        return _cached_decoder(type).decode(data)
    except _REFUSED:
        # 2. Field by field: what cannot be read counts as left out, and its place is noted.
        unread: list[str] = []
        value = _decode_what_can_be(_with_valid_text(bytes(data)), type, "", unread)
    # 3. The error has what could be read, in case the caller can use a part.
    if unread:
        more = f", and {len(unread) - _MAX_PLACES} more" if len(unread) > _MAX_PLACES else ""
        raise BadJson("; ".join(unread[:_MAX_PLACES]) + more, value)
    return value


def encode(value: object) -> bytes:
    """Encode a value as JSON, with U+FFFD where a text has half a surrogate pair, as Go writes it.

    Python has such texts of names of files, and of others' JSON.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole_texts(msgspec.to_builtins(value, enc_hook=msgspec.json.decode)))


def _whole_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole_texts(key): _whole_texts(item) for key, item in value.items()}
    return [_whole_texts(item) for item in value] if isinstance(value, (list, tuple)) else value


def decode_part(data: bytes | msgspec.Raw, type: Any, keep: Callable[[Any], T]) -> T:  # noqa: A002
    """Return what ``keep`` makes of an object that is decoded as ``decode`` does.

    Raises:
        PartlyRead: Of an object that could be read in part; with what ``keep`` makes of that.
        BadJson: No JSON, or without what the type must have.
    """
    try:
        value = decode(data, type)
    except BadJson as error:
        if error.rest is None:
            raise
        raise PartlyRead(str(error), keep(error.rest)) from error
    return keep(value)


def reader(reading: Reading[T]) -> Callable[[msgspec.Raw], T | None]:
    """Return the function that reads an object's JSON: the reader itself, or ``decode`` for a type."""
    if not isinstance(reading, builtins.type):
        return reading
    return cast("Callable[[msgspec.Raw], T | None]", functools.partial(decode, type=reading))


def _strict(data: bytes | msgspec.Raw, type: Any) -> Any:  # noqa: A002
    decoder = _cached_decoder(type)
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
    except _REFUSED as error:
        raise BadJson(str(error)) from error


def _with_valid_text(text: bytes) -> bytes:
    """Return JSON with U+FFFD where a string has half a surrogate pair or bytes that are no UTF-8, as Go reads it."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    return _HALF.sub(_whole, text)


def _whole(match: re.Match[bytes]) -> bytes:
    text, start = match.string, match.start()
    before = start
    while before and text[before - 1] == ord("\\"):
        before -= 1
    pair = len(match[0]) > _ESCAPE_BYTES
    if (start - before) % 2:  # the backslash itself is escaped: a text about escapes, and behind it perhaps half a pair
        return match[0][:_ESCAPE_BYTES] + (_REPLACEMENT if pair else b"")
    return match[0] if pair else _REPLACEMENT


def _decode_what_can_be(data: bytes | msgspec.Raw, type: Any, where: str, unread: list[str]) -> Any:  # noqa: A002
    """Return what can be read of a value; the places of what cannot are added to ``unread``.

    Raises:
        BadJson: Nothing can.
    """
    try:
        return _strict(data, type)
    except BadJson:
        type = _something(type)  # noqa: A001
        if isinstance(type, builtins.type) and issubclass(type, msgspec.Struct):
            return _struct(data, type, where, unread)
        if typing.get_origin(type) is list:
            return _list(data, typing.get_args(type)[0], where, unread)
        if _is_null(data) and typing.get_origin(type) is dict:
            return {}
        raise


def _struct(data: bytes | msgspec.Raw, type: builtins.type[msgspec.Struct], where: str, unread: list[str]) -> Any:  # noqa: A002
    members: Mapping[str, msgspec.Raw] = {} if _is_null(data) else _strict(data, dict[str, msgspec.Raw])
    values: dict[str, Any] = {}
    for field in _fields(type):
        member = members.get(field.encode_name)
        if member is None or _is_null(member):
            continue
        place = f"{where}.{field.encode_name}" if where else field.encode_name
        try:
            values[field.name] = _decode_what_can_be(member, field.type, place, unread)
        except BadJson as error:
            unread.append(f"{place}: {error}")
    try:
        return type(**values)
    except TypeError as error:
        raise BadJson("; ".join([*unread[:_MAX_PLACES], str(error)])) from None


def _list(data: bytes | msgspec.Raw, element: Any, where: str, unread: list[str]) -> list[Any]:
    values = []
    for number, item in enumerate(() if _is_null(data) else _strict(data, list[msgspec.Raw])):
        place = f"{where}[{number}]"
        try:
            values.append(_decode_what_can_be(item, element, place, unread))
        except BadJson as error:
            unread.append(f"{place}: {error}")
    return values


def _something(type: Any) -> Any:  # noqa: A002
    """Return a type without its None: ``X`` for ``X | None``, any other as it is."""
    if typing.get_origin(type) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(type) if one is not types.NoneType]
        return others[0] if len(others) == 1 else type
    return type


def _is_null(data: bytes | msgspec.Raw) -> bool:
    return len(memoryview(data)) == len(b"null") and bytes(data) == b"null"


@functools.lru_cache(maxsize=128)
def _fields(type: builtins.type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:  # noqa: A002
    return msgspec.structs.fields(type)


@functools.lru_cache(maxsize=128)
def _cached_decoder(type: Any) -> msgspec.json.Decoder[Any]:  # noqa: A002
    return msgspec.json.Decoder(type)
