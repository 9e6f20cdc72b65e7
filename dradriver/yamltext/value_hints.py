"""Hints about a YAML value that does not fit its type: the error, the allowed values, and a similar word.

The module ``read`` puts these hints into its error messages. The type itself gives most hints: the values of a Literal,
the bounds of a number. A field's ``msgspec.Meta`` can give other hints, as ``examples`` ("write it like 8.0") or
``description`` ("write pairs of GPUs").
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

_PLACE = re.compile(r"(.*?) - at (`key` in )?`([^`]*)`", re.DOTALL)
_MOST_SHOWN = 60  # characters of a bad value
_STEP = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")


def hint(word: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean nvlink?)`` if an allowed word is similar to ``word``; else an empty text."""
    by_letters = {one.lower(): one for one in allowed}
    near = difflib.get_close_matches(word[:64].lower(), by_letters, n=1)
    return f" (did you mean {by_letters[near[0]]}?)" if near else ""


def cure(error: msgspec.ValidationError, data: Any, expected_type: Any) -> tuple[str, str]:
    """Return the place of a YAML value of a wrong type, and what to write.

    The place is, for example, ``$.gpus[1].numa``. The message names the bad value and the allowed values.

    Args:
        error: The exception that ``msgspec.convert`` raised.
        data: The YAML text as dicts, lists and strings.
        expected_type: The type to which ``data`` should be converted.
    """
    placed = _PLACE.fullmatch(str(error))  # the whole has no place
    message, of_key, path = placed.groups() if placed else (str(error), None, "")
    at, value = "$", data
    for step in _STEP.finditer(path):
        at, expected_type, value = _down(step, at, expected_type, value)
    if of_key is not None:
        keys = typing.get_args(_bare(expected_type))[0]
        bad = next(key for key in value if not _converts(key, keys))
        return at, f"{_shown(bad)} is not allowed as a key. Write {_words(keys)}."
    struct = inspect.type_info(_bare(expected_type))
    if isinstance(struct, inspect.StructType) and isinstance(value, dict):  # a field of it is unknown or missing
        unknown = re.search("unknown field `(.*)`", message)
        names = [field.encode_name for field in struct.fields]
        if unknown:
            known = f"Known fields: {', '.join(names)}{hint(unknown[1], names)}."
            return f"{at}.{unknown[1]}", f"This field is unknown. {known}"
        return at, f"{message}."
    near = hint(value, map(str, struct.values)) if isinstance(struct, inspect.LiteralType) and _text(value) else ""
    return at, f"{_shown(value)} is not allowed{near}. Write {_words(expected_type)}."


def _down(step: re.Match[str], at: str, wanted: Any, value: Any) -> tuple[str, Any, Any]:
    """Follow one step of a path in msgspec's error; return place, type and value.

    A step is a field (``.gpus``) or a list item (``[1]``).

    Args:
        step: The match of one step in the path.
        at: The place before the step.
        wanted: The type at that place.
        value: The value at that place.
    """
    above = _bare(wanted, value)
    if step[1]:
        fields = msgspec.structs.fields(above)
        return f"{at}.{step[1]}", next(f.type for f in fields if f.encode_name == step[1]), value[step[1]]
    of = typing.get_args(above)
    if step[2] == "...":  # of a dict; msgspec does not say of which key
        key = next(key for key, one in value.items() if not _converts(one, of[1]))
        return f"{at}.{key}", of[1], value[key]
    return f"{at}[{step[2]}]", of[0], value[int(step[2])]


def _converts(value: object, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _bare(wanted: Any, value: object = None) -> Any:
    """Return the type ``wanted`` without ``msgspec.Meta`` and without None.

    Of a union, return one member: the dict type if ``value`` is a dict, else the first member.
    """
    while typing.get_origin(wanted) is typing.Annotated:
        wanted = typing.get_args(wanted)[0]
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        parts = [_bare(part) for part in typing.get_args(wanted) if part is not types.NoneType]
        of_dicts = [part for part in parts if typing.get_origin(part) is dict]
        return of_dicts[0] if isinstance(value, dict) and of_dicts else parts[0]
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
