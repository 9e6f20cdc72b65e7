"""On which nodes a namespace has parts of GPUs that are of one namespace at a time."""

from __future__ import annotations

import collections
from collections.abc import Collection, Set


class Tenants:
    """Namespaces by node, and nodes by namespace."""

    def __init__(self) -> None:
        self._of_node: dict[str, frozenset[str]] = {}
        self._of_namespace: collections.defaultdict[str, set[str]] = collections.defaultdict(set)

    def set(self, node: str, namespaces: Collection[str]) -> None:
        """Say which namespaces have such parts on a node; none of them any more that are not named."""
        for namespace in self._of_node.pop(node, frozenset()).difference(namespaces):
            self._of_namespace[namespace].discard(node)
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]
        for namespace in namespaces:
            self._of_namespace[namespace].add(node)
        if namespaces:
            self._of_node[node] = frozenset(namespaces)

    def nodes(self, namespace: str) -> Set[str]:
        """Return the nodes where a namespace has such parts."""
        return self._of_namespace.get(namespace, set())
