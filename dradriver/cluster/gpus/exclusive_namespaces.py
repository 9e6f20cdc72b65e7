"""By which numbers the allocator knows namespaces that have parts of GPUs which are of one namespace at a time."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Set
from typing import Final

SEVERAL: Final = -1
"""The tenant of a GPU that was several namespaces' before it was one's at a time: nobody gets more of it."""


class ExclusiveNamespaces:
    """Numbers of namespaces: one has the same as long as it has such parts anywhere, and no other ever has it.

    Attributes:
        of_node: The namespaces with such parts, of each node that has any.
    """

    def __init__(self) -> None:
        self.of_node: dict[str, frozenset[str]] = {}
        self._nodes: collections.Counter[str] = collections.Counter()
        self._numbers: dict[str, int] = {}
        self._next = itertools.count(1)

    def set(self, node: str, gpus: Mapping[int, Set[str]]) -> tuple[tuple[int, int], ...]:
        """Set which namespaces have exclusive parts of which of a node's GPUs.

        Returns the tenant of each of these GPUs, by its number, ascending.
        """
        namespaces = frozenset(namespace for own in gpus.values() for namespace in own)
        before = self.of_node.pop(node, frozenset())
        for namespace in namespaces - before:
            self._nodes[namespace] += 1
            if namespace not in self._numbers:
                self._numbers[namespace] = next(self._next)
        for namespace in before - namespaces:
            self._nodes[namespace] -= 1
            if not self._nodes[namespace]:
                del self._nodes[namespace], self._numbers[namespace]
        if namespaces:
            self.of_node[node] = namespaces
        return self.tenants(gpus)

    def tenants(self, gpus: Mapping[int, Set[str]]) -> tuple[tuple[int, int], ...]:
        """Return the namespace's number for each of these GPUs with exclusive parts, ascending."""
        return tuple((gpu, self._tenant(own)) for gpu, own in sorted(gpus.items()) if own)

    def number(self, namespace: str) -> int:
        """Return the number of a namespace with exclusive parts of GPUs; 0 if it has none."""
        return self._numbers.get(namespace, 0)

    def _tenant(self, namespaces: Iterable[str]) -> int:
        first, *others = namespaces
        return SEVERAL if others else self._numbers[first]
