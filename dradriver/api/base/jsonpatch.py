"""JSON Patches (RFC 6902): the one builder of them."""

from __future__ import annotations

import functools
from typing import Any, Self


@functools.lru_cache(maxsize=1024)
def pointer(*path: str | int) -> str:
    """Return the JSON Pointer (RFC 6901) of a path, ``~`` and ``/`` in its segments escaped."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in path)


class Patch:
    """A JSON Patch in the making; every method returns the patch, so that calls chain.

    ``Patch().test("metadata", "resourceVersion", value="7").remove("spec", "schedulingGates", 0)``. The segment ``-``
    appends to a list.
    """

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.ops)

    def add(self, *path: str | int, value: Any) -> Self:
        """Add to a JSON Patch the operation that adds a member or list element, or replaces a member.

        Its parent must exist.
        """
        self.ops.append({"op": "add", "path": pointer(*path), "value": value})
        return self

    def replace(self, *path: str | int, value: Any) -> Self:
        """Add to a JSON Patch the operation that replaces a value; the value must exist."""
        self.ops.append({"op": "replace", "path": pointer(*path), "value": value})
        return self

    def remove(self, *path: str | int) -> Self:
        """Add to a JSON Patch the operation that removes a value; the value must exist."""
        self.ops.append({"op": "remove", "path": pointer(*path)})
        return self

    def move(self, *path: str | int, to: int) -> Self:
        """Add to a JSON Patch the operation that moves an element of a list to another index.

        The index is counted once the element has been taken out.
        """
        self.ops.append({"op": "move", "from": pointer(*path), "path": pointer(*path[:-1], to)})
        return self

    def test(self, *path: str | int, value: Any) -> Self:
        """Add to a JSON Patch the test that lets all of it fail (422 Invalid) unless the value is this one."""
        self.ops.append({"op": "test", "path": pointer(*path), "value": value})
        return self
