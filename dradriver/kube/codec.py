"""Decodes JSON of the API server into dicts and structs, and encodes it.

A strict decoder fails on some valid answers, for two reasons. The server, which is written in Go, writes ``null`` for
an empty list. And the API server passes on opaque parameters for other drivers byte by byte, even if they contain
halves of surrogate pairs.
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
    """The data is not JSON, or does not have the expected type.

    Attributes:
        rest: A struct of the expected type, with only the fields that could be decoded; None if no field could be
            decoded.
    """

    def __init__(self, message: str, rest: Any = None) -> None:
        super().__init__(message)
        self.rest = rest


class PartlyRead(BadJson):
    """Only some fields of an object could be decoded.

    Attributes:
        kept: The result of the function ``keep`` that the caller gave to ``decode_part``. It was called with an object
            that has only the decoded fields.
    """

    def __init__(self, message: str, kept: Any) -> None:
        super().__init__(message)
        self.kept = kept


def decode(data: bytes | msgspec.Raw, type: Any) -> Any:  # noqa: A002 - what msgspec calls it
    """Decode JSON of the API server into an object of a type.

    Errors in fields that the type does not have are ignored. The decoder is tolerant, because one object that cannot be
    decoded would end every list and watch of its kind. The opaque parameters of a ResourceClaim can be any JSON of 10
    KiB. Its author can nest it deeper than Python's recursion limit, or write half a surrogate pair, which Go reads as
    U+FFFD.

    Most objects are decoded in one strict attempt. If it fails, a second attempt decodes field by field. The second
    attempt treats a field with the value null as missing.

    Raises:
        BadJson: The data is not JSON, or a field of the type cannot be decoded. The error has the fields that could be
            decoded.
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
    """Encode a value as JSON.

    Half a surrogate pair is written as U+FFFD, as Go does. File names and JSON from other programs can contain half a
    surrogate pair.
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
    """Decode an object, call ``keep`` with it, and return the result of ``keep``.

    So the caller keeps only the part of a large object that it needs. ``type`` is the type of the decoded object.

    Raises:
        PartlyRead: Only some fields could be decoded. The error's ``kept`` is the result of ``keep`` for an object with
            only these fields.
        BadJson: The data is not JSON, or lacks a required field.
    """
    try:
        value = decode(data, type)
    except BadJson as error:
        if error.rest is None:
            raise
        raise PartlyRead(str(error), keep(error.rest)) from error
    return keep(value)


def reader(reading: Reading[T]) -> Callable[[msgspec.Raw], T | None]:
    """Return the function that decodes an object's JSON.

    If ``reading`` is a function, this is ``reading`` itself. If ``reading`` is a type, it is a function that decodes
    JSON into this type.
    """
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
    """Return JSON with U+FFFD for half surrogate pairs and bytes that are not UTF-8, as Go reads it."""
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
    """Return a value of ``type`` with only those fields that can be decoded.

    The paths of the other fields are added to ``unread``; ``where`` is the path of the value.

    Raises:
        BadJson: No field can be decoded.
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
    """Return the type of an optional field without None: ``X`` for ``X | None``.

    Any other type is returned unchanged.
    """
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
