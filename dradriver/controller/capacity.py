"""CPU, memory and everything else that a node can run out of, counted as kube-scheduler counts it.

Amounts are integers: CPU in thousandths, all else in whole units. Source of the arithmetic: ``PodRequests`` in
``k8s.io/component-helpers/resource`` and ``NodeResourcesFit`` in kube-scheduler.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Final

from dradriver.api import names, quantity
from dradriver.api.errors import WordError
from dradriver.api.objects import Node, Pod

logger = logging.getLogger(__name__)

PODS: Final = "pods"
CPU: Final = "cpu"
POD_LEVEL: Final = ("cpu", "memory", "hugepages-")  # what a pod can request as a whole

Amounts = dict[str, int]


@functools.lru_cache(maxsize=4096)
def _amount(resource: str, text: str) -> int:
    try:
        return quantity.milli(text) if resource == CPU else quantity.whole(text)
    except WordError as error:
        # The API server admits no such text; a surprise must cost one figure, not the controller.
        logger.warning("resource %s counts as 0: %s", resource, error)
        return 0


def amounts(quantities: Mapping[str, str]) -> Amounts:
    """Return a list of resources as integers."""
    return {resource: _amount(resource, text) for resource, text in quantities.items()}


def request_of(pod: Pod) -> Amounts:
    """Return what a pod takes from its node, itself as one of ``pods`` included.

    Init containers run one after another before the others; those with ``restartPolicy: Always`` (sidecars, KEP-753)
    stay, so each later init container and all main containers run beside them. What the pod requests as a whole counts
    instead of its containers' sums (KEP-2837).
    """
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        asked = amounts(container.resources.requests)
        if container.restart_policy == "Always":
            sidecars = _sum(sidecars, asked)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _sum(sidecars, asked))
    total = sidecars
    for container in pod.spec.containers:
        total = _sum(total, amounts(container.resources.requests))
    whole = {key: text for key, text in pod.spec.resources.requests.items() if key.startswith(POD_LEVEL)}
    return _sum(_sum(_most(total, peak) | amounts(whole), amounts(pod.spec.overhead)), {PODS: 1})


def _sum(a: Amounts, b: Amounts) -> Amounts:
    return {key: a.get(key, 0) + b.get(key, 0) for key in a | b}


def _most(a: Amounts, b: Amounts) -> Amounts:
    return {key: max(a.get(key, 0), b.get(key, 0)) for key in a | b}


def node_of(pod: Pod) -> str:
    """Return the node whose resources a pod takes, or an empty text.

    A pod that was lifted but is not bound yet takes those of the node it was promised to: the scheduler has not counted
    it anywhere, and the next pod must not be promised the same CPU.
    """
    if pod.finished:
        return ""
    if pod.spec.node_name or pod.gated or not pod.placed:
        return pod.spec.node_name
    return pod.metadata.annotations.get(names.NODE, "")


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
