"""Reads YAML texts that have no schema, within limits of nesting and of the number of values.

Kubeconfigs and manifests are read with it; ``read`` is for texts with a schema. The limits protect the memory: a few kB
of nested aliases (references to earlier values) can stand for more values than fit into it. PyYAML raises exceptions of
many types for odd tags, and repeats names of any length in its messages. ``load`` raises only ``ValueError``, with a
short message.
"""

from __future__ import annotations

import reprlib
from typing import Any, Final

import yaml

_REPR: Final = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict, _REPR.maxstring, _REPR.maxother = 2, 3, 3, 60, 60
_MOST_CHARACTERS: Final = 200  # of a PyYAML message, which repeats names of any length

FAILURES: Final = (yaml.YAMLError, ValueError, LookupError, OverflowError, RecursionError, TypeError, AttributeError)
"""What PyYAML raises of odd texts: a ``ValueError`` of a date, a ``KeyError`` of ``!!bool x``."""


class OutOfBoundsError(ValueError):
    """A YAML text is nested too deeply or has too many values; ``line`` counts from 1."""

    def __init__(self, line: int, says: str) -> None:
        super().__init__(says)
        self.line = line


def shown(value: object) -> str:
    """Return a YAML value of any type as short text for an error message."""
    try:
        return _REPR.repr(value)
    except ValueError:  # a number with more digits than Python writes
        return "a number"


def problem_of(error: Exception) -> str:
    """Return the description of a YAML reader's error, on one line and shortened."""
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
    return " ".join(str(problem)[:_MOST_CHARACTERS].split())


def line_of(error: Exception) -> int:
    """Return the line of a YAML reader's error, from 1; 1 if unknown."""
    if isinstance(error, OutOfBoundsError):
        return error.line
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark else 1


def check(node: yaml.Node | None, *, deepest: int, most: int) -> None:
    """Raise if a YAML node contains itself, is nested too deeply, or has too many values.

    A node contains itself through an alias: ``&a [*a]``.

    Args:
        node: The root of the parsed YAML; None for an empty document.
        deepest: The largest number of levels.
        most: The largest number of values. The values of an alias count each time that the alias is used.

    Raises:
        OutOfBoundsError: With the line.
    """
    # By ``id`` of a list or map, the number of values in it. An alias is the same node again, so its size is known.
    # 0 while the node's children are still being counted: a node that is met again then contains itself.
    sizes: dict[int, int] = {}

    def size(each: Any, depth: int) -> int:
        """Return the number of values in the YAML node ``each``.

        The node itself and the values of its aliases are included. ``depth`` is the node's level of nesting. Raises
        OutOfBoundsError as ``check`` does.
        """
        line = each.start_mark.line + 1
        known = sizes.get(id(each))
        if known is not None:
            if known == 0:
                raise OutOfBoundsError(line, "an alias of itself")
            return known
        if isinstance(each, yaml.ScalarNode):
            return 1
        if depth > deepest:
            raise OutOfBoundsError(line, f"nested deeper than {deepest} levels")
        sizes[id(each)] = 0
        is_map = isinstance(each, yaml.MappingNode)
        children = [part for pair in each.value for part in pair] if is_map else each.value
        total = 1 + sum(size(child, depth + 1) for child in children)
        if total > most:
            raise OutOfBoundsError(line, f"more than {most} values behind aliases")
        sizes[id(each)] = total
        return total

    if node is not None:
        size(node, 0)


def load(text: str, *, deepest: int, most: int) -> object:
    """Return the content of a YAML text of one document, within limits.

    Values have the types that ``yaml.safe_load`` gives them.

    Args:
        text: The YAML text.
        deepest: The largest number of levels.
        most: The largest number of values. The values of an alias count each time that the alias is used.

    Raises:
        OutOfBoundsError: The text is nested too deeply, or has too many values.
        ValueError: The text is not valid YAML; the message has the line.
    """
    try:
        loader = _Loader(text, deepest)
        node = loader.get_single_node()
        check(node, deepest=deepest, most=most)
        return None if node is None else loader.construct_document(node)
    except FAILURES as error:
        if isinstance(error, OutOfBoundsError):
            raise
        raise ValueError(f"line {line_of(error)}: {problem_of(error)}") from None


class _Loader(yaml.SafeLoader):
    """A YAML loader that fails if a text is nested too deeply, before Python's stack overflows."""

    def __init__(self, text: str, deepest: int) -> None:
        super().__init__(text)
        self._depth = -1
        self._deepest = deepest

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > self._deepest:
            raise OutOfBoundsError(self.line + 1, f"nested deeper than {self._deepest} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node
