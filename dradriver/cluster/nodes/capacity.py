"""What every node has left, by resource, as kube-scheduler's ``NodeResourcesFit`` counts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dradriver.cluster.nodes.columns import Bools, Ints, grown
from dradriver.cluster.nodes.pod_resources import LARGEST, Amounts

Freed: TypeAlias = Mapping[int, tuple[str, Amounts]]
"""By row, the name of its node, and what pods take there that counts as free."""


class _Column:
    """One resource: what each row has to give, and what is left of it."""

    def __init__(self, rows: int) -> None:
        self.allocatable: Ints = np.zeros(rows, np.int64)
        self.left: Ints = np.zeros(rows, np.int64)

    def grow(self, rows: int) -> None:
        self.allocatable, self.left = grown(self.allocatable, rows), grown(self.left, rows)

    def use(self, row: int, used: int) -> None:
        self.left[row] = self.with_used(row, used)

    def with_used(self, row: int, used: int) -> int:
        """Return the capacity that a node's row has left if so much is used."""
        # What is used is exact, so that it adds up when pods go. More than 64 bits hold is cut only here.
        return min(max(int(self.allocatable[row]) - used, -LARGEST), LARGEST)


class Capacity:
    """Allocatable amounts of every row, and what pods use on every node, known or not.

    Only what some node has gets a column: what pods make up costs nothing.

    Attributes:
        claimable: Resources that are not checked on a node that has none of them: a DeviceClass serves them, and
            kube-scheduler leaves them to its DRA plugin (``shouldDelegateResourceToDRA``).
    """

    def __init__(self) -> None:
        self.claimable: frozenset[str] = frozenset()
        self._rows = 0
        self._columns: dict[str, _Column] = {}
        self._used: dict[str, Amounts] = {}

    @property
    def used(self) -> Mapping[str, Amounts]:
        """Return how much of each node's capacity pods use, by node and resource."""
        return self._used

    def grow(self, rows: int) -> None:
        """Add rows without capacity to the arrays of nodes."""
        self._rows = rows
        for column in self._columns.values():
            column.grow(rows)

    def set(self, row: int, name: str, allocatable: Mapping[str, int]) -> bool:
        """Replace the capacity of a node's row. Returns whether a pod may fit that did not."""
        used = self._used.get(name, {})
        helps = False
        for resource in allocatable.keys() - self._columns.keys():
            if allocatable[resource]:
                self._columns[resource] = _Column(self._rows)
        for resource, column in self._columns.items():
            before, now = int(column.allocatable[row]), allocatable.get(resource, 0)
            column.allocatable[row] = now
            column.use(row, used.get(resource, 0))
            helps |= now > before or (now < before and now == 0 and resource in self.claimable)
        return helps

    def use(self, name: str, row: int | None, request: Mapping[str, int], sign: int) -> None:
        """Add (1) or subtract (-1) what a pod uses of a node's capacity; ``row`` is None while the node has none."""
        used = self._used.setdefault(name, {})
        for resource, amount in request.items():
            now = used.get(resource, 0) + sign * amount
            if now:
                used[resource] = now
            else:
                used.pop(resource, None)
            if row is not None and resource in self._columns:
                self._columns[resource].use(row, now)
        if not used:
            del self._used[name]

    def fitting(self, rows: Bools, amounts: tuple[tuple[str, int], ...], freed: Freed) -> Bools:
        """Return those of the nodes' rows whose capacity left covers all amounts: shape (rows,), the caller's own."""
        rows = rows.copy()
        for _, enough in self._enough(amounts, freed):
            rows &= enough
        return rows

    def columns(self, resources: Sequence[str], freed: Freed) -> Ints:
        """Return the capacity that nodes have left of some resources: shape (rows, resources), the caller's own."""
        left = np.zeros((self._rows, len(resources)), np.int64)
        for at, resource in enumerate(resources):
            column = self._columns.get(resource)
            if column is not None:
                left[:, at] = column.left
                for row, amount in self._more(resource, freed):
                    left[row, at] = column.with_used(row, amount)
                if resource in self.claimable:
                    left[column.allocatable == 0, at] = LARGEST
            elif resource in self.claimable:
                left[:, at] = LARGEST
        return left

    def lacking(self, rows: Bools, amounts: tuple[tuple[str, int], ...], freed: Freed) -> list[str]:
        """Return of which resource nodes lack capacity: of each row the first of the amounts that is not left."""
        resources = []
        rows = rows.copy()
        for resource, enough in self._enough(amounts, freed):
            if (rows & ~enough).any():
                resources.append(resource)
                rows &= enough
        return resources

    def _more(self, resource: str, freed: Freed) -> Iterator[tuple[int, int]]:
        """Yield the rows on which some of a resource counts as free, and what is used there besides."""
        for row, (name, amounts) in freed.items():
            if amount := amounts.get(resource, 0):
                yield row, self._used.get(name, {}).get(resource, 0) - amount

    def _enough(self, amounts: tuple[tuple[str, int], ...], freed: Freed) -> Iterator[tuple[str, Bools]]:
        for resource, amount in amounts:
            column = self._columns.get(resource)
            if column is not None:
                enough: Bools = column.left >= amount
                for row, used in self._more(resource, freed):
                    enough[row] = column.with_used(row, used) >= amount
                if resource in self.claimable:
                    enough |= column.allocatable == 0
                yield resource, enough
            elif resource not in self.claimable:
                yield resource, np.zeros(self._rows, np.bool_)
                return
