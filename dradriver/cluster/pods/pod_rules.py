"""A pod's rules about other pods, as records: pod affinity, anti-affinity, topology spread and host ports.

``neighbours`` evaluates the rules, ``unknown_rules`` says which of them the controller cannot evaluate. The API server
writes ``matchLabelKeys`` and ``mismatchLabelKeys`` of a term into its label selector when a pod is created
(registry/core/pod/strategy.go, Kubernetes 1.35), so the selector is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dradriver.api.base.pods import LabelSelector, NodeRequirement, Pod, PodAffinity, PodAffinityTerm, TopologySpread
from dradriver.cluster.nodes import host_ports
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.host_ports import HostPort
from dradriver.cluster.nodes.pod_demands import Constraints, selected_by, tolerations_of
from dradriver.cluster.nodes.taints import Pattern

MOST: Final = 200  # rules, expressions and values of one pod; the scheduler alone judges a pod with more
MOST_TERMS: Final = 8  # terms and constraints of one pod, each of which may look at thousands of labels
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"  # the API server sets this label of each namespace to its name
_HARD: Final = "DoNotSchedule"

Labels = Mapping[str, str]


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """A selector of pods by namespace and labels.

    Attributes:
        namespaces: The namespaces; None for all.
        expressions: The conditions on the labels: key, operator and values.
    """

    namespaces: frozenset[str] | None
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...]

    def has(self, namespace: str, labels: Labels) -> bool:
        """Return whether the selector selects a pod with this namespace and these labels."""
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(holds(labels.get(key), operator, values) for key, operator, values in self.expressions)


class PlaceTerm(msgspec.Struct, frozen=True, gc=False):
    """A term of a pod's required affinity or anti-affinity.

    The pod must, or must not, share a domain (such as a zone) with selected pods.

    Attributes:
        place: The node label whose value is the domain (``topologyKey``).
        pods: The selected pods.
    """

    place: str
    pods: Chosen


class Spread(msgspec.Struct, frozen=True, gc=False):
    """A topology spread constraint that a pod must keep.

    Attributes:
        place: The node label whose value is the domain (``topologyKey``).
        skew: How many more pods a domain may have than the domain with the fewest.
        pods: The pods that are counted.
        nodes: The nodes whose domains are compared, and on which pods are counted: all by default.
        tolerations: If the constraint honors taints: only nodes whose taints these tolerations cover are compared. Else
            None.
        least_places: If there are fewer domains than this number, the smallest count is taken as 0 (``minDomains``).
    """

    place: str
    skew: int
    pods: Chosen
    nodes: Constraints = Constraints()
    tolerations: tuple[Pattern, ...] | None = None
    least_places: int = 1


class Rules(msgspec.Struct, frozen=True, gc=False):
    """A pod's rules about other pods. Pods with equal rules fit on the same nodes.

    Attributes:
        namespace: The pod's namespace; empty if the pod only has host ports.
        labels: The pod's labels, sorted; empty if the pod only has host ports.
        apart: The terms of its anti-affinity.
        together: The terms of its affinity. The scheduler counts only pods that all of these terms select.
        spread: Its spread constraints.
        ports: The host ports that no other pod may use on its node.
    """

    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    apart: tuple[PlaceTerm, ...] = ()
    together: tuple[PlaceTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    ports: tuple[HostPort, ...] = ()

    @property
    def chosen(self) -> tuple[Chosen, ...]:
        """Return the pod selectors of all rules. Rules about host ports have none."""
        rules: tuple[PlaceTerm | Spread, ...] = (*self.apart, *self.together, *self.spread)
        return tuple(rule.pods for rule in rules)


def rules_of(pod: Pod) -> Rules | None:
    """Return a pod's rules about other pods, as far as the controller can evaluate them. Never raises an error.

    Returns:
        None if the pod has no such rules. If it has more rules of one kind than the controller evaluates, all rules of
        this kind are left out.
    """
    if not has_rules(pod):
        return None
    ports = host_ports.host_ports(pod.spec.containers, pod.spec.init_containers)
    ports = ports if len(ports) <= host_ports.MOST else ()
    apart_terms, together_terms, constraints = _apart_terms(pod), _together_terms(pod), _constraints(pod)
    if not (apart_terms or together_terms or constraints) or has_many_labels(pod):
        return Rules(ports=ports) if ports else None
    namespace, labels = pod.metadata.namespace, pod.metadata.labels

    apart = tuple(
        PlaceTerm(term.topology_key, chosen)
        for term in apart_terms
        if term.topology_key and (chosen := _chosen_by_term(term, namespace)) is not None
    )
    together = _together(together_terms, namespace)
    spread = tuple(_spread(pod, constraints))
    if not (apart or together or spread):
        return Rules(ports=ports) if ports else None
    return Rules(namespace, tuple(sorted(labels.items())), apart, together, spread, ports)


def has_rules(pod: Pod) -> bool:
    """Return whether a pod may have rules about other pods. Most pods have none."""
    spec = pod.spec
    if spec.topology_spread_constraints or any(
        container.ports for container in (*spec.containers, *spec.init_containers)
    ):
        return True
    affinity = spec.affinity
    return affinity is not None and not (affinity.pod_affinity is None and affinity.pod_anti_affinity is None)


def has_many_ports(pod: Pod) -> bool:
    """Return whether a pod has more host ports than the controller looks at."""
    return len(host_ports.host_ports(pod.spec.containers, pod.spec.init_containers)) > host_ports.MOST


def has_many_labels(pod: Pod) -> bool:
    """Return whether a pod's affinity and topology spread have more terms or values than the controller evaluates."""
    terms = (*_apart_terms(pod), *_together_terms(pod))
    selectors = [term.label_selector for term in terms]
    selectors += [constraint.label_selector for constraint in _constraints(pod)]
    return len(selectors) > MOST_TERMS or sum(map(_size, selectors)) > MOST


