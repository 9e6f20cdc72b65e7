"""The live picture of the cluster that decisions are made from: what reflectors show and, at once, our own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from dradriver.api import names
from dradriver.api.objects import Node, Pod, ResourceSlice
from dradriver.api.pins import Claim, Key, allocated, claim_key, owner, pin
from dradriver.controller.capacity import Usage, request_of
from dradriver.controller.inventory import Inventory
from dradriver.controller.nodes import why_not
from dradriver.kube.reflector import Change


class Cluster:
    """Pods, claims, nodes and GPUs as they are now.

    What this controller wrote counts at once (``assume_claim``, ``assume_pod``), until a reflector shows it: between
    the two, the next pod must not be promised the same GPUs or the same CPU.

    Attributes:
        pods: All pods by namespace and name.
        claims: All claims by namespace and name.
        nodes: All nodes by name.
        inventory: All GPUs and who holds them.
        usage: What pods take from their nodes.
        waiting: Keys of the pods that our gate holds.
        lifted: Keys of the pods that are placed and not bound yet, or carry a reason that may be out of date.
        assumed_claims: Keys of the claims that no reflector has shown yet, with the time since when.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called after every change that can make another decision right."""
        self._wake = wake
        self.pods: dict[Key, Pod] = {}
        self.claims: dict[Key, Claim] = {}
        self.nodes: dict[str, Node] = {}
        self.inventory = Inventory()
        self.usage = Usage()
        self.waiting: set[Key] = set()
        self.lifted: set[Key] = set()
        self.assumed_claims: dict[Key, float] = {}
        self._assumed_pods: set[Key] = set()

    def pod_changed(self, change: Change[Pod]) -> None:
        """Take in what the pods' reflector saw."""
        if change.key in self._assumed_pods:
            known, new = self.pods[change.key], change.new
            if new is not None and new.metadata.uid == known.metadata.uid and new.gated:
                return  # from before we lifted it: a gate never comes back
            self._assumed_pods.discard(change.key)
        self._set_pod(change.key, change.new)

    def claim_changed(self, change: Change[Claim]) -> None:
        """Take in what the claims' reflector saw."""
        if change.key in self.assumed_claims:
            known = self.claims[change.key].metadata.uid
            seen = change.new if change.new is not None else change.old
            if seen is None or seen.metadata.uid != known:
                return  # the end of an earlier claim of that name
            del self.assumed_claims[change.key]
        self._set_claim(change.key, change.new)

    def node_changed(self, change: Change[Node]) -> None:
        """Take in what the nodes' reflector saw."""
        name, old, new = change.key[1], change.old, change.new
        news = self.usage.set_node(name, new)
        if new is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = new
        if news or old is None or new is None or _eligibility(old) != _eligibility(new):
            self._wake()

    def slice_changed(self, change: Change[ResourceSlice]) -> None:
        """Take in what the slices' reflector saw."""
        if self.inventory.set_slice(change.old, change.new):
            self._wake()

    def assume_pod(self, pod: Pod, *, was: Pod) -> None:
        """Count a lifted pod, as the API server returned it, before the reflector shows it.

        If the picture is not what it ``was`` when the write began, the reflector was faster and may be ahead already.
        """
        key = pod.metadata.namespace, pod.metadata.name
        if self.pods.get(key) is was:
            self._assumed_pods.add(key)
            self._set_pod(key, pod)

    def assume_claim(self, claim: Claim) -> None:
        """Count a claim, as the API server returned it, before the reflector shows it."""
        known = self.claims.get(claim.key)
        if known is not None and known.metadata.uid == claim.metadata.uid:
            return
        self.assumed_claims[claim.key] = asyncio.get_running_loop().time()
        self._set_claim(claim.key, claim)

    def correct_claim(self, key: Key, claim: Claim | None) -> None:
        """Replace an assumed claim that turned out not to exist any more by what there is in its place."""
        if self.assumed_claims.pop(key, None) is not None:
            self._set_claim(key, claim)

    def eligible(self, pod: Pod, *, again: bool = False) -> tuple[list[str], dict[str, int]]:
        """Return the GPU nodes that a pod can run on, and how many were left out for which cause.

        Args:
            pod: The pod.
            again: True for a pod that was placed before: what it takes from its node counts as free.
        """
        wanted = request_of(pod)
        fit: list[str] = []
        causes: dict[str, int] = {}
        for name in self.inventory.fleet.nodes:
            node = self.nodes.get(name)
            cause = "gone" if node is None else why_not(node, pod)
            if cause is None:
                lacking = self.usage.lacking(name, wanted, besides=pod if again else None)
                cause = None if lacking is None else f"too little {lacking}"
            if cause is None:
                fit.append(name)
            else:
                causes[cause] = causes.get(cause, 0) + 1
        return sorted(fit), causes

    def in_order(self, keys: set[Key]) -> Iterator[Pod]:
        """Give the pods with these keys, oldest first."""
        pods = [self.pods[key] for key in keys]
        return iter(sorted(pods, key=lambda p: (p.metadata.creation_timestamp or "", p.metadata.uid)))

    def _set_pod(self, key: Key, new: Pod | None) -> None:
        old = self.pods.get(key)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
        active = new is not None and new.placed and not new.finished and new.metadata.deletion_timestamp is None
        self._sort(self.waiting, key, active and new is not None and new.gated)
        self._sort(self.lifted, key, active and new is not None and not new.gated and _unsettled(new))
        news = self.usage.set_pod(old, new)
        for pod in (old, new):
            if pod is not None and pod.placed and (held := claim_key(pod)) is not None:
                news |= self._rehold(held)
        if news or key in self.waiting or key in self.lifted:
            self._wake()

    def _sort(self, into: set[Key], key: Key, belongs: bool) -> None:
        if belongs:
            into.add(key)
        else:
            into.discard(key)

    def _set_claim(self, key: Key, new: Claim | None) -> None:
        if new is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = new
        # A stranger's claim under a name that the webhook gave keeps a pod waiting too.
        if self._rehold(key) or key[1].startswith(names.CLAIM_PREFIX):
            self._wake()

    def _rehold(self, key: Key) -> bool:
        """Count what a claim holds: what it was given, else what it is pinned to while its pod may still want it.

        A bound pod's promise holds too: its binding may be seen before the allocation, by two reflectors.
        """
        claim = self.claims.get(key)
        if claim is None:
            return self.inventory.hold(key, frozenset())
        if claim.status.allocation is not None:
            return self.inventory.hold(key, allocated(claim))
        promise, controller = pin(claim), owner(claim)
        if promise is None or controller is None:
            return self.inventory.hold(key, frozenset())
        name, uid = controller
        pod = self.pods.get((key[0], name))
        known = pod is not None and pod.metadata.uid == uid
        if pod is not None and known and (pod.finished or pod.claim_name != key[1]):
            return self.inventory.hold(key, frozenset())
        return self.inventory.hold(key, promise.devices)


def _unsettled(pod: Pod) -> bool:
    return not pod.spec.node_name or names.REASON in pod.metadata.annotations


def _eligibility(node: Node) -> tuple[object, ...]:
    ready = [c.status for c in node.status.conditions if c.type == "Ready"]
    return node.metadata.labels, node.spec.unschedulable, node.spec.taints, ready
