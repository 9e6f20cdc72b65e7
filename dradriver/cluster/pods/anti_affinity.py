"""Pods of ours that must not run next to each other: required anti-affinity and topology spread among them.

The scheduler knows all pods, the controller the labels of its own only. But a pod is narrowed to a few nodes for good
when its gate is lifted, so what can be known must be known before: nine times of ten that is where its siblings are.
What pods of others do is left to the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from dradriver.api.base.affinity import HOSTNAME
from dradriver.api.base.pods import LabelSelector, NodeRequirement, Pod, PodAffinityTerm
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.node_table import NodeTable

MOST: Final = 200  # rules, expressions and values of one pod; whoever says more is left to the scheduler
MOST_PODS: Final = 1_000  # that are looked at for one rule, in 3 ms; where there are more it is left to the scheduler
BESIDE: Final = "pods of its own kind there already"
_HARD: Final = "DoNotSchedule"

Labels = Mapping[str, str]
K = TypeVar("K")


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """Pods by namespace and labels.

    Attributes:
        namespaces: Theirs; None for all.
        expressions: What holds of their labels: key, operator and values.
    """

    namespaces: frozenset[str] | None
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...]

    def has(self, namespace: str, labels: Labels) -> bool:
        """Return whether a pod is chosen by the selector of an anti-affinity or spread."""
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(holds(labels.get(key), operator, values) for key, operator, values in self.expressions)


class Apart(msgspec.Struct, frozen=True, gc=False):
    """A term of required anti-affinity: not in one place with these pods.

    Attributes:
        place: The nodes' label whose value is the place.
        pods: Which pods.
    """

    place: str
    pods: Chosen


class Spread(msgspec.Struct, frozen=True, gc=False):
    """A topology spread constraint that a pod must keep.

    Attributes:
        place: The nodes' label whose value is the place.
        skew: By how many pods a place may have more than the one with fewest.
        pods: Which pods are counted.
    """

    place: str
    skew: int
    pods: Chosen


class Rules(msgspec.Struct, frozen=True, gc=False):
    """What a pod says of pods beside it; pods of equal rules and labels find a place together or not at all.

    Attributes:
        namespace: The pod's.
        labels: Its own labels, sorted.
        apart: Its anti-affinity.
        spread: Its spread constraints.
    """

    namespace: str
    labels: tuple[tuple[str, str], ...]
    apart: tuple[Apart, ...] = ()
    spread: tuple[Spread, ...] = ()


def rules_of(pod: Pod) -> Rules | None:
    """Return a pod's required rules of anti-affinity and topology spread. Never raises.

    Returns:
        None if it has no such rules, or more than the controller looks at. The scheduler then judges them alone.
    """
    terms = _terms(pod)
    constraints = [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == _HARD]
    selectors = [term.label_selector for term in terms] + [constraint.label_selector for constraint in constraints]
    if not selectors or sum(map(_size, selectors)) > MOST:
        return None
    pod_namespace, labels = pod.metadata.namespace, pod.metadata.labels

    apart = []
    for term in terms:
        namespaces = frozenset(term.namespaces)
        if term.namespace_selector is None:
            chosen = chosen_by(term.label_selector, namespaces or frozenset({pod_namespace}))
        elif _size(term.namespace_selector) == 1:  # an empty selector selects all namespaces
            chosen = chosen_by(term.label_selector, None)
        else:  # the controller does not know the labels of namespaces: only the namespaces by name count
            chosen = chosen_by(term.label_selector, namespaces)
        if chosen is not None and term.topology_key:
            apart.append(Apart(term.topology_key, chosen))

    spread = []
    for constraint in constraints:
        same_labels = [
            NodeRequirement(key, "In", [labels[key]]) for key in constraint.match_label_keys if key in labels
        ]
        chosen = chosen_by(constraint.label_selector, frozenset({pod_namespace}), same_labels)
        # The scheduler counts nobody for a selector without expressions (podtopologyspread/common.go, Kubernetes 1.36).
        if chosen is not None and chosen.expressions and constraint.topology_key:
            spread.append(Spread(constraint.topology_key, max(constraint.max_skew, 1), chosen))

    if not (apart or spread):
        return None
    return Rules(pod_namespace, tuple(sorted(labels.items())), tuple(apart), tuple(spread))


def one_a_node(rules: Rules | None) -> bool:
    """Return whether pods with these anti-affinity rules and labels need a node each."""
    if rules is None:
        return False
    labels = dict(rules.labels)
    return any(term.place == HOSTNAME and term.pods.has(rules.namespace, labels) for term in rules.apart)


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

    def _places(self, pod: Key, label: str, chosen: Chosen, *, staying: bool = False) -> Iterator[str]:
        """Give the place of each other pod that is chosen and somewhere; ``staying`` leaves out those that end.

        The scheduler spreads as if these were gone, and keeps others apart from them until they are
        (podtopologyspread/common.go and interpodaffinity/filtering.go, Kubernetes 1.36).
        """
        names = self._of if chosen.namespaces is None else chosen.namespaces
        if sum(len(self._of.get(namespace, ())) for namespace in names) > MOST_PODS:
            return  # so many would hold up whoever decides next
        for namespace in names:
            for other in self._of.get(namespace, ()):
                if (
                    other != pod
                    and not (staying and self._pods[other].metadata.deletion_timestamp is not None)
                    and chosen.has(namespace, self._pods[other].metadata.labels)
                    and (place := self._place(other, label)) is not None
                ):
                    yield place

    def _place(self, pod: Key, label: str) -> str | None:
        node = self._place_of(pod)
        return None if node is None else self._nodes.label(node, label)


def _drop(sets: dict[K, set[Key]], of: K, key: Key) -> None:
    known = sets.get(of, set())
    known.discard(key)
    if not known:
        sets.pop(of, None)


def _terms(pod: Pod) -> list[PodAffinityTerm]:
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return []
    return affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution


def _size(selector: LabelSelector | None) -> int:
    if selector is None:
        return 1
    return 1 + len(selector.match_labels) + sum(1 + len(expression.values) for expression in selector.match_expressions)


def chosen_by(
    selector: LabelSelector | None, namespaces: frozenset[str] | None, more: Iterable[NodeRequirement] = ()
) -> Chosen | None:
    """Return the pods that a selector of anti-affinity or spread chooses; None if it chooses none."""
    if selector is None:
        return None
    pairs = [(key, "In", (value,)) for key, value in sorted(selector.match_labels.items())]
    others = [
        (expression.key, expression.operator, tuple(expression.values))
        for expression in (*selector.match_expressions, *more)
    ]
    return Chosen(namespaces, (*pairs, *others))
