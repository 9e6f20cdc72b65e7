"""Numbers for namespaces, by which the allocator tells who may use an exclusive GPU.

An exclusive GPU has fractions of only one namespace at a time. The allocator's arrays cannot contain names, so each
namespace with fractions of such a GPU gets a number.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Set
from typing import Final

SEVERAL: Final = -1
"""The tenant of a GPU that was several namespaces' before it was one's at a time: nobody gets more of it."""


class ExclusiveNamespaces:
    """Numbers for the namespaces that have fractions of exclusive GPUs.

    An exclusive GPU is divided for one namespace at a time. A namespace keeps its number as long as it has a fraction
    of any such GPU. A number is never used for another namespace.

    Attributes:
        of_node: For each node with such fractions, the namespaces that have them.
    """

    def __init__(self) -> None:
        self.of_node: dict[str, frozenset[str]] = {}
        self._nodes: collections.Counter[str] = collections.Counter()
        self._numbers: dict[str, int] = {}
        self._next = itertools.count(1)

    def set(self, node: str, gpus: Mapping[int, Set[str]]) -> tuple[tuple[int, int], ...]:
        """Record which namespaces have fractions of a node's exclusive GPUs.

        Args:
            node: The node.
            gpus: For each exclusive GPU, by GPU number, the namespaces that have fractions of it.

        Returns:
            The namespace numbers of these GPUs, as ``tenants`` returns them.
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
        """Return the exclusive GPUs that have fractions in use, each with its namespace's number.

        The result has sorted pairs of the GPU number and the namespace number. The namespace number is ``SEVERAL`` if
        several namespaces have fractions of the GPU. ``gpus`` has the namespaces of each GPU, by GPU number.
        """
        return tuple((gpu, self._tenant(own)) for gpu, own in sorted(gpus.items()) if own)

    def number(self, namespace: str) -> int:
        """Return a namespace's number; 0 if it has no fractions of exclusive GPUs.

        An exclusive GPU has fractions of only one namespace at a time.
        """
        return self._numbers.get(namespace, 0)

    def _tenant(self, namespaces: Iterable[str]) -> int:
        first, *others = namespaces
        return SEVERAL if others else self._numbers[first]
