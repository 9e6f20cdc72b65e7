"""Reads what a pod requests into one ``PlacementRequest``: from its annotation, its template and its volumes.

A *fraction* is a share of a GPU or a MIG slice. The webhook's *note* is the annotation with the request. A pod is
*confined* to the nodes in its node affinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from dradriver.allocator.request import NoPlaceError, Request, Whole
from dradriver.api.base import affinity, names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_templates
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key, claim_key, is_set, kept_env
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.vocabulary.container_requests import COMMON
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.nic_requests import NicAsk
from dradriver.api.vocabulary.values import HAND_OVER, NCCL_AUTO
from dradriver.cluster.nodes.pod_demands import Ask, Where, ask_of
from dradriver.cluster.pods.other_claims import claims_of
from dradriver.cluster.pods.pod_rules import Rules, rules_of
from dradriver.cluster.records.templates import beside, missing
from dradriver.reason import Reason

Kind: TypeAlias = tuple[Request, Ask, str, bool, Rules | None, NicAsk | None, str]
"""What one pod asks for. The last entry is the workload that GPUs are reserved for; empty for others."""
Kinds: TypeAlias = tuple[Kind, ...]
"""The key of an equivalence class: what its pods ask for, each kind once; of a single pod its only kind."""


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's request, with all other facts about the pod that placement needs.

    Attributes:
        request: The request for the allocator.
        requests: Names of the claim's requests, container after container.
        pod: The pod.
        claim: The claim that will have the GPUs.
        keep_env: Environment variables of the pod's author that the driver must not replace.
        nccl: How NCCL is configured.
        ask: The pod's requirements for a node.
        template: The part of its claim that comes from a template; None without a template.
        shared: Whether the pod shares the GPUs with all pods that name this claim.
        alone: The spec of a claim that names no GPUs, so that the scheduler can choose them itself. None if the
            scheduler may not place the pod.
        hands_over: Whether the controller lets the scheduler place the pod if it finds no place itself. If False, the
            pod waits.
        open: Why the pod may run on many nodes instead of a few chosen ones, with the rules that only the scheduler
            knows. Empty if the pod is confined to a few nodes.
        rules: The pod's affinity and anti-affinity to other pods; None without any.
        spot: ``prefer`` or ``avoid`` if the pod prefers or avoids spot nodes; else empty.
        beside: Templates that the pod names in addition to the template for its GPUs. Some nodes may lack the devices
            that these templates request.
        nics: The NICs that its claim requests; None without any.
        other_claims: Claims of other drivers that the pod names and that may be allocated already.
    """

    request: Request
    requests: tuple[str, ...]
    pod: Key
    claim: Key
    keep_env: tuple[str, ...]
    nccl: str
    ask: Ask
    template: claim_templates.TemplateRequest | None = None
    shared: bool = False
    alone: dict[str, Any] | None = None
    hands_over: bool = False
    open: str = ""
    rules: Rules | None = None
    spot: str = ""
    nics: NicAsk | None = None
    beside: tuple[str, ...] = ()
    other_claims: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Return the key of the pod's equivalence class.

        Pods with this key find a place together or not at all. The key contains the namespace in two cases. If the pod
        requests fractions: a GPU's fractions can be exclusive to one namespace. If the pod names other templates or
        claims: they belong to a namespace.
        """
        is_independent = isinstance(self.request, Whole) and not (self.beside or self.other_claims)
        others = (*self.beside, *(f"claim {name}" for name in self.other_claims))
        namespace = "" if is_independent else "/".join((self.claim[0], *others))
        return self.request, self.ask, namespace, self.hands_over, self.rules, self.nics, ""


def read_wish(
    pod: Pod,
    template: Template | None = None,
    volumes: Where = (),
    kept_gpus: Sequence[int] = (),
    unknown: Reason | None = None,
) -> PlacementRequest:
    """Return the placement request of a pod, from its annotation, its template and its volumes.

    Args:
        pod: The pod.
        template: The ResourceClaimTemplate that it names; None if it names none.
        volumes: Where its volumes can be reached, as far as known.
        kept_gpus: If the pod keeps its place, the number of whole GPUs of each request of its claim. They count,
            because the template may have changed since. Empty for any other pod.
        unknown: Which of the pod's rules only the scheduler can evaluate; None without such rules.

    Raises:
        WordError: The pod was changed after its admission into something that cannot be placed, or its template is
            missing or cannot be met.
    """
    # The webhook wrote the pod's request into an annotation, for each container. Fields that the author did not set are
    # ``UNSET`` there.
    resolved_request = resolved.read(pod.metadata.annotations)
    container_names = {container.name for container in (*pod.spec.init_containers, *pod.spec.containers)}
    if missing_containers := sorted(set(resolved_request.containers) - container_names):
        raise WordError(
            f"{names.REQUEST}: the pod has no container {missing_containers[0][:63]!r}. Create the pod again"
        )
    key = _checked_claim(pod, resolved_request.shared)
    is_shared = is_set(key)
    node_request = ask_of(pod, volumes)
    pod_request = PlacementRequest(
        request=resolved_request.request,
        requests=tuple(dict.fromkeys(name for listed in resolved_request.requests.values() for name in listed)),
        pod=(pod.metadata.namespace, pod.metadata.name),
        claim=key,
        shared=is_shared,
        keep_env=tuple(kept_env(pod, frozenset(resolved_request.containers))),
        nccl=NCCL_AUTO if resolved_request.nccl is msgspec.UNSET else resolved_request.nccl,
        # Other pods can join a shared set at any time, so it has no known end.
        ask=msgspec.structs.replace(node_request, lasts_s=0) if is_shared else node_request,
        spot="" if resolved_request.spot is msgspec.UNSET else resolved_request.spot,
        beside=beside(pod),
        other_claims=tuple([name for _, name in claims_of(pod)]) if len(pod.spec.resource_claims) > 1 else (),
        open=open_reason(pod, unknown),
        # All pods of a shared set are on one node, whatever their affinity says.
        rules=None if is_shared else rules_of(pod),
    )

    # Now the claim spec for the case that the scheduler gets the pod. It needs attributes that only the slices of this
    # driver have. If another driver's devices are allocated, admission refuses the annotation.
    hands_over = resolved_request.when_full == HAND_OVER
    is_by_scheduler = hands_over or pod_request.open != ""
    can_hand_over = is_by_scheduler and not (is_narrowed(pod) or is_shared) and current_ledger() is OURS
    # ``pod.template`` names the claim entry and the template that the author wrote for the GPUs; None for plain limits.
    if pod.template is not None and kept_gpus and isinstance(pod_request.request, Whole):
        kept_request = msgspec.structs.replace(pod_request.request, containers=tuple(kept_gpus))
        return msgspec.structs.replace(pod_request, request=kept_request)
    if pod.template is not None:
        templated = _by_template(pod_request, pod.template[1], template)
        handed_over = _alone(templated, pod_request.request) if can_hand_over else None
        pod_request = templated
    else:
        handed_over = _alone_by_limits(resolved_request, pod_request, hands_over) if can_hand_over else None
    return msgspec.structs.replace(pod_request, alone=handed_over, hands_over=hands_over and handed_over is not None)


def _checked_claim(pod: Pod, shared: str | msgspec.UnsetType) -> Key:
    """Return the claim that a pod's spec names, if it agrees with the webhook's note.

    Args:
        pod: The pod.
        shared: The shared claim in the webhook's note (annotation ``names.REQUEST``); unset if the note has none.

    Raises:
        WordError: The pod names no claim, or another claim than the note.
    """
    key = claim_key(pod)
    if key is None:
        raise WordError(f"spec.resourceClaims has no entry {names.POD_CLAIM} with a claim's name. Create the pod again")
    is_shared = shared is not msgspec.UNSET
    if is_set(key) != is_shared or (is_shared and shared != key[1]):
        raise WordError(f"{names.REQUEST} has no shared claim {shown(key[1])}. Create the pod again")
    return key


def is_narrowed(pod: Pod) -> bool:
    """Return whether the controller has chosen the nodes on which the pod may run.

    False for a pod with its scheduling gate. Also false for a pod that was handed over to the scheduler: it may use any
    node.
    """
    return not pod.gated and affinity.is_narrowed(pod.metadata.annotations, affinity.required(pod))


def open_reason(pod: Pod, unknown: Reason | None) -> str:
    """Return why a pod may use more than a few known nodes; else empty.

    A gated pod counts as confined, because the controller confines it when it removes the gate.

    Args:
        pod: The pod.
        unknown: Which of the pod's rules only the scheduler can evaluate; None without such rules.
    """
    if is_narrowed(pod):
        return ""
    if unknown is not None:
        return unknown.text
    return "" if pod.gated else "Only the scheduler knows which nodes the pod can use."


def _by_template(wish: PlacementRequest, name: str, template: Template | None) -> PlacementRequest:
    """Return a pod's placement request with the requests of its template added.

    Args:
        wish: The placement request so far.
        name: The name of the template.
        template: The template; None if there is no template with this name.

    Raises:
        WordError: The template is missing or cannot be met, or the pod requests a fraction itself.
    """
    if template is None:
        raise WordError(missing(name))
    if not isinstance(wish.request, Whole):
        raise WordError(
            f"annotation {names.REQUEST} was changed: the template defines the fraction. Create the pod again"
        )
    templated = claim_templates.read(template, wish.request)
    return msgspec.structs.replace(
        wish,
        request=templated.request,
        requests=templated.requests,
        keep_env=tuple(sorted({*wish.keep_env, *templated.keep_env})),
        nccl=wish.nccl if templated.nccl is None or wish.nccl != NCCL_AUTO else templated.nccl,
        template=templated,
        nics=templated.nics,
    )


def _alone(wish: PlacementRequest, annotated: Request) -> dict[str, Any] | None:
    """Return the claim spec with which the scheduler may place a pod with a template.

    The scheduler then chooses the GPUs. The result is the template's spec with the requirements of the pod's
    annotations added. None if a claim cannot express these requirements. Admission refuses pods with such requirements.
    If the controller finds such a pod anyway, the pod waits, because the scheduler would give it less than it requests.
    """
    assert wish.template is not None, "read from one"
    # The template's own selectors are in its spec already, so only those of the annotations are added.
    if isinstance(wish.request, Whole) and isinstance(annotated, Whole):
        request: Request = msgspec.structs.replace(annotated, containers=wish.request.containers)
    else:
        common = {field: getattr(annotated, field) for field in COMMON}
        request = msgspec.structs.replace(wish.request, **common)
    try:
        return claim_alternatives.demanding(wish.template.spec, request, wish.requests)
    except WordError:
        return None


def _alone_by_limits(
    resolved_request: resolved.Resolved, wish: PlacementRequest, hands_over: bool
) -> dict[str, Any] | None:
    """Return the claim spec with which the scheduler may place a pod that has GPU limits.

    None if a claim cannot express the pod's request.

    Args:
        resolved_request: The request in the pod's note.
        wish: The placement request so far.
        hands_over: Whether the pod's author requests that the scheduler places the pod if the controller cannot.

    Raises:
        WordError: A claim cannot express the request, and ``hands_over`` is true.
    """
    try:
        return claim_alternatives.spec(resolved_request, keep_env=wish.keep_env)
    except WordError:
        if hands_over:
            raise
        return None


def why(pod: Pod, error: NoPlaceError) -> Reason:
    """Return the reason why a pod has no place, from the error of the search.

    If the pod was placed before, its node affinity still names those nodes, and the reason adds this.
    """
    if not is_narrowed(pod):
        return error.why
    return error.why.add(
        "The pod was placed before and can use only the nodes of that placement. Delete it to have it placed again"
    )
