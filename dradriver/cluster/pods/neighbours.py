"""The nodes on which a pod's rules about other pods are met: affinity, anti-affinity, topology spread, host ports.

Removing a pod's gate narrows the pod to a few nodes for good, so these rules are evaluated before. Pods of this driver
count on the node where they are or have a tentative placement, foreign pods where they are bound. The anti-affinity of
foreign pods is left to the scheduler.

A *domain* is the nodes with one value of a label, such as one zone. A *tentative placement* is the node and GPUs that
are chosen for a pod whose claim the scheduler has not allocated yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Final, TypeVar

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.host_ports import are_in_conflict
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.foreign_pods import ForeignPods, read_labels
from dradriver.cluster.pods.pod_rules import Chosen, Labels, PlaceTerm, Rules, Spread, rules_of
from dradriver.cluster.records.pod_records import Foreign

MOST_PODS: Final = 1_000  # that are looked at for one rule, in 3 ms; where there are more it is left to the scheduler

# Why a node was left out, as people read it in the reason on a pod.
SAME_KIND: Final = "excluded by the pod's anti-affinity or topology spread"
ALONE: Final = "without a pod that the pod's affinity selects"
PORTS: Final = "a host port of the pod is in use"

K = TypeVar("K")
_NOBODY: Final = frozenset[Key]()
_NO_POD: Final[Key] = ("", "")


class Neighbours:
    """The nodes of pods, to evaluate the rules of waiting pods about other pods.

    Attributes:
        foreign: The foreign pods.
    """

    def __init__(self, nodes: NodeTable, pods: Mapping[Key, Pod], place_of: Callable[[Key], str | None]) -> None:
        """Make an object that has recorded no rules and no foreign pods yet.

        Args:
            nodes: The table of nodes.
            pods: The pods of the cluster cache. The caller must call ``pod_changed`` for each: only this records the
                pod's rules.
            place_of: Returns the node that a pod is on or has a tentative placement on; None for none.
        """
        self.foreign = ForeignPods()
        self._nodes, self._pods, self._place_of = nodes, pods, place_of
        self._of: dict[str, set[Key]] = {}  # pods by namespace
        self._rules: dict[Key, Rules] = {}  # by pod: its rules
        # Pods by their terms: alike ones are under one term. Pods that use a host port, by its protocol and number.
        self._apart: dict[PlaceTerm, set[Key]] = {}
        self._together: dict[PlaceTerm, set[Key]] = {}
        self._ports: dict[tuple[str, int], set[Key]] = {}

    # What is seen.

    def pod_changed(self, key: Key, pod: Pod | None) -> None:
        """Update the rules about other pods of one of this driver's pods.

        ``key`` is the pod's namespace and name. ``pod`` is None if the pod is gone.
        """
        before, now = self._rules.pop(key, None), None if pod is None else rules_of(pod)
        if before is not None:
            for term in before.apart:
                _drop(self._apart, term, key)
            for near in before.together:
                _drop(self._together, near, key)
            for port in before.ports:
                _drop(self._ports, port[:2], key)
        if now is not None:
            self._rules[key] = now
            for term in now.apart:
                self._apart.setdefault(term, set()).add(key)
            for near in now.together:
                self._together.setdefault(near, set()).add(key)
            for port in now.ports:
                self._ports.setdefault(port[:2], set()).add(key)
        if pod is not None:
            self._of.setdefault(key[0], set()).add(key)
        else:
            _drop(self._of, key[0], key)

    def foreign_changed(self, old: Foreign | None, new: Foreign | None) -> None:
        """Update the count of a foreign pod (one that is not this driver's).

        Args:
            old: The pod's state before; None if it did not exist or was not foreign.
            new: The pod's state now; None if it does not exist or is not foreign.
        """
        self.foreign.changed(old, new)
        if self._together and new is not None and new.node and (old is None or not old.node):
            self._helped(new.namespace, read_labels(new.labels), new.node)

    def correct_foreign(self, foreign: ForeignPods) -> None:
        """Replace all foreign pods, after the audit of the cluster cache has found them wrong.

        ``foreign`` are the foreign pods that exist now.
        """
        self.foreign = foreign

    def moved(self, key: Key) -> None:
        """Record that a pod is on another node, or has another tentative placement.

        Pods with affinity to it may now find a node.
        """
        if self._together and (pod := self._pods.get(key)) is not None and (node := self._place_of(key)) is not None:
            self._helped(key[0], pod.metadata.labels, node)

    def _helped(self, namespace: str, labels: Labels, node: str) -> None:
        for term in self._together:
            if term.pods.has(namespace, labels) and (place := self._nodes.label(node, term.place)) is not None:
                self._nodes.helped_on(self._nodes.labelled(term.place, {place}))

    # What is asked.

    def allowed(self, pod: Key, rules: Rules, fit: Bools, *, gone: Set[Key] = _NOBODY) -> Bools:
        """Return the nodes in ``fit`` on which a pod's own rules about other pods are met.

        The result is a new array. It has one bool for each row (a node's index), as ``fit`` does.

        Args:
            pod: The pod, which does not count as another pod.
            rules: Its rules.
            fit: The nodes on which it may run, regardless of free resources.
            gone: Pods that count as gone.
        """
        mask = fit.copy()
        for _, rows in self._evaluated(pod, rules, gone):
            mask &= rows
        return mask

    def causes(self, pod: Key, rules: Rules, fit: Bools, *, gone: Set[Key] = _NOBODY) -> list[str]:
        """Return the reasons why a pod's rules about other pods exclude nodes.

        ``fit`` are the nodes on which the pod may run otherwise, one bool for each row (a node's index). Pods in
        ``gone`` count as gone.
        """
        return list(dict.fromkeys(cause for cause, rows in self._evaluated(pod, rules, gone) if (fit & ~rows).any()))

    def excluding(self, pod: Pod, fit: Bools) -> Bools:
        """Return the nodes in ``fit`` that other pods' anti-affinity forbids for a pod.

        Only pods of this driver count as other pods. A term that more than ``MOST_PODS`` pods have is left to the
        scheduler. ``fit`` and the result have one bool for each row (a node's index).
        """
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        mask = fit & False
        for term, pods in self._apart.items():
            if len(pods) <= MOST_PODS and term.pods.has(namespace, labels):
                others = (self._place(other, term.place) for other in pods if other != (namespace, pod.metadata.name))
                mask |= self._nodes.labelled(term.place, {place for place in others if place is not None})
        return mask & fit

    def anchors(self, pod: Pod) -> bool:
        """Return whether the required affinity of some pod, even of this pod itself, selects this pod.

        The pod with the affinity must be in the same domain, such as a zone, as this pod or an equal one.
        """
        if not self._together:
            return False
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        return any(term.pods.has(namespace, labels) for term in self._together)

    def anchored(self, pod: Pod, node: str) -> Bools:
        """Return the nodes to which a pod can move without losing its followers.

        A follower is a pod whose affinity selects this pod. It is already narrowed to the domain (such as a zone) of
        the pod's tentative placement, so the pod must stay in this domain. ``node`` is the node of that placement. The
        result has one bool for each row (a node's index).
        """
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        mask = ~self._nodes.named(())
        for term in self._together:
            if term.pods.has(namespace, labels) and (place := self._nodes.label(node, term.place)) is not None:
                mask &= self._nodes.labelled(term.place, {place})
        return mask

    def spread_counts(self, rules: Rules, spread: Spread, without: Set[Key]) -> dict[str, int]:
        """Return the number of pods in each domain of a topology spread constraint.

        A domain is, for example, a zone. A node counts if it has the labels of all constraints of the pod, as in
        kube-scheduler (``calPreFilterState`` of podtopologyspread/filtering.go, Kubernetes 1.35).

        Args:
            rules: The rules of the pod that has the constraint.
            spread: The constraint.
            without: Pods that do not count.
        """
        compared = self._nodes.selected(spread.nodes)
        if spread.tolerations is not None:
            compared &= self._nodes.tolerated(spread.tolerations)
        for each in rules.spread:
            compared &= self._nodes.having(each.place)
        counts = dict.fromkeys(sorted(self._nodes.values(spread.place, compared)), 0)
        for node, number in (self._nodes_of(_NO_POD, [spread.pods], without, staying=True) or {}).items():
            row, place = self._nodes.find(node), self._nodes.label(node, spread.place)
            if row is not None and place is not None and compared[row]:
                counts[place] += number
        return counts

    def places(
        self, label: str, chosen: Collection[Chosen], without: Set[Key], *, staying: bool = False
    ) -> Counter[str]:
        """Return the number of selected pods for each value of a node label.

        Args:
            label: The node label.
            chosen: The selectors. A pod counts if all of them select it.
            without: Pods that do not count.
            staying: Whether pods that are being deleted do not count, as for topology spread.
        """
        nodes = self._nodes_of(_NO_POD, chosen, without, staying=staying) or {}
        counts = Counter[str]()
        for node, number in nodes.items():
            if (place := self._nodes.label(node, label)) is not None:
                counts[place] += number
        return counts

    def has_too_many(self, pod: Pod) -> bool:
        """Return whether a pod's rules concern too many pods, so that they are left to the scheduler."""
        rules = self._rules.get((pod.metadata.namespace, pod.metadata.name)) or rules_of(pod)
        if rules is None:
            return False
        each = [[term.pods] for term in rules.apart] + [[spread.pods] for spread in rules.spread]
        each += [[term.pods for term in rules.together]] if rules.together else []
        return any(self._namespaces_of(chosen) is None or self.foreign.nodes_of(chosen) is None for chosen in each)

    # How rules are evaluated.

    def _evaluated(self, pod: Key, rules: Rules, gone: Set[Key]) -> Iterator[tuple[str, Bools]]:
        """Yield for each rule why it excludes nodes, and which nodes it allows.

        The nodes are one bool for each row (a node's index). Pods in ``gone`` count as gone.
        """
        if rules.ports:
            yield PORTS, ~self._nodes.named(self._nodes_in_conflict(pod, rules, gone))
        for term in rules.apart:
            nodes = self._nodes_of(pod, [term.pods], gone) or {}
            yield SAME_KIND, ~self._nodes.labelled(term.place, self._places(nodes, term.place))
        if rules.together:
            yield ALONE, self._together_on(pod, rules, gone)
        for spread in rules.spread:
            counts = self.spread_counts(rules, spread, {*gone, pod})
            most = least_count(spread, counts) + spread.skew
            more = spread.pods.has(rules.namespace, dict(rules.labels))
            places = {place for place, number in counts.items() if number + more <= most}
            yield SAME_KIND, self._nodes.labelled(spread.place, places)

    def _together_on(self, pod: Key, rules: Rules, gone: Set[Key]) -> Bools:
        """Return the nodes that a pod's required affinity allows: (rows,).

        Another pod counts if all affinity terms in ``rules`` select it, and it is not in ``gone``. A node is allowed
        if, for each term, its domain has a pod that counts.

        If no pod counts, and the terms select the pod itself, all nodes with the terms' labels are allowed.
        kube-scheduler does the same (``satisfyPodAffinity`` of interpodaffinity/filtering.go, Kubernetes 1.35).
        """
        mask = ~self._nodes.named(())
        for term in rules.together:
            mask &= self._nodes.having(term.place)
        chosen = [term.pods for term in rules.together]
        nodes = self._nodes_of(pod, chosen, gone)
        if nodes is None:
            return mask
        places = {term: self._places(nodes, term.place) for term in rules.together}
        labels = dict(rules.labels)
        is_first = not any(places.values()) and all(each.has(rules.namespace, labels) for each in chosen)
        if not is_first:
            for term, values in places.items():
                mask &= self._nodes.labelled(term.place, values)
        return mask

    def _nodes_of(
        self, pod: Key, chosen: Collection[Chosen], gone: Set[Key], *, staying: bool = False
    ) -> Mapping[str, int] | None:
        """Return for each node the number of other pods that all selectors (``chosen``) select.

        None if too many pods must be looked at. Pods in ``gone`` count as gone.

        ``staying`` leaves out this driver's pods that are being deleted. For topology spread the scheduler counts them
        as gone. For anti-affinity it counts them until they are gone (podtopologyspread/common.go and
        interpodaffinity/filtering.go, Kubernetes 1.36).
        """
        foreign, namespaces = self.foreign.nodes_of(chosen), self._namespaces_of(chosen)
        if foreign is None or namespaces is None:
            return None
        counts = Counter[str]()
        for node, number in foreign:
            counts[node] += number
        for namespace in namespaces:
            for other_pod in self._of.get(namespace, ()):
                labels: Labels = self._pods[other_pod].metadata.labels
                if (
                    other_pod != pod
                    and other_pod not in gone
                    and not (staying and self._pods[other_pod].metadata.deletion_timestamp is not None)
                    and all(selector.has(namespace, labels) for selector in chosen)
                    and (its_node := self._place_of(other_pod)) is not None
                ):
                    counts[its_node] += 1
        return counts

    def _namespaces_of(self, chosen: Collection[Chosen]) -> Collection[str] | None:
        """Return the namespaces in which pods of this driver may be selected by all selectors.

        None if these namespaces have too many pods to look at. ``chosen`` are the selectors.
        """
        namespace_sets = [selector.namespaces for selector in chosen if selector.namespaces is not None]
        namespaces: Collection[str] = frozenset.intersection(*namespace_sets) if namespace_sets else self._of
        pods = sum(len(self._of.get(namespace, ())) for namespace in namespaces)
        return namespaces if pods <= MOST_PODS else None

    def _nodes_in_conflict(self, pod: Key, rules: Rules, gone: Set[Key]) -> Iterator[str]:
        """Yield the nodes on which another pod uses one of a pod's host ports.

        ``rules`` has these ports. Pods in ``gone`` count as gone.
        """
        yield from self.foreign.nodes_in_conflict(rules.ports)
        for port in rules.ports:
            for other in self._ports.get(port[:2], ()):
                if other == pod or other in gone or (place := self._place_of(other)) is None:
                    continue
                if any(are_in_conflict(port, used) for used in self._rules[other].ports):
                    yield place

    def _places(self, nodes: Mapping[str, int], label: str) -> set[str]:
        places = (self._nodes.label(node, label) for node in nodes)
        return {place for place in places if place is not None}

    def _place(self, pod: Key, label: str) -> str | None:
        node = self._place_of(pod)
        return None if node is None else self._nodes.label(node, label)


def least_count(spread: Spread, counts: Mapping[str, int]) -> int:
    """Return the number of pods in the domain (such as a zone) with the fewest.

    In kube-scheduler this is ``minMatchNum``.

    Args:
        spread: The topology spread constraint.
        counts: The number of pods in each domain.
    """
    return 0 if len(counts) < spread.least_places else min(counts.values())


def _drop(sets: dict[K, set[Key]], of: K, key: Key) -> None:
    known = sets.get(of, set())
    known.discard(key)
    if not known:
        sets.pop(of, None)
