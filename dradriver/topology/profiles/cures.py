"""What to write instead of a profile's value that has not its field's form."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

from dradriver.topology.profiles.entries import Links, Profile

_PLACE = re.compile(r"(.*) - at `([^`]*)`", re.DOTALL)
_STEP = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")
_MOST_SHOWN = 60  # characters of a bad value


def cure(error: msgspec.ValidationError, data: object) -> tuple[str, str]:
    """Return the place of a value that ``Profile`` refuses (``$.gpus[1].numa``), and what is wrong and allowed there.

    Args:
        error: What ``msgspec.convert`` raised.
        data: The profile as dicts, lists and strings.
    """
    placed = _PLACE.fullmatch(str(error))  # the whole profile has no place
    message, path = placed.groups() if placed else (str(error), "")
    at, wanted, value = "$", inspect.type_info(Profile), data
    for step in _STEP.finditer(path):
        at, wanted, value = _down(step, at, wanted, value)
    struct = _bare(wanted)
    if isinstance(struct, inspect.StructType) and isinstance(value, dict):  # a field of it is unknown or missing
        unknown = re.search("unknown field `(.*)`", message)
        allowed = ", ".join(field.encode_name for field in struct.fields)
        return at, message + (f"; {unknown[1]} is not one of {allowed}" if unknown else "")
    shown = repr(value)[:_MOST_SHOWN] if isinstance(value, str) else "a list" if isinstance(value, list) else "fields"
    return at, f"{shown}; write {_words(wanted)}"


def _down(step: re.Match[str], at: str, wanted: inspect.Type, value: Any) -> tuple[str, inspect.Type, Any]:
    """Follow one step of msgspec's path, in the types and in the data."""
    above = _bare(wanted)
    if isinstance(above, inspect.StructType):
        return f"{at}.{step[1]}", next(f.type for f in above.fields if f.encode_name == step[1]), value[step[1]]
    if isinstance(above, inspect.DictType):  # of links; msgspec does not say whose
        key = next(key for key, count in value.items() if not _converts(count))
        return f"{at}.{key}", above.value_type, value[key]
    assert isinstance(above, inspect.VarTupleType)
    return f"{at}[{step[2]}]", above.item_type, value[int(step[2])]


def _converts(count: object) -> bool:
    try:
        msgspec.convert(count, Links, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _bare(wanted: inspect.Type) -> inspect.Type:
    """Return the type without its examples and without None, which a YAML text cannot hold."""
    if isinstance(wanted, inspect.Metadata):
        return _bare(wanted.type)
    if isinstance(wanted, inspect.UnionType):
        return _bare(next(one for one in wanted.types if not isinstance(one, inspect.NoneType)))
    return wanted


def _words(wanted: inspect.Type) -> str:
    if isinstance(wanted, inspect.Metadata) and wanted.extra_json_schema:
        return f"it like {wanted.extra_json_schema['examples'][0]}"
    bare = _bare(wanted)
    if isinstance(bare, inspect.LiteralType):
        *others, last = (repr(word) if " " in str(word) else str(word) for word in bare.values if word)
        return f"{', '.join(others)} or {last}"
    if isinstance(bare, inspect.IntType):
        return "a whole number" if bare.le is None else f"a whole number from {bare.ge} to {bare.le}"
    if isinstance(bare, inspect.StructType):
        return "fields: " + ", ".join(field.name for field in bare.fields)
    return {
        inspect.FloatType: "a number",
        inspect.BoolType: "true or false",
        inspect.VarTupleType: "a list",
        inspect.DictType: "pairs of GPUs and their number of links, such as 0-1: 4",
    }.get(type(bare), "text")
