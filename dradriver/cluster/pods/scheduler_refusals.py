"""The nodes on which the scheduler recently found no room for a pod, although its GPUs were free there.

The scheduler alone sees some reasons, such as volumes, host ports and foreign pods. They usually concern all pods of
one owner, and stay true for a while. So refused nodes are remembered for a while, and avoided if other nodes are left.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

from dradriver.api.base import names
from dradriver.api.base.pods import Pod

KEPT_S: Final = 600.0
_MOST_KINDS: Final = 1024
_MOST_NODES: Final = 64  # of a kind; the oldest go

# What the scheduler says of nodes and the controller looks at itself. The texts are those of the plugins noderesources,
# dynamicresources, nodeaffinity, tainttoleration and nodeunschedulable, Kubernetes 1.37.
_KNOWN: Final = re.compile(
    "Insufficient |Too many pods|cannot allocate all claims"
    r"|node\(s\) (didn't match Pod's node affinity|had untolerated taint|were unschedulable)"
)
_CAUSE: Final = re.compile(r"^\d+ ")

Likes = tuple[str, str]  # namespace, and the owner's uid or the wishes of a pod without one


class Refusals:
    """The nodes on which the scheduler recently refused pods, for each class of equal pods.

    Pods are equal if they have the same owner, or without an owner the same request in the same namespace.
    """

    def __init__(self) -> None:
        # By kind of pod: nodes that refused it, and until when that counts by the loop's clock; the oldest first.
        self._nodes: OrderedDict[Likes, OrderedDict[str, float]] = OrderedDict()

    def add(self, pod: Pod, node: str, now: float) -> None:
        """Record that the scheduler refused a pod on a node.

        ``now`` is the event loop's time, in seconds.
        """
        kind = _kind(pod)
        nodes = self._nodes.setdefault(kind, OrderedDict())
        self._nodes.move_to_end(kind)
        nodes[node] = now + KEPT_S
        nodes.move_to_end(node)
        if len(nodes) > _MOST_NODES:
            nodes.popitem(last=False)
        if len(self._nodes) > _MOST_KINDS:
            self._nodes.popitem(last=False)

    def of(self, pod: Pod, now: float) -> list[str]:
        """Return the nodes on which the scheduler recently refused this pod or equal pods.

        Pods are equal if they have the same owner, or without an owner the same request in the same namespace. ``now``
        is the event loop's time, in seconds.
        """
        kind = _kind(pod)
        nodes = self._nodes.get(kind)
        if nodes is None:
            return []
        while nodes and next(iter(nodes.values())) <= now:
            nodes.popitem(last=False)
        if not nodes:
            del self._nodes[kind]
        return list(nodes)


def is_about_nodes(message: str) -> bool:
    """Return whether the scheduler refused a pod for a reason that depends on the node.

    Examples are a port, a rule or a volume. Reasons that the controller checks itself do not count.

    Args:
        message: The scheduler's message, for example ``0/5 nodes are available: 2 Insufficient cpu, 3 node(s) ...``.
    """
    causes = message[:1024].partition(": ")[2].partition(". ")[0].split(", ")
    return any(_CAUSE.match(cause) and not _KNOWN.match(_CAUSE.sub("", cause)) for cause in causes)


def _kind(pod: Pod) -> Likes:
    owner = next((reference.uid for reference in pod.metadata.owner_references if reference.controller), "")
    return pod.metadata.namespace, owner or pod.metadata.annotations.get(names.REQUEST, "")
