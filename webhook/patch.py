"""The difference of two decoded JSON values as JSON Patch operations (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dradriver.kube.jsonpatch import pointer


def diff(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield the operations that make ``after`` of ``before``; none where they are equal.

    Objects are compared key by key and lists element by element, with what is new at the end; a list that became
    shorter is replaced. So values that did not change are never sent, and what other webhooks put there survives.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() - after.keys()):
            yield {"op": "remove", "path": path + pointer(key)}
        for key, value in after.items():
            if key in before:
                yield from diff(before[key], value, path + pointer(key))
            else:
                yield {"op": "add", "path": path + pointer(key), "value": value}
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from diff(old, new, f"{path}/{i}")
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    elif before != after:
        yield {"op": "replace", "path": path, "value": after}
