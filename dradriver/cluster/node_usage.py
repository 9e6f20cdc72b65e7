"""What pods of ours take from their nodes: those that are bound, and those that are promised to one."""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.api.objects import Pod
from dradriver.api.pins import Key, claim_key, is_set
from dradriver.cluster.claim_users import ClaimUsers
from dradriver.cluster.nodes.requests import Amounts, request_of
from dradriver.cluster.nodes.table import NodeTable
from dradriver.cluster.placement import Placement
from dradriver.cluster.records import ClaimRecord


class NodeUsage:
    """Counts each pod of ours on one node, or on none."""

    def __init__(
        self,
        nodes: NodeTable,
        *,
        pods: Mapping[Key, Pod],
        claims: Mapping[Key, ClaimRecord],
        intended: Mapping[Key, Placement],
        claim_users: ClaimUsers,
    ) -> None:
        """All of these are the picture's; what changes in them is told to ``recount``."""
        self._nodes, self._pods, self._claims, self._intended = nodes, pods, claims, intended
        self._claim_users = claim_users
        self._joining: dict[Key, str] = {}  # nodes by pods that are being written into the claim of a set
        self._taken: dict[Key, tuple[str, Amounts]] = {}

    def by(self, pod: Key) -> tuple[str, Amounts] | None:
        """Return the node that a pod takes something from, and what; None for nothing."""
        return self._taken.get(pod)

    def node_of(self, pod: Key) -> str | None:
        """Return the node that a pod takes something from; None for none."""
        taken = self._taken.get(pod)
        return None if taken is None else taken[0]

    def joins(self, pod: Key, node: str) -> None:
        """Count a pod on the node of the set that it is coming to."""
        self._joining[pod] = node
        self.recount(pod)

    def joined(self, pod: Key) -> None:
        """Count it as what it has become: an owner of the set's claim, or not."""
        self._joining.pop(pod, None)
        self.recount(pod)

    def pods(self) -> tuple[Key, ...]:
        """Return the pods that take anything."""
        return tuple(self._taken)

    def recount(self, key: Key) -> bool:
        """Count what a pod takes: from its node, or from the one that it is promised to. Returns whether it is news."""
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

    def _promised(self, pod: Pod) -> str:
        key = claim_key(pod)
        if key is None:
            return ""
        claim, intended = self._claims.get(key), self._intended.get(key)
        if claim is None:
            mine = intended is not None and (not is_set(key) or self._claim_users.lead(key) is pod)
            return intended.node if intended is not None and mine else ""
        counts = claim.owned_by(pod.metadata.uid) and not (claim.deleting and claim.devices is None)
        if claim.pin is not None and counts:
            return claim.pin.choice.node
        return self._joining.get((pod.metadata.namespace, pod.metadata.name), "")
