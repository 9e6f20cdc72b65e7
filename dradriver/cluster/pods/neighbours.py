"""Pods of ours that must not run next to each other: required anti-affinity and topology spread among them.

The scheduler knows all pods, the controller the labels of its own only. But a pod is narrowed to a few nodes for good
when its gate is lifted, so what can be known must be known before: nine times of ten that is where its siblings are.
What pods of others do is left to the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeVar

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.pod_rules import Apart, Chosen, Rules, rules_of

MOST_PODS: Final = 1_000  # that are looked at for one rule, in 3 ms; where there are more it is left to the scheduler
BESIDE: Final = "pods of its own kind there already"

K = TypeVar("K")


class Neighbours:
    """Where pods of ours are, for the rules of those that come."""

    def __init__(self, nodes: NodeTable, pods: Mapping[Key, Pod], place_of: Callable[[Key], str | None]) -> None:
        """``pods`` are the picture's; ``place_of`` gives the node that one of them is on, or is promised to."""
        self._nodes, self._pods, self._place_of = nodes, pods, place_of
        self._of: dict[str, set[Key]] = {}  # pods by namespace
        self._terms: dict[Apart, set[Key]] = {}  # pods that want to be apart from others, alike ones under one term
        self._rules: dict[Key, Rules] = {}  # by pod: its rules

    def pod_changed(self, key: Key, pod: Pod | None) -> None:
        """Update the anti-affinity rules by a pod of ours, or its end."""
        before, now = self._rules.pop(key, None), None if pod is None else rules_of(pod)
        for term in () if before is None else before.apart:
            _drop(self._terms, term, key)
        if now is not None:
            self._rules[key] = now
            for term in now.apart:
                self._terms.setdefault(term, set()).add(key)
        if pod is not None:
            self._of.setdefault(key[0], set()).add(key)
        else:
            _drop(self._of, key[0], key)

    def allowed(self, pod: Key, rules: Rules, fit: Bools) -> Bools:
        """Return the nodes on which a pod keeps its own anti-affinity and spread: shape (rows,), the caller's own.

        Args:
            pod: The pod, which is not its own neighbour.
            rules: What it says.
            fit: Rows that it may go to, whatever is free there: their places are those that are counted.
        """
        mask = fit.copy()
        for term in rules.apart:
            mask &= ~self._nodes.labelled(term.place, set(self._places(pod, term.place, term.pods)))
        for spread in rules.spread:
            counts = Counter(dict.fromkeys(self._nodes.values(spread.place, fit), 0))
            there = Counter(self._places(pod, spread.place, spread.pods, staying=True))
            counts.update({place: number for place, number in there.items() if place in counts})
            most = min(counts.values(), default=0) + spread.skew
            more = spread.pods.has(rules.namespace, dict(rules.labels))
            mask &= self._nodes.labelled(spread.place, {place for place, n in counts.items() if n + more <= most})
        return mask

    def shunned(self, pod: Pod, fit: Bools) -> Bools:
        """Return the nodes from which other pods' anti-affinity keeps a pod: shape (rows,)."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        mask = fit & False
        for term, pods in self._terms.items():
            if len(pods) <= MOST_PODS and term.pods.has(namespace, labels):
                others = (self._place(other, term.place) for other in pods if other != (namespace, pod.metadata.name))
                mask |= self._nodes.labelled(term.place, {place for place in others if place is not None})
        return mask & fit

    def places(
        self, label: str, chosen: Collection[Chosen], new: Collection[Key], *, staying: bool = False
    ) -> Iterator[str]:
        """Yield where pods of ours are that all of some rules select: for each the value of a label of its node.

        Args:
            label: The label.
            chosen: What selects them.
            new: Pods that do not count.
            staying: Whether pods that are being deleted do not count, as for topology spread.
        """
        first, *others = chosen
        for key, place in self._placed(label, first, staying=staying):
            labels = self._pods[key].metadata.labels
            if key not in new and all(other.has(key[0], labels) for other in others):
                yield place

    def _places(self, pod: Key, label: str, chosen: Chosen, *, staying: bool = False) -> Iterator[str]:
        """Give the place of each other pod that is chosen and somewhere; ``staying`` leaves out those that end."""
        return (place for other, place in self._placed(label, chosen, staying=staying) if other != pod)

    def _placed(self, label: str, chosen: Chosen, *, staying: bool) -> Iterator[tuple[Key, str]]:
        """Give each pod that is chosen and somewhere, with its place; ``staying`` leaves out those that end.

        The scheduler spreads as if these were gone, and keeps others apart from them until they are
        (podtopologyspread/common.go and interpodaffinity/filtering.go, Kubernetes 1.36).
        """
        names = self._of if chosen.namespaces is None else chosen.namespaces
        if sum(len(self._of.get(namespace, ())) for namespace in names) > MOST_PODS:
            return  # so many would hold up whoever decides next
        for namespace in names:
            for other in self._of.get(namespace, ()):
                if (
                    not (staying and self._pods[other].metadata.deletion_timestamp is not None)
                    and chosen.has(namespace, self._pods[other].metadata.labels)
                    and (place := self._place(other, label)) is not None
                ):
                    yield other, place

    def _place(self, pod: Key, label: str) -> str | None:
        node = self._place_of(pod)
        return None if node is None else self._nodes.label(node, label)


def _drop(sets: dict[K, set[Key]], of: K, key: Key) -> None:
    known = sets.get(of, set())
    known.discard(key)
    if not known:
        sets.pop(of, None)
