"""What the pods of every node take, and what is left."""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.api.objects import Node, Pod
from dradriver.controller.nodes.requests import Amounts, amounts, node_of, request_of

__all__ = ["Usage", "node_of", "request_of"]


class Usage:
    """What the pods of every node take, and what is left."""

    def __init__(self) -> None:
        self._allocatable: dict[str, Amounts] = {}
        self._used: dict[str, Amounts] = {}

    def set_node(self, name: str, node: Node | None) -> bool:
        """Record what a node has to give, or that it is gone. Returns whether that is news."""
        if node is None:
            return self._allocatable.pop(name, None) is not None
        allocatable = amounts(node.status.allocatable)
        news = self._allocatable.get(name) != allocatable
        self._allocatable[name] = allocatable
        return news

    def set_pod(self, old: Pod | None, new: Pod | None) -> bool:
        """Take the old pod off its node and put the new one on its own. Returns whether that changed anything."""
        before = (node_of(old), request_of(old)) if old is not None and node_of(old) else None
        after = (node_of(new), request_of(new)) if new is not None and node_of(new) else None
        if before == after:
            return False
        for place, sign in ((before, -1), (after, 1)):
            if place is not None:
                self._add(place[0], place[1], sign)
        return True

    def lacking(self, node: str, wanted: Mapping[str, int], *, besides: Pod | None = None) -> str | None:
        """Return the first resource that a node has too little of for a request, or None where all fits.

        Args:
            node: The node's name.
            wanted: The request, from ``request_of``.
            besides: A pod whose share counts as free: the one that is being placed again.
        """
        allocatable = self._allocatable.get(node, {})
        used = self._used.get(node, {})
        own = request_of(besides) if besides is not None and node_of(besides) == node else {}
        for resource, amount in sorted(wanted.items()):
            left = allocatable.get(resource, 0) - used.get(resource, 0) + own.get(resource, 0)
            if amount > 0 and left < amount:
                return resource
        return None

    def _add(self, node: str, request: Amounts, sign: int) -> None:
        used = self._used.setdefault(node, {})
        for resource, amount in request.items():
            used[resource] = used.get(resource, 0) + sign * amount
        if not any(used.values()):
            del self._used[node]
