"""The resources that this driver's pods use on their nodes. Pods with a tentative placement count like bound pods.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_resources import Amounts, request_of


class NodeUsage:
    """Counts the resources of each pod of this driver on the pod's node, if it has one."""

    def __init__(self, nodes: NodeTable, pods: Mapping[Key, Pod], promised: Callable[[Pod], str]) -> None:
        """Make an object that counts nothing yet.

        Args:
            nodes: The table of nodes, in which the resources are counted.
            pods: The living pods. ``recount`` must be called for each change of a pod or its claim.
            promised: Returns the node of a pod's tentative placement; empty for none.
        """
        self._nodes, self._pods, self._promised = nodes, pods, promised
        self._taken: dict[Key, tuple[str, Amounts]] = {}  # by pod: its node, and what it takes there

    def by(self, pod: Key) -> tuple[str, Amounts] | None:
        """Return the node on which a pod's resources are counted, and these resources.

        None if they are counted on no node.
        """
        return self._taken.get(pod)

    def node_of(self, pod: Key) -> str | None:
        """Return the node on which a pod's resources are counted; None for none."""
        taken = self._taken.get(pod)
        return None if taken is None else taken[0]

    def pods(self) -> tuple[Key, ...]:
        """Return the pods whose resources are counted on a node."""
        return tuple(self._taken)

    def recount(self, key: Key) -> bool:
        """Count a pod's resources again, on its node or on the node of its tentative placement.

        Returns:
            Whether the node or the resources changed.
        """
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
