"""Builds JSON Patches (RFC 6902). All parts of the driver use this builder."""

from __future__ import annotations

import functools
from typing import Any, Self


@functools.lru_cache(maxsize=1024)
def pointer(*path: str | int) -> str:
    """Return the JSON Pointer (RFC 6901) of a path, ``~`` and ``/`` in its segments escaped."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in path)


class Patch:
    """Builds a JSON Patch. Every method returns the patch, so calls can be chained.

    ``Patch().test("metadata", "resourceVersion", value="7").remove("spec", "schedulingGates", 0)``. The segment ``-``
    appends to a list.
    """

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.ops)

    def add(self, *path: str | int, value: Any) -> Self:
        """Append the operation ``add``: set a member of an object, or insert an element into a list.

        An existing member is replaced. The object or list that gets the value must exist.
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
        """Append the operation that moves a list element, given by its path, to another index.

        ``to`` is the new index, counted after the element was removed from its old position.
        """
        self.ops.append({"op": "move", "from": pointer(*path), "path": pointer(*path[:-1], to)})
        return self

    def test(self, *path: str | int, value: Any) -> Self:
        """Add to a JSON Patch a test: the whole patch fails unless the value is ``value``.

        The API server then answers 422 Invalid.
        """
        self.ops.append({"op": "test", "path": pointer(*path), "value": value})
        return self
