"""Count what an object keeps, or lose some of it as an error in the program would, without naming its attributes."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence, Set
from types import MemberDescriptorType

__all__ = ["entries", "lose_one_by_one"]

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


def lose_one_by_one(value: object, key: object) -> Iterator[None]:
    """Remove a key from each mapping of an object that contains it, one after the other. Yields after each."""
    for mapping in [one for one in attributes(value) if isinstance(one, MutableMapping) and key in one]:
        del mapping[key]
        yield


def attributes(value: object) -> Iterator[object]:
    """Yield the values of an object's attributes, those in slots too."""
    if hasattr(value, "__dict__"):
        yield from vars(value).values()
    for owner in type(value).__mro__:
        for member in owner.__dict__.values():
            if isinstance(member, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot without a value
                    yield member.__get__(value)
