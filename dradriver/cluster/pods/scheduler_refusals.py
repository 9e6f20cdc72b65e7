"""The nodes on which the scheduler recently found no room for a pod that had its GPUs there.

What only the scheduler sees (volumes, host ports, pods of others) holds for pods of one owner alike, and lasts. It is
remembered for a while, and heeded only while there are other nodes.
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
    """Nodes by kind of pod."""

    def __init__(self) -> None:
        # By kind of pod: nodes that refused it, and until when that counts by the loop's clock; the oldest first.
        self._nodes: OrderedDict[Likes, OrderedDict[str, float]] = OrderedDict()

    def add(self, pod: Pod, node: str, now: float) -> None:
        """Note that the scheduler refused a pod on a node, at a time by the loop's clock."""
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
        """Return the nodes on which the scheduler recently refused pods of this kind."""
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
    """Return whether the scheduler refuses nodes for something that other nodes may not have: a port, a rule, a volume.

    Args:
        message: What it says of a pod, for example ``0/5 nodes are available: 2 Insufficient cpu, 3 node(s) ...``.
    """
    causes = message[:1024].partition(": ")[2].partition(". ")[0].split(", ")
    return any(_CAUSE.match(cause) and not _KNOWN.match(_CAUSE.sub("", cause)) for cause in causes)


def _kind(pod: Pod) -> Likes:
    owner = next((reference.uid for reference in pod.metadata.owner_references if reference.controller), "")
    return pod.metadata.namespace, owner or pod.metadata.annotations.get(names.REQUEST, "")
