"""What a pod of ours asks for: its note, its template and its volumes, read into one ``PlacementRequest``."""

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
from dradriver.cluster.pods.anti_affinity import Rules, rules_of
from dradriver.cluster.records.templates import beside, missing
from dradriver.reason import Reason

Kind: TypeAlias = tuple[Request, Ask, str, bool, Rules | None, NicAsk | None, str]
"""The last is who it is for whom GPUs are reserved; empty for others."""


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks for.

    Attributes:
        request: What the allocator is asked.
        requests: Names of the claim's requests, container after container.
        pod: The pod.
        claim: The claim that will hold them.
        keep_env: Variables of the author's that no edit may replace.
        nccl: What NCCL is told.
        ask: What it asks of a node.
        template: What its claim has of a template, if it is made by one.
        shared: Whether it shares them with all pods that name this claim.
        alone: The spec of the claim with which the scheduler gets it if there is no place; None where it waits then.
        rules: What it says of pods beside it; None for nothing.
        spot: ``prefer`` or ``avoid`` where it says so of spot nodes; else empty.
        beside: The templates that it names beside that of its GPUs: not every node may have what they ask for.
        nics: What its claim asks of NICs; None for nothing.
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
    rules: Rules | None = None
    spot: str = ""
    nics: NicAsk | None = None
    beside: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Return the key that pods share which find a place together or not at all.

        A GPU's parts may be of one namespace only; so are templates.
        """
        where = "" if isinstance(self.request, Whole) and not self.beside else "/".join((self.claim[0], *self.beside))
        return self.request, self.ask, where, self.alone is not None, self.rules, self.nics, ""


def read_wish(
    pod: Pod, template: Template | None = None, volumes: Where = (), has: Sequence[int] = ()
) -> PlacementRequest:
    """Return the placement request of a pod: its note, template and volumes.

    Args:
        pod: The pod.
        template: The template that it names, as far as there is one.
        volumes: Where its volumes are, as far as that is known.
        has: How many whole GPUs each request of its claim has, of a pod that keeps its place: what its template says by
            now is another's to ask for. Empty for any other.

    Raises:
        WordError: What the webhook admitted was changed since into something that cannot be placed, or its template is
            missing or asks for what cannot be.
    """
    noted = resolved.read(pod.metadata.annotations)
    known = {c.name for c in (*pod.spec.init_containers, *pod.spec.containers)}
    if strangers := sorted(set(noted.containers) - known):
        raise WordError(f"{names.REQUEST}: the pod has no container {strangers[0][:63]!r}; create the pod anew")
    key = claim_key(pod)
    if key is None:
        raise WordError(f"spec.resourceClaims has no entry {names.POD_CLAIM} with a claim's name; create the pod anew")
    shared = noted.shared is not msgspec.UNSET
    if is_set(key) != shared or (shared and noted.shared != key[1]):
        raise WordError(f"{names.REQUEST} says nothing of a shared claim {shown(key[1])}; create the pod anew")
    wish = PlacementRequest(
        request=noted.request,
        requests=tuple(dict.fromkeys(name for own in noted.requests.values() for name in own)),
        pod=(pod.metadata.namespace, pod.metadata.name),
        claim=key,
        shared=shared,
        keep_env=tuple(kept_env(pod, frozenset(noted.containers))),
        nccl=NCCL_AUTO if noted.nccl is msgspec.UNSET else noted.nccl,
        ask=_without_end(ask_of(pod, volumes)) if shared else ask_of(pod, volumes),
        spot="" if noted.spot is msgspec.UNSET else noted.spot,
        beside=beside(pod),
        rules=None if shared else rules_of(pod),  # those who share a set are on one node, whatever they say
    )
    # What the scheduler would have to know stands in our own slices; admission refuses the word where others' count.
    hand_over = not _narrowed(pod) and noted.when_full == HAND_OVER and current_ledger() is OURS
    if pod.template is not None and has and isinstance(wish.request, Whole):
        return msgspec.structs.replace(wish, request=msgspec.structs.replace(wish.request, containers=tuple(has)))
    if pod.template is not None:
        asked = _by_template(wish, pod.template[1], template)
        return msgspec.structs.replace(asked, alone=_alone(asked, wish.request)) if hand_over else asked
    if hand_over:
        return msgspec.structs.replace(wish, alone=claim_alternatives.spec(noted, keep_env=wish.keep_env))
    return wish


def _without_end(ask: Ask) -> Ask:
    """Return what is asked for a set that pods share: nobody knows who will still come to it."""
    return msgspec.structs.replace(ask, lasts_s=0)


def _narrowed(pod: Pod) -> bool:
    """Return whether a pod was lifted for some nodes; one that was handed over may go to any."""
    return not pod.gated and affinity.is_narrowed(pod.metadata.annotations, affinity.required(pod))


def _by_template(wish: PlacementRequest, name: str, template: Template | None) -> PlacementRequest:
    if template is None:
        raise WordError(missing(name))
    if not isinstance(wish.request, Whole):
        raise WordError(f"annotation {names.REQUEST} was changed: a template says which part; create the pod anew")
    asked = claim_templates.read(template, wish.request)
    return msgspec.structs.replace(
        wish,
        request=asked.request,
        requests=asked.requests,
        keep_env=tuple(sorted({*wish.keep_env, *asked.keep_env})),
        nccl=wish.nccl if asked.nccl is None or wish.nccl != NCCL_AUTO else asked.nccl,
        template=asked,
        nics=asked.nics,
    )


def _alone(asked: PlacementRequest, words: Request) -> dict[str, Any] | None:
    """Return what the scheduler gets of a pod with a template: that, and what the words demand.

    None where no claim can say these, which admission refuses: such a pod waits rather than get less.
    """
    assert asked.template is not None, "read from one"
    # Without what was read of the template's own selectors, which stand in its requests as they are.
    if isinstance(asked.request, Whole) and isinstance(words, Whole):
        request: Request = msgspec.structs.replace(words, containers=asked.request.containers)
    else:
        common = {field: getattr(words, field) for field in COMMON}
        request = msgspec.structs.replace(asked.request, **common)
    try:
        return claim_alternatives.demanding(asked.template.spec, request, asked.requests)
    except WordError:
        return None


def why(pod: Pod, error: NoPlaceError) -> Reason:
    """Return why a pod has no place: one that was placed before can have one on a few nodes only."""
    if not _narrowed(pod):
        return error.why
    return Reason(
        error.cause,
        f"the nodes that this pod was placed for have no other GPUs for it: {error}; delete it to have it placed anew",
    )
