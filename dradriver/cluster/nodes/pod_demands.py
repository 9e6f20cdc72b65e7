"""The requirements of one pod for its node, such as CPU, selectors and tolerations.

They are read once per pod. Pods with equal requirements share what is computed from them.

To *narrow* a pod is to restrict it to chosen nodes, by its node affinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from dradriver.api.base import affinity
from dradriver.api.base.pods import NodeRequirement, NodeSelector, Pod, Toleration
from dradriver.cluster.nodes.pod_resources import request_of
from dradriver.cluster.nodes.taints import Pattern, pattern_of

BEGINS_S: Final = 30  # from a promise to the pod's start on its node
FREED_S: Final = 15  # from the end of the last container to GPUs that others can have
LONGEST_S: Final = 10 * 365 * 86_400  # more is no end that anybody waits for: a grace period may have any length
MOST: Final = 1_000  # selectors, expressions with their values, and tolerations; a decision on them takes 4 ms

Requirement: TypeAlias = tuple[str, str, tuple[str, ...]]  # key, operator, values


class Term(msgspec.Struct, frozen=True, gc=False, order=True):
    """Expressions on a node's labels and fields, which must all be true.

    An empty term matches no node.
    """

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


Terms: TypeAlias = tuple[Term, ...]  # of which one must hold
Where: TypeAlias = tuple[Terms, ...]  # of each one must hold: of the nodes that reach volumes; empty where all do


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """The constraints on a pod's node, regardless of free resources.

    Pods with equal constraints share one array that says which nodes they may use.

    Attributes:
        selector: The pairs of the node selector, sorted.
        terms: The terms of the required node affinity, of which one must match; None if there is none.
        tolerations: The taints that the pod tolerates, sorted.
        volumes: For each volume that not all nodes can reach, the terms of which one must match; sorted.
        by_hostname: Whether nodes without a hostname label are excluded. This is so if the controller will narrow the
            pod by this label, added to the pod's own affinity terms (``affinity.narrow``).
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: Terms | None = None
    tolerations: tuple[Pattern, ...] = ()
    volumes: Where = ()
    by_hostname: bool = False


# No pod needs so many, and reading them all for every decision would cost every other pod time.
OVERSIZE: Final = Constraints(terms=())


class Ask(msgspec.Struct, frozen=True, gc=False):
    """The requirements of one pod for its node.

    Attributes:
        amounts: The resources that the pod uses, by name, sorted, without zeros.
        key: The constraints. Pods that differ only in amounts have equal constraints.
        lasts_s: The seconds after which the pod's resources are free again at the latest; 0 for a pod without an end.
    """

    amounts: tuple[tuple[str, int], ...]
    key: Constraints
    lasts_s: int = 0


def ask_of(pod: Pod, volumes: Where = ()) -> Ask:
    """Return a pod's requirements for its node. Never raises an error.

    Args:
        pod: The pod.
        volumes: For each volume of the pod, the conditions on nodes of which one must be true.
    """
    return Ask(listed(request_of(pod)), _constraints(pod, volumes), lasts_s(pod))


def selected_by(pod: Pod) -> Constraints:
    """Return only a pod's node selector and required node affinity, as constraints."""
    key = _constraints(pod, ())
    return Constraints(key.selector, key.terms)


def tolerations_of(pod: Pod) -> tuple[Pattern, ...]:
    """Return the taints that a pod tolerates, as sorted patterns of key, effect and value."""
    return _constraints(pod, ()).tolerations


def longest(each: Iterable[int]) -> int:
    """Return the longest of some durations in seconds; 0 if one has no end.

    A duration of 0 stands for no end.
    """
    every = list(each)
    return max(every) if every and all(every) else 0


def listed(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return amounts of resources as sorted pairs of name and amount, without zeros."""
    return tuple(sorted((resource, amount) for resource, amount in amounts.items() if amount > 0))


def terms_of(selector: NodeSelector) -> Terms:
    """Return the terms of a node selector. A node must match one of them."""
    return tuple(Term(_all(t.match_expressions), _all(t.match_fields)) for t in selector.node_selector_terms)


def size_of(selector: NodeSelector) -> int:
    """Return how many terms, expressions and values a node selector has, to limit work."""
    return sum(
        1 + sum(1 + len(r.values) for r in (*term.match_expressions, *term.match_fields))
        for term in selector.node_selector_terms
    )


def _constraints(pod: Pod, volumes: Where) -> Constraints:
    required = affinity.required(pod)
    size = len(pod.spec.node_selector) + len(pod.spec.tolerations) + (0 if required is None else size_of(required))
    if size > MOST:
        return OVERSIZE
    terms = None if required is None else terms_of(required)
    patterns = {pattern for toleration in pod.spec.tolerations if (pattern := _pattern(toleration)) is not None}
    selector, by_hostname = tuple(sorted(pod.spec.node_selector.items())), terms is not None and pod.gated
    return Constraints(selector, terms, tuple(sorted(patterns)), volumes, by_hostname)


def lasts_s(pod: Pod) -> int:
    """Return the seconds after which a pod's GPUs are free again at the latest; 0 without an end.

    The number is rounded up to two significant digits, so that many waiting pods have equal requirements. A pod that
    can run for more than ten years counts as a pod without an end.
    """
    deadline_s = pod.spec.active_deadline_seconds
    lasts = 0 if deadline_s is None else BEGINS_S + deadline_s + pod.grace_s + FREED_S
    if not 0 < lasts <= LONGEST_S:
        return 0
    step: int = 10 ** max(0, len(str(lasts)) - 2)
    return math.ceil(lasts / step) * step


def _all(requirements: list[NodeRequirement]) -> tuple[Requirement, ...]:
    return tuple((r.key, r.operator, tuple(r.values)) for r in requirements)


def _pattern(toleration: Toleration) -> Pattern | None:
    """Return a toleration as a pattern of key, effect and value, to compare with taints.

    None if the toleration covers no taint that keeps pods away.
    """
    return pattern_of(toleration.key, toleration.operator, toleration.value, toleration.effect)
