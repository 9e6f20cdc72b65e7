"""What one pod demands of a node: read once a pod, then compared and looked up."""

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
    """Expressions that must all hold, on labels and on fields; an empty term holds nowhere."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


Terms: TypeAlias = tuple[Term, ...]  # of which one must hold
Where: TypeAlias = tuple[Terms, ...]  # of each one must hold: of the nodes that reach volumes; empty where all do


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """Where a pod may run whatever is free there. Pods of equal constraints share one mask of nodes.

    Attributes:
        selector: The node selector's pairs, sorted.
        terms: The required node affinity, of which one must hold; None where any node will do.
        tolerations: The taints that the pod tolerates, sorted.
        volumes: Of each of its volumes that are not everywhere the terms of which one must hold, sorted.
        by_hostname: Whether the pod is to be narrowed by the nodes' hostname label: ``affinity.narrow`` adds the label
            to the pod's own terms. A node without the label is in none of them.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: Terms | None = None
    tolerations: tuple[Pattern, ...] = ()
    volumes: Where = ()
    by_hostname: bool = False


# No pod needs so many, and reading them all for every decision would cost every other pod time.
OVERSIZE: Final = Constraints(terms=())


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What one pod asks of a node.

    Attributes:
        amounts: What it takes, by resource, sorted; zeros are left out.
        key: Its constraints: pods that differ in amounts only have equal ones.
        lasts_s: After how many seconds what it is promised is free again at the latest; 0 for a pod without end.
    """

    amounts: tuple[tuple[str, int], ...]
    key: Constraints
    lasts_s: int = 0


def ask_of(pod: Pod, volumes: Where = ()) -> Ask:
    """Return what a pod demands of a node; ``volumes`` says where its volumes are. Never raises."""
    return Ask(listed(request_of(pod)), _constraints(pod, volumes), lasts_s(pod))


def selected_by(pod: Pod) -> Constraints:
    """Return which nodes a pod's node selector and required node affinity select, whatever else keeps it from them."""
    key = _constraints(pod, ())
    return Constraints(key.selector, key.terms)


def tolerations_of(pod: Pod) -> tuple[Pattern, ...]:
    """Return which taints a pod tolerates, as the patterns that cover them, sorted."""
    return _constraints(pod, ()).tolerations


def longest(each: Iterable[int]) -> int:
    """Return after how many seconds all of some pods have ended that run so long each; 0 stands for never."""
    every = list(each)
    return max(every) if every and all(every) else 0


def listed(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the amounts of resources that a pod demands, as ``Ask`` holds them."""
    return tuple(sorted((resource, amount) for resource, amount in amounts.items() if amount > 0))


def terms_of(selector: NodeSelector) -> Terms:
    """Return the terms of the node selector in a pod's demands."""
    return tuple(Term(_all(t.match_expressions), _all(t.match_fields)) for t in selector.node_selector_terms)


def size_of(selector: NodeSelector) -> int:
    """Return how many terms, expressions and values the node selector of a pod has."""
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
    """Return after how many seconds a pod's GPUs are free again at the latest; 0 for a pod without end.

    Rounded up to two digits: of all durations that there are, so few differ that those who wait are still of few kinds.
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
    """Return which taints a toleration covers, or None where it covers none that keeps pods away."""
    return pattern_of(toleration.key, toleration.operator, toleration.value, toleration.effect)
