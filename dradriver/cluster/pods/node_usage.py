"""What pods of ours take from their nodes: those that are bound, and those that are promised to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_resources import Amounts, request_of


class NodeUsage:
    """Counts each pod of ours on one node, or on none."""

    def __init__(self, nodes: NodeTable, pods: Mapping[Key, Pod], promised: Callable[[Pod], str]) -> None:
        """Count nothing yet.

        Args:
            nodes: Where it is counted.
            pods: The living pods; whatever changes of one, and of its claim, is told to ``recount``.
            promised: Gives the node that a pod is promised to; empty for none.
        """
        self._nodes, self._pods, self._promised = nodes, pods, promised
        self._taken: dict[Key, tuple[str, Amounts]] = {}  # by pod: its node, and what it takes there

    def by(self, pod: Key) -> tuple[str, Amounts] | None:
        """Return the node whose resources a pod takes, and what; None for nothing."""
        return self._taken.get(pod)

    def node_of(self, pod: Key) -> str | None:
        """Return the node whose resources a pod takes; None for none."""
        taken = self._taken.get(pod)
        return None if taken is None else taken[0]

    def pods(self) -> tuple[Key, ...]:
        """Return the pods that take any resources of nodes."""
        return tuple(self._taken)

    def recount(self, key: Key) -> bool:
        """Count what a pod takes from its node, or from the one that it is promised to. Returns whether it changed."""
        pod = self._pods.get(key)
        node = "" if pod is None or pod.finished else pod.spec.node_name or self._promised(pod)
        before, after = self._taken.get(key), None
        if pod is not None and node:
            after = node, request_of(pod)
        if before == after:
            return False
        if before is not None:
            self._nodes.give(*before)
        if after is None:
            del self._taken[key]
        else:
            self._nodes.take(*after)
            self._taken[key] = after
        return True
