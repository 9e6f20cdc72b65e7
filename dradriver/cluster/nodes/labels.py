"""Finds the nodes that a node selector and a required node affinity select.

Labels are stored in arrays. A row is the index of a node in the arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

import numpy as np

from dradriver.cluster.nodes.columns import Bools, Numbers, Texts
from dradriver.cluster.nodes.expressions import integer
from dradriver.cluster.nodes.pod_demands import Constraints, Requirement, Terms, Where

_NONE: Final[Mapping[str, str]] = {}
_NAME: Final = "metadata.name"
_MOST_COLUMNS: Final = 256  # 20 KiB each at 5,000 nodes, made when somebody asks for a label

_Column = TypeVar("_Column", Texts, Numbers)


class Index:
    """The labels (or fields) of every node, by row, with columns for the keys that selectors use."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, str]] = []
        self._users: Counter[str] = Counter()  # rows that have a key: what pods make up never costs a column
        self._texts: dict[str, Texts] = {}
        self._numbers: dict[str, Numbers] = {}

    def grow(self, rows: int) -> None:
        """Add rows (nodes) without labels to the index."""
        self._rows.extend([_NONE] * (rows - len(self._rows)))
        for texts in self._texts.values():
            texts.grow(rows)
        for numbers in self._numbers.values():
            numbers.grow(rows)

    def set(self, row: int, new: Mapping[str, str]) -> None:
        """Replace the labels of a row (a node) by ``new``.

        The mapping is kept, and must not change.
        """
        old = self._rows[row]
        self._rows[row] = new
        for columns in (self._texts, self._numbers):
            for key, column in columns.items():
                if (before := old.get(key)) != (after := new.get(key)):
                    column.set(row, before, after)
        self._users.subtract(old.keys())
        self._users.update(new.keys())
        for key in old.keys() - new.keys():
            if not self._users[key]:
                del self._users[key]

    def holds(self, requirement: Requirement) -> Bools | bool:
        """Return for each node whether a label expression is true.

        ``requirement`` is the expression, as in Kubernetes' node affinity.

        Returns:
            An array with one bool for each row (a node's index), which the caller may change. One bool if all are the
            same.
        """
        key, operator, values = requirement
        if key not in self._users:  # no node has the label
            return operator in ("NotIn", "DoesNotExist")
        match operator:
            case "In":
                mask = self._column(self._texts, key, Texts).among(values)
                return mask if mask is not None else False
            case "NotIn":  # a missing label counts as different
                mask = self._column(self._texts, key, Texts).among(values)
                return ~mask if mask is not None else True
            case "Exists":
                return self._column(self._texts, key, Texts).present()
            case "DoesNotExist":
                return ~self._column(self._texts, key, Texts).present()
            case "Gt" | "Lt":
                bound = integer(values[0]) if len(values) == 1 else None
                if bound is None:
                    return False
                numbers = self._column(self._numbers, key, Numbers)
                return numbers.above(bound) if operator == "Gt" else numbers.below(bound)
            case _:
                return False

    def values(self, key: str, rows: Bools) -> frozenset[str]:
        """Return the values that a label has on some nodes.

        ``key`` is the label's key. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        if key not in self._users:
            return frozenset()
        texts = (self._rows[row].get(key) for row in np.flatnonzero(rows).tolist())
        return frozenset(value for value in texts if value is not None)

    def _column(self, columns: dict[str, _Column], key: str, make: Callable[[list[str | None]], _Column]) -> _Column:
        """Return the column of a label key: the label's value on every node.

        ``columns`` has the columns by key; ``make`` makes a missing one. If there are too many columns, the least
        recently used one is dropped.
        """
        column = columns.pop(key, None)
        if column is None:
            column = make([texts.get(key) for texts in self._rows])
            if len(columns) >= _MOST_COLUMNS:
                del columns[next(iter(columns))]
        columns[key] = column
        return column


class Labels:
    """The labels and the name of every node. A row is the index of a node."""

    def __init__(self) -> None:
        self._labels = Index()
        self._fields = Index()
        self._rows = 0

    def grow(self, rows: int) -> None:
        """Add rows of nodes without labels."""
        self._rows = rows
        self._labels.grow(rows)
        self._fields.grow(rows)

    def set(self, row: int, name: str, labels: Mapping[str, str]) -> None:
        """Replace the labels of a node.

        ``row`` is the node's index, ``name`` its name. The mapping is kept, and must not change.
        """
        self._labels.set(row, labels)
        self._fields.set(row, {_NAME: name})

    def clear(self, row: int) -> None:
        """Remove the labels and the name of a node. ``row`` is the node's index."""
        self._labels.set(row, _NONE)
        self._fields.set(row, _NONE)

    def labelled(self, key: str, values: Collection[str]) -> Bools:
        """Return the nodes that have a label with one of some values.

        ``key`` is the label's key. The result is a new array with one bool for each row (a node's index).
        """
        mask = self._labels.holds((key, "In", tuple(values))) if values else False
        return np.full(self._rows, mask) if isinstance(mask, bool) else mask

    def having(self, key: str) -> Bools:
        """Return the nodes that have a label with this key, whatever its value.

        The result is a new array with one bool for each row (a node's index).
        """
        mask = self._labels.holds((key, "Exists", ()))
        return np.full(self._rows, mask) if isinstance(mask, bool) else mask

    def values(self, key: str, rows: Bools) -> frozenset[str]:
        """Return the values that a label has on some nodes.

        ``key`` is the label's key. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        return self._labels.values(key, rows)

    def selected(self, constraints: Constraints) -> Bools:
        """Return the nodes that a node selector and a node affinity select.

        Both are in ``constraints``, whose other fields are ignored. The result has one bool for each row (a node's
        index).
        """
        mask: Bools | bool = True
        for key, value in constraints.selector:
            mask = _both(mask, self._labels.holds((key, "In", (value,))))
        if constraints.terms is not None:
            mask = _both(mask, self._any(constraints.terms))
        return np.full(self._rows, mask) if isinstance(mask, bool) else mask

    def reaching(self, volumes: Where) -> Bools:
        """Return the nodes that can reach all of some volumes: shape (rows,), a new array.

        ``volumes`` has the terms (conditions on nodes) of each volume. A node can reach a volume if its labels match at
        least one of the volume's terms.
        """
        mask: Bools | bool = True
        for terms in volumes:
            mask = _both(mask, self._any(terms))
        return np.full(self._rows, mask) if isinstance(mask, bool) else mask

    def _any(self, terms: Terms) -> Bools | bool:
        mask: Bools | bool = False
        for term in terms:
            mask = _either(mask, self._term(term.labels, term.fields))
        return mask

    def _term(self, labels: tuple[Requirement, ...], fields: tuple[Requirement, ...]) -> Bools | bool:
        mask: Bools | bool = bool(labels or fields)
        for index, requirements in ((self._labels, labels), (self._fields, fields)):
            for requirement in requirements:
                if mask is False:
                    return False
                mask = _both(mask, index.holds(requirement))
        return mask


def _both(a: Bools | bool, b: Bools | bool) -> Bools | bool:
    """Return the nodes that are in both arguments.

    Each is an array with one bool for each row (a node's index); or True for all nodes, or False for none. The function
    may overwrite its arguments.
    """
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    a &= b
    return a


def _either(a: Bools | bool, b: Bools | bool) -> Bools | bool:
    """Return the nodes that are in at least one of the arguments.

    Each is an array with one bool for each row (a node's index); or True for all nodes, or False for none. The function
    may overwrite its arguments.
    """
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    a |= b
    return a
