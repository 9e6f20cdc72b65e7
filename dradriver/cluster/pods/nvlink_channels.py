"""The nodes with a free channel of multi-node NVLink.

A node has one channel, for one claim and one ComputeDomain at a time.

NVIDIA's controller creates the claims from a template once a pod is admitted. The scheduler allocates the node's
channel together with the pod's GPUs. So a channel is in use in two cases: it is allocated to a claim, or a pod that
requests a channel has a tentative placement on the node. Thus two pods that request channels never get the same node.

A *ComputeDomain* is NVIDIA's object for pods that use NVLink between nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np

from dradriver.api.base.pods import Pod
from dradriver.api.claims.compute_domains import DOMAIN_LABEL
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.records import ChannelSlice, ClaimRecord
from dradriver.cluster.records.templates import Templates
from dradriver.kube.reflector import Change

TAKEN: Final = "its channel is taken by"
LACKING: Final = "without a channel of multi-node NVLink"
OTHERS: Final = "labelled for another ComputeDomain"
_NAMED: Final = 3  # holders that a reason names


class Channels:
    """The channels of all nodes, and the claims and pods that use them.

    Attributes:
        of_claim: For each claim with channels, the nodes whose channel it was allocated.
        of_pod: For each pod that requests a channel, the node that it is on or has a tentative placement on.
    """

    def __init__(
        self,
        nodes: NodeTable,
        pods: Mapping[Key, Pod],
        claims: Mapping[Key, ClaimRecord],
        templates: Templates,
        node_of: Callable[[Key], str | None],
    ) -> None:
        """Make an object that has recorded no channels and no users yet.

        Args:
            nodes: The table of nodes. It gets the nodes that have a channel, and the state of each channel.
            pods: The living pods. ``recount`` must be called for each change of a pod, its template or its node.
            claims: The claims. ``recount_claim`` must be called for each change of a claim with a channel.
            templates: The templates that say which pods request a channel.
            node_of: Returns the node that a pod is on or has a tentative placement on; None for none.
        """
        self.of_claim: dict[Key, tuple[str, ...]] = {}  # by claim: the nodes whose channel it was given
        self.of_pod: dict[Key, str] = {}  # by pod: the node whose channel it takes
        self._nodes, self._known, self._templates, self._node_of = nodes, pods, templates, node_of
        self._records = claims
        self._slices: dict[str, ChannelSlice] = {}  # by the slice's name
        self._offered: dict[str, set[str]] = {}  # names of the slices that offer a node's channel, by node
        self._claims: dict[str, dict[Key, frozenset[Key]]] = {}  # by node, who was given it, with the pods it is for
        self._pods: dict[str, set[Key]] = {}  # by node, pods that are promised it and want its channel
        self._given: dict[Key, str] = {}  # nodes by pods whose claims were given their channel

    # What is seen.

    def slice_changed(self, change: Change[ChannelSlice]) -> None:
        """Update the NVLink channels with a changed ResourceSlice of NVIDIA's driver."""
        name, new = change.key[1], change.new
        old = self._slices.pop(name, None)
        if old is not None:
            self._offered[old.node].discard(name)
            if not self._offered[old.node]:
                del self._offered[old.node]
        if new is not None:
            self._slices[name] = new
            self._offered.setdefault(new.node, set()).add(name)
        for node in {piece.node for piece in (old, new) if piece is not None}:
            self._tell(node)

    def slice_of(self, name: str) -> ChannelSlice | None:
        """Return a ResourceSlice with NVLink channels by its name; None if there is none."""
        return self._slices.get(name)

    def slices(self) -> Collection[str]:
        """Return the names of the ResourceSlices with NVLink channels."""
        return tuple(self._slices)

    def recount_claim(self, key: Key) -> None:
        """Update the nodes whose channel is allocated to a claim; none if the claim is gone."""
        claim, before = self._records.get(key), self.of_claim.pop(key, ())
        for node in before:
            for pod in self._claims.get(node, {}).pop(key, ()):
                self._given.pop(pod, None)
            if not self._claims.get(node, True):
                del self._claims[node]
        if claim is not None and claim.channels:
            self.of_claim[key] = claim.channels
            pods = frozenset((key[0], name) for name, _ in claim.owners)
            for node in claim.channels:
                self._claims.setdefault(node, {})[key] = pods
                self._given.update(dict.fromkeys(pods, node))
        for node in {*before, *self.of_claim.get(key, ())}:
            self._tell(node)

    def recount(self, pod: Key) -> bool:
        """Record again on which node a pod uses the NVLink channel, if it requests one.

        Returns:
            Whether there was a change: the pod now uses a channel, no channel any more, or another node's channel.
        """
        node = None if self.domain_of(pod) is None else self._node_of(pod)
        before = self.of_pod.pop(pod, None)
        if before is not None:
            self._pods[before].discard(pod)
            if not self._pods[before]:
                del self._pods[before]
        if node is not None:
            self.of_pod[pod] = node
            self._pods.setdefault(node, set()).add(pod)
        if before == node:
            return False
        for one in (before, node):
            if one is not None:
                self._tell(one)
        return True

    def pods(self) -> Collection[Key]:
        """Return the pods that use a channel of multi-node NVLink."""
        return tuple(self.of_pod)

    # What is asked.

    def domain_of(self, pod: Key) -> str | None:
        """Return the uid of the ComputeDomain whose channel a pod requests, or None.

        A ComputeDomain is NVIDIA's object for pods joined by multi-node NVLink.
        """
        known = self._known.get(pod)
        return None if known is None else self._templates.domain_of(known)

    def free(self, domain: str, pod: Key) -> Bools:
        """Return the nodes whose NVLink channel a pod can get.

        The result is a new array with one bool for each row (a node's index).

        Args:
            domain: The uid of the pod's ComputeDomain, NVIDIA's object for pods that share memory over NVLink.
            pod: The pod. A channel that the pod or its claim already uses counts as free.
        """
        return self._untaken(pod) & ~self._other_domains(domain)

    def causes(self, domain: str, pod: Key, rows: Bools) -> list[str]:
        """Return why nodes have no NVLink channel for a pod: the first cause for each node.

        ``rows`` are the nodes, one bool for each row (a node's index). ``domain`` is the uid of the pod's
        ComputeDomain, NVIDIA's object for multi-node NVLink.
        """
        found, lacking = [], rows & ~self._nodes.channels(taken=True)
        if lacking.any():
            found.append(LACKING)
        taken = rows & ~lacking & ~self._untaken(pod)
        if taken.any():
            found.append(f"{TAKEN} {self._holders(taken)}")
        if (rows & ~lacking & ~taken & self._other_domains(domain)).any():
            found.append(OTHERS)
        return found

    def _untaken(self, pod: Key) -> Bools:
        rows = self._nodes.channels()
        for node in {self.of_pod.get(pod), self._given.get(pod)} - {None}:
            assert node is not None, "taken out"
            others = self._pods.get(node, set()) - {pod}
            mine = all(pods == {pod} for pods in self._claims.get(node, {}).values())
            if node in self._offered and mine and not others:
                rows |= self._nodes.named([node])
        return rows

    def _other_domains(self, domain: str) -> Bools:
        return self._nodes.having(DOMAIN_LABEL) & ~self._nodes.labelled(DOMAIN_LABEL, (domain,))

    def _holders(self, rows: Bools) -> str:
        """Return in words which claims or pods use the NVLink channels of some nodes.

        Only a few are named. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        some = np.flatnonzero(rows)
        said = []
        for row in some[:_NAMED].tolist():
            node = self._nodes.name(row)
            claims, pods = sorted(self._claims.get(node, ())), sorted(self._pods.get(node, ()))
            said.append(f"claim {'/'.join(claims[0])}" if claims else f"pod {'/'.join(pods[0])}")
        return ", ".join(sorted(said)) + (" and others" if len(some) > _NAMED else "")

    def _tell(self, node: str) -> None:
        free = node not in self._claims and node not in self._pods
        self._nodes.set_channel(node, None if node not in self._offered else free)
