"""Keeps how much of each resource, such as CPU, is free on every node.

It is counted as in kube-scheduler's plugin ``NodeResourcesFit``.

A *row* is the index of a node in all arrays of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dradriver.cluster.nodes.columns import Bools, Ints, grown
from dradriver.cluster.nodes.pod_resources import LARGEST, Amounts

Freed: TypeAlias = Mapping[int, tuple[str, Amounts]]
"""By row, the name of its node, and what pods take there that counts as free."""


class _Column:
    """One resource, such as memory: how much of it each node has, and has free.

    There is one entry for each row (a node's index).
    """

    def __init__(self, rows: int) -> None:
        self.allocatable: Ints = np.zeros(rows, np.int64)
        self.left: Ints = np.zeros(rows, np.int64)

    def grow(self, rows: int) -> None:
        self.allocatable, self.left = grown(self.allocatable, rows), grown(self.left, rows)

    def use(self, row: int, used: int) -> None:
        self.left[row] = self.with_used(row, used)

    def with_used(self, row: int, used: int) -> int:
        """Return how much of the resource is free on a node if pods use ``used``.

        ``row`` is the node's index.
        """
        # What is used is exact, so that it adds up when pods go. More than 64 bits hold is cut only here.
        return min(max(int(self.allocatable[row]) - used, -LARGEST), LARGEST)


class Capacity:
    """The allocatable resources of every node, and the resources that pods use on it.

    A row is the index of a node that is known. Pods are counted on unknown nodes, too. Only a resource that some node
    has gets a column. Resource names that exist only in pods use no memory here.

    Attributes:
        claimable: Extended resources that a DeviceClass serves. They are not checked on a node that has none of them,
            because kube-scheduler leaves them to its DRA plugin (``shouldDelegateResourceToDRA``).
    """

    def __init__(self) -> None:
        self.claimable: frozenset[str] = frozenset()
        self._rows = 0
        self._columns: dict[str, _Column] = {}
        self._used: dict[str, Amounts] = {}

    @property
    def used(self) -> Mapping[str, Amounts]:
        """Return the amounts that pods use, by node and resource."""
        return self._used

    def grow(self, rows: int) -> None:
        """Add rows (nodes) that have no resources yet."""
        self._rows = rows
        for column in self._columns.values():
            column.grow(rows)

    def set(self, row: int, name: str, allocatable: Mapping[str, int]) -> bool:
        """Replace the allocatable resources of a node.

        ``row`` is the node's index, ``name`` its name.

        Returns:
            Whether pods may fit now that did not fit before.
        """
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
        """Change a node's used amounts by a pod's resources: add (``sign`` 1) or subtract (-1).

        ``name`` is the node, ``request`` the resources. ``row`` is None if the node has no row.
        """
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
        """Return which of some rows have enough of all resources free: shape (rows,), a new array.

        Args:
            rows: The rows to check: (rows,).
            amounts: The amounts that are needed, by resource.
            freed: Amounts in use that count as free, for example of pods that would end: by row, the node's name and
                the amounts.
        """
        rows = rows.copy()
        for _, enough in self._enough(amounts, freed):
            rows &= enough
        return rows

    def columns(self, resources: Sequence[str], freed: Freed) -> Ints:
        """Return the free amounts of some resources: shape (rows, resources), a new array.

        CPU is in thousandths of a core, all other resources in whole units.
        ``freed`` has, by row, the node's name and the amounts in use that count as free.
        """
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
        """Return the resources of which some nodes have too little.

        If a node has too little of several resources, only the first counts. ``rows`` are the nodes. ``amounts`` are
        the amounts that are needed, by resource. ``freed`` has, by row, the node's name and the amounts in use that
        count as free.
        """
        resources = []
        rows = rows.copy()
        for resource, enough in self._enough(amounts, freed):
            if (rows & ~enough).any():
                resources.append(resource)
                rows &= enough
        return resources

    def _more(self, resource: str, freed: Freed) -> Iterator[tuple[int, int]]:
        """Yield the nodes on which some used amount of a resource counts as free.

        The result has the rows of the nodes. Each row comes with the used amount that remains. ``freed`` has, by row,
        the node's name and the amounts in use that count as free.
        """
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