def has_unknown_spread(pod: Pod) -> bool:
    """Return whether a topology spread constraint changes its meaning when the pod is narrowed to few nodes.

    The scheduler then counts only the domains of these nodes, which may be fewer than ``minDomains``.
    """
    return any((each.min_domains or 1) > 1 for each in _constraints(pod))


def has_unknown_namespaces(pod: Pod) -> bool:
    """Return whether a pod's affinity selects namespaces by labels that the controller does not know.

    The controller knows only the names of namespaces. So it can evaluate an empty selector, or a selector by the label
    ``kubernetes.io/metadata.name``.
    """
    terms = (*_apart_terms(pod), *_together_terms(pod))
    return any(_namespaces(term, pod.metadata.namespace)[1] for term in terms)


def chosen_by(
    selector: LabelSelector | None, namespaces: frozenset[str] | None, more: Iterable[NodeRequirement] = ()
) -> Chosen | None:
    """Return a label selector of some namespaces as a selector of pods; None without a selector.

    Args:
        selector: The label selector; None selects no pods.
        namespaces: The namespaces of the pods; None for all.
        more: Further conditions on the labels.
    """
    if selector is None:
        return None
    pairs = [(key, "In", (value,)) for key, value in sorted(selector.match_labels.items())]
    others = [
        (expression.key, expression.operator, tuple(expression.values))
        for expression in (*selector.match_expressions, *more)
    ]
    return Chosen(namespaces, (*pairs, *others))


def _together(terms: Sequence[PodAffinityTerm], namespace: str) -> tuple[PlaceTerm, ...]:
    """Return the terms of a pod's required affinity.

    The result is empty if a term may select namespaces that the controller does not know.
    """
    together = []
    for term in terms:
        chosen, is_unknown = _chosen_by_term(term, namespace), _namespaces(term, namespace)[1]
        if is_unknown or not term.topology_key:
            return ()
        # A term without a label selector selects no pod, so no node can ever have the pod.
        together.append(PlaceTerm(term.topology_key, Chosen(frozenset(), ()) if chosen is None else chosen))
    return tuple(together)


def _spread(pod: Pod, constraints: Sequence[TopologySpread]) -> Iterator[Spread]:
    if not constraints:
        return
    namespace, labels, selected = pod.metadata.namespace, pod.metadata.labels, selected_by(pod)
    for constraint in constraints:
        same_labels = [
            NodeRequirement(key, "In", [labels[key]]) for key in constraint.match_label_keys if key in labels
        ]
        chosen = chosen_by(constraint.label_selector, frozenset({namespace}), same_labels)
        if chosen is not None and constraint.topology_key:
            # The scheduler counts no pod for a selector without expressions, but refuses nodes without the label
            # (podtopologyspread/common.go, Kubernetes 1.36).
            if not chosen.expressions:
                chosen = Chosen(frozenset(), ())
            # By default the scheduler compares the nodes that the pod selects, tainted ones too, and counts pods there
            # alone (podtopologyspread/common.go, ``matchNodeInclusionPolicies``, Kubernetes 1.35).
            yield Spread(
                constraint.topology_key, max(constraint.max_skew, 1), chosen,
                nodes=Constraints() if constraint.node_affinity_policy == "Ignore" else selected,
                tolerations=tolerations_of(pod) if constraint.node_taints_policy == "Honor" else None,
                least_places=constraint.min_domains or 1,
            )  # fmt: skip


def _chosen_by_term(term: PodAffinityTerm, pod_namespace: str) -> Chosen | None:
    return chosen_by(term.label_selector, _namespaces(term, pod_namespace)[0])


def _namespaces(term: PodAffinityTerm, pod_namespace: str) -> tuple[frozenset[str] | None, bool]:
    """Return the namespaces of a term, and whether it may select unknown namespaces in addition.

    The namespaces are None if the term selects all. A term with neither namespaces nor a selector of namespaces means
    ``pod_namespace``.
    """
    names, selector = frozenset(term.namespaces), term.namespace_selector
    if selector is None:
        return names or frozenset({pod_namespace}), False
    expressions = [(key, "In", [value]) for key, value in selector.match_labels.items()]
    expressions += [(e.key, e.operator, e.values) for e in selector.match_expressions]
    if not expressions:  # an empty selector selects all namespaces
        return None, False
    if any(key != NAMESPACE_NAME or operator != "In" for key, operator, _ in expressions):
        return names, True
    return names | frozenset.intersection(*(frozenset(values) for _, _, values in expressions)), False


def _apart_terms(pod: Pod) -> list[PodAffinityTerm]:
    return [] if pod.spec.affinity is None else _required(pod.spec.affinity.pod_anti_affinity)


def _together_terms(pod: Pod) -> list[PodAffinityTerm]:
    return [] if pod.spec.affinity is None else _required(pod.spec.affinity.pod_affinity)


def _required(affinity: PodAffinity | None) -> list[PodAffinityTerm]:
    return [] if affinity is None else affinity.required_during_scheduling_ignored_during_execution


def _constraints(pod: Pod) -> list[TopologySpread]:
    return [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == _HARD]


def _size(selector: LabelSelector | None) -> int:
    if selector is None:
        return 1
    return 1 + len(selector.match_labels) + sum(1 + len(expression.values) for expression in selector.match_expressions)
