"""Hints about a YAML value that does not fit its type: the error, the allowed values, and a similar word.

The module ``read`` puts these hints into its error messages. The type itself gives most hints: the values of a Literal,
the bounds of a number. A field's ``msgspec.Meta`` can give other hints, as ``examples`` ("write it like 8.0") or
``description`` ("write pairs of GPUs").
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

_MOST_SHOWN = 60  # characters of a bad value


def hint(word: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean nvlink?)`` if an allowed word is similar to ``word``; else an empty text."""
    by_letters = {one.lower(): one for one in allowed}
    near = difflib.get_close_matches(word[:64].lower(), by_letters, n=1)
    return f" (did you mean {by_letters[near[0]]}?)" if near else ""


class Misfit(NamedTuple):
    """A YAML value or key that does not fit its type.

    Attributes:
        place: The place of the value, such as ``$.gpus[1].numa``. For a key of a mapping that is not a field, the place
            of the mapping.
        says: What is wrong, and what to write.
        key: The place of the key, if the key is wrong and ``place`` is the mapping.
    """

    place: str
    says: str
    key: str = ""


def misfits(value: Any, expected_type: Any, place: str = "$") -> Iterator[Misfit]:
    """Yield all misfits of a YAML value, in the order of the text. ``msgspec.convert`` raises only the first one.

    Args:
        value: Dicts, lists and strings.
        expected_type: The type to which ``value`` should be converted.
        place: The place of the value.
    """
    if _converts(value, expected_type):
        return
    bare = _bare(expected_type, value)
    is_explained = False
    if not _has_allowed_length(value, expected_type):
        yield _wrong_value(value, expected_type, place)
        is_explained = True
    for misfit in _misfits_of_parts(value, bare, place):
        yield misfit
        is_explained = True
    if not is_explained:
        yield _wrong_value(value, expected_type, place)


def _misfits_of_parts(value: Any, bare: Any, place: str) -> Iterator[Misfit]:
    """Yield the misfits of a value's keys and items. ``bare`` is the value's type without ``msgspec.Meta``."""
    if isinstance(value, list) and typing.get_origin(bare) is tuple:
        for i, item in enumerate(value):
            yield from misfits(item, typing.get_args(bare)[0], f"{place}[{i}]")
    elif isinstance(value, dict) and typing.get_origin(bare) is dict:
        keys, values = typing.get_args(bare)
        for key, item in value.items():
            if not _converts(key, keys):
                says = f"{_shown(key)} is not allowed as a key. Write {_words(keys)}."
                yield Misfit(place, says, key=f"{place}.{key}")
            yield from misfits(item, values, f"{place}.{key}")
    elif isinstance(value, dict) and isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        fields = _fields(bare)
        for key, item in value.items():
            if key in fields:
                yield from misfits(item, fields[key].type, f"{place}.{key}")
            else:
                says = f"This field is unknown. Known fields: {', '.join(fields)}{hint(key, fields)}."
                yield Misfit(f"{place}.{key}", says)
        for name, field in fields.items():
            if field.required and name not in value:
                yield Misfit(place, f"Object missing required field `{name}`.")


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a struct by their names in the YAML text."""
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def _has_allowed_length(value: Any, expected_type: Any) -> bool:
    """Return whether a list or mapping has as many items as its type allows; True for other values."""
    bounds = getattr(_member(expected_type, value), "__metadata__", ()) if isinstance(value, list | dict) else ()
    return all(
        (meta.min_length or 0) <= len(value) and (meta.max_length is None or len(value) <= meta.max_length)
        for meta in bounds
    )


def _wrong_value(value: Any, expected_type: Any, place: str) -> Misfit:
    told = inspect.type_info(_bare(expected_type))
    near = hint(value, map(str, told.values)) if isinstance(told, inspect.LiteralType) and _text(value) else ""
    return Misfit(place, f"{_shown(value)} is not allowed{near}. Write {_words(expected_type)}.")


def _converts(value: object, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _member(wanted: Any, value: object = None) -> Any:
    """Return the member of a union that a value can be: the dict type for a dict, else the first one but None.

    Any other type is returned as it is. The member keeps its ``msgspec.Meta``.
    """
    bare = wanted
    while typing.get_origin(bare) is typing.Annotated:
        bare = typing.get_args(bare)[0]
    if typing.get_origin(bare) not in (typing.Union, types.UnionType):
        return wanted
    parts = [_member(part, value) for part in typing.get_args(bare) if part is not types.NoneType]
    of_dicts = [part for part in parts if typing.get_origin(_bare(part)) is dict]
    return of_dicts[0] if isinstance(value, dict) and of_dicts else parts[0]


def _bare(wanted: Any, value: object = None) -> Any:
    """Return the member of the type ``wanted`` that a value can be, without its ``msgspec.Meta``."""
    wanted = _member(wanted, value)
    while typing.get_origin(wanted) is typing.Annotated:
        wanted = typing.get_args(wanted)[0]
    return wanted


def _words(wanted: Any) -> str:
    told = inspect.type_info(wanted)
    while isinstance(told, inspect.Metadata | inspect.UnionType):
        if isinstance(told, inspect.UnionType):
            told = next(one for one in told.types if not isinstance(one, inspect.NoneType))
            continue
        said = told.extra_json_schema or {}
        if "description" in said:
            return str(said["description"])
        if "examples" in said:
            return f"it like {said['examples'][0]}"
        told = told.type
    if isinstance(told, inspect.LiteralType):
        *others, last = (repr(word) if " " in str(word) else str(word) for word in told.values if word)
        return f"{', '.join(others)} or {last}" if others else last
    if isinstance(told, inspect.IntType | inspect.FloatType):
        what = "a whole number" if isinstance(told, inspect.IntType) else "a number"
        least = f"from {told.ge:g}" if told.ge is not None else f"above {told.gt:g}" if told.gt is not None else ""
        most = f"to {told.le:g}" if told.le is not None else ""
        return " ".join(filter(None, (what, least, most)))
    if isinstance(told, inspect.StructType):
        return "fields: " + ", ".join(field.encode_name for field in told.fields)
    return {inspect.BoolType: "true or false", inspect.VarTupleType: "a list"}.get(type(told), "text")


def _shown(value: object) -> str:
    return repr(value[:_MOST_SHOWN]) if _text(value) else "a list" if isinstance(value, list) else "a mapping"


def _text(value: object) -> typing.TypeGuard[str]:
    return isinstance(value, str)
