"""Count what an object keeps, for tests which say that it forgets."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MemberDescriptorType

__all__ = ["entries"]

OURS = ("dradriver", "webhook")


def entries(*roots: object) -> int:
    """Return how many entries the collections hold that can be reached from ``roots``.

    Follows attributes of this project's objects, whatever their names, and what collections contain.
    Functions, tasks and objects of other packages are not followed. A test compares the count before some
    work with the count after it: equal means that nothing is kept.
    """
    seen, waiting, total = set[int](), list(roots), 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, str | bytes | int | float | type | None):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            total += len(value)
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, Sequence | Set | deque):
            total += len(value)
            waiting += value
        elif type(value).__module__.partition(".")[0] in OURS:
            waiting += attributes(value)
    return total


def attributes(value: object) -> Iterator[object]:
    """Yield the values of an object's attributes, those in slots too."""
    if hasattr(value, "__dict__"):
        yield from vars(value).values()
    for owner in type(value).__mro__:
        for member in owner.__dict__.values():
            if isinstance(member, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot without a value
                    yield member.__get__(value)
