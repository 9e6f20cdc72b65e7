"""Application of a JSON Patch (RFC 6902) to an object, as the API server applies the webhook's answer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(data: dict[str, Any], ops: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a copy of an object with a JSON Patch of the webhook applied.

    Raises:
        KeyError, IndexError, ValueError, TypeError: The patch does not fit this object.
    """
    copied: dict[str, Any] = copy.deepcopy(data)
    for op in ops:
        match op["op"]:
            case "add":
                _add(copied, _path(op["path"]), op["value"])
            case "remove":
                _remove(copied, _path(op["path"]))
            case "replace":
                _remove(copied, _path(op["path"]))
                _add(copied, _path(op["path"]), op["value"])
            case "move":
                _add(copied, _path(op["path"]), _remove(copied, _path(op["from"])))
            case other:
                raise ValueError(f"no operation of ours: {other}")
    return copied


def _path(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _parent(data: Any, path: list[str]) -> Any:
    for step in path[:-1]:
        data = data[int(step)] if isinstance(data, list) else data[step]
    return data


def _add(data: Any, path: list[str], value: Any) -> None:
    parent, last = _parent(data, path), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else int(last), copy.deepcopy(value))
    else:
        parent[last] = copy.deepcopy(value)


def _remove(data: Any, path: list[str]) -> Any:
    parent, last = _parent(data, path), path[-1]
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)
