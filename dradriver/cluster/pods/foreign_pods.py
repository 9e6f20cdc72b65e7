"""Foreign pods (pods that are not this driver's) on nodes, by labels and host ports.

Our own pods have rules about other pods, such as anti-affinity. ``neighbours`` evaluates them with the counts here,
which the cluster cache updates. A cluster can have 150,000 foreign pods. Pods of one Deployment have equal labels, so
the pods are counted by labels and node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from dradriver.cluster.nodes.host_ports import HostPort, are_in_conflict
from dradriver.cluster.pods.pod_rules import Chosen
from dradriver.cluster.records.pod_records import Foreign
from dradriver.kube import codec

MOST_TEXTS: Final = 5_000  # labels that are searched for one rule, as text; about 0.5 ms
MOST_READ: Final = 250  # labels that are read for one rule; about 0.5 ms

K = TypeVar("K")
_Nodes = str | Counter[str]
"""The node of a single pod, or the number of pods on each node: most labels that only one pod has are kept for long."""


class ForeignPods:
    """Counts of foreign pods (pods that are not this driver's) on nodes.

    They are counted by namespace, labels and node, and by host port and node.
    """

    def __init__(self) -> None:
        self._by_labels: dict[str, dict[str, _Nodes]] = {}  # by namespace and labels
        self._by_port: dict[tuple[str, int], dict[str, Counter[HostPort]]] = {}  # by protocol and number, and by node

    def changed(self, old: Foreign | None, new: Foreign | None) -> None:
        """Update the counts after a foreign pod changed from ``old`` to ``new``; None if there is no pod."""
        if old is not None and new is not None and _is_same(old, new):
            return
        if old is not None and old.node:
            self._count(old, -1)
        if new is not None and new.node:
            self._count(new, 1)

    def nodes_of(self, chosen: Collection[Chosen]) -> list[tuple[str, int]] | None:
        """Return pairs of a node and the number of its foreign pods that all selectors select.

        A node can occur more than once. ``chosen`` has the selectors: each selects pods by namespace and labels.

        Returns:
            None if too many labels would have to be searched.
        """
        some = list(self._in_namespaces(chosen))
        if sum(len(groups) for _, groups in some) > MOST_TEXTS:
            return None
        nodes: list[tuple[str, int]] = []
        reads, needles = 0, _needles(chosen)
        for namespace, groups in some:
            candidates = list(groups)
            for needle in needles:
                candidates = [text for text in candidates if needle in text]
            reads += len(candidates)
            if reads > MOST_READ:
                return None
            for text in candidates:
                labels = read_labels(text)
                if all(each.has(namespace, labels) for each in chosen):
                    places = groups[text]
                    nodes += [(places, 1)] if isinstance(places, str) else places.items()
        return nodes

    def nodes_in_conflict(self, ports: Iterable[HostPort]) -> Iterator[str]:
        """Yield the nodes on which a foreign pod uses one of these host ports.

        Foreign pods are pods that are not this driver's.
        """
        for port in ports:
            for node, others in self._by_port.get(port[:2], {}).items():
                if any(are_in_conflict(port, other) for other in others):
                    yield node

    def is_equal(self, other: ForeignPods) -> bool:
        """Return whether two objects count the same foreign pods."""
        return self._by_labels == other._by_labels and self._by_port == other._by_port

    def _in_namespaces(self, chosen: Collection[Chosen]) -> Iterator[tuple[str, Mapping[str, _Nodes]]]:
        named = [each.namespaces for each in chosen if each.namespaces is not None]
        if not named:
            yield from self._by_labels.items()
            return
        for namespace in frozenset.intersection(*named):
            if (groups := self._by_labels.get(namespace)) is not None:
                yield namespace, groups

    def _count(self, pod: Foreign, by: int) -> None:
        groups = self._by_labels.setdefault(pod.namespace, {})
        places = groups.get(pod.labels)
        if places is None and by > 0:
            groups[pod.labels] = pod.node
        else:
            several = Counter({places: 1}) if isinstance(places, str) else places or Counter()
            _add(several, pod.node, by)
            groups[pod.labels] = several
            if not several:
                del groups[pod.labels]
            elif len(several) == 1 and several.total() == 1:
                groups[pod.labels] = next(iter(several))
        if not groups:
            del self._by_labels[pod.namespace]
        for port in pod.ports:
            nodes = self._by_port.setdefault(port[:2], {})
            others = nodes.setdefault(pod.node, Counter())
            _add(others, port, by)
            if not others:
                del nodes[pod.node]
            if not nodes:
                del self._by_port[port[:2]]


def _is_same(old: Foreign, new: Foreign) -> bool:
    """Return whether a foreign pod's old and new state are counted in the same way.

    Most changes concern only the pod's status, which is not counted.
    """
    return old.node == new.node and old.labels == new.labels and old.ports == new.ports


def _add(counts: Counter[K], key: K, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


def _needles(chosen: Iterable[Chosen]) -> list[str]:
    """Return texts that occur in the labels of every pod that the selectors select.

    They speed up the search for these pods. The labels of a pod are stored as one text. A pod whose text lacks one of
    these texts is not selected, and need not be parsed. Label values come first, because they differ most. ``chosen``
    has the selectors.
    """
    expressions = [expression for each in chosen for expression in each.expressions]
    values = [values[0] for _, operator, values in expressions if operator == "In" and len(values) == 1]
    return values + [key for key, operator, _ in expressions if operator in ("In", "Exists", "Gt", "Lt")]


def read_labels(text: str) -> Mapping[str, str]:
    """Return the labels of a foreign pod, parsed from ``Foreign.labels``; empty if they cannot be parsed."""
    if not text:
        return {}
    try:
        labels: Mapping[str, str] = codec.decode(text.encode(), dict[str, str])
    except codec.BadJson:
        return {}
    return labels
