"""CREATE of a pod with the driver's annotations: its GPU limits become one claim, and it gets a scheduling gate.

``admission`` calls it. A *note* is an annotation in which the driver keeps data for itself, such as the resolved
request. A *copy* is a new pod that was made from the manifest of a stored pod, and has its notes. The API server calls
a second time, with a new request uid, if another webhook or plugin changed the pod (``reinvocationPolicy: IfNeeded``).
So every step gives the same result when it is repeated. An exception is the name of the claim, which is new each time.
The webhook cannot tell a second call from a copy of the pod, and a copy must never share the pod's claim. A new name
does no harm, because no claim with the first name exists yet.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import affinity, names, other_schedulers
from dradriver.api.base.errors import WordError
from dradriver.api.pod import claim_alternatives, misspelled, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import messages, vendor_words
from dradriver.api.vocabulary.container_requests import Asked, described
from webhook import (
    addon,
    bounds,
    desired,
    effects,
    gang,
    gpu_limits,
    harmful_settings,
    kueue,
    pod_groups,
    pod_view,
    scheduler_placed,
    template_reference,
)
from webhook.gpu_limits import Asks

Requests = Mapping[str, tuple[str, ...]]
"""Names of the claim's requests by container."""

_CLAIM_NAME: Final = re.compile(re.escape(names.CLAIM_PREFIX) + "[a-z0-9]{10}")
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz234567" * 8  # a letter for each value of a byte, all equally often
# Annotations that the driver writes and that users write by mistake, with what they should write instead.
_WRITE_INSTEAD: Final = {
    names.BANDWIDTH: names.MIN_BANDWIDTH,
    names.BUSBW: names.MIN_BUSBW,
    names.LEVEL: names.REQUIRED,
    names.NODE: "a nodeSelector kubernetes.io/hostname",
    names.RANK_HINT: f"{names.GANG}: auto",
}
_GATE: Final = pod_view.Named(names.GATE)


def claim_name() -> str:
    """Return a new random name for a pod's claim."""
    return names.CLAIM_PREFIX + secrets.token_bytes(10).translate(_LETTERS).decode()


def create(
    pod: pod_view.Pod,
    policies: Policies,
    *,
    by_limits: bool = False,
    new_name: Callable[[], str] = claim_name,
) -> tuple[desired.Desired | None, list[str]]:
    """Return the desired fields of a created pod, and warnings.

    The first value is None if the pod does not request anything of this driver.

    Args:
        pod: The pod as sent.
        policies: The policies in force.
        by_limits: Whether a pod with GPU limits and without annotations is for this driver. A label of its namespace
            says so.
        new_name: Returns a name for the claim.

    Raises:
        WordError: An unknown annotation, a bad value, a contradiction, or a pod that can never be placed.
    """
    # ``pod.words``: the author's annotations under our prefixes. ``pod.written``: those of webhook and controller.
    warnings = [*misspelled.warnings(pod.annotations, pod.labels)]
    if not (by_limits or pod.is_marked):
        return None, warnings
    bounds.check(pod)
    warnings += harmful_settings.warnings(pod)
    # ``policies.schedulers``: names in manifests for which the cluster has no scheduler.
    scheduler_name = pod.spec.scheduler_name
    if scheduler_name in policies.schedulers:
        scheduler_name = "default-scheduler"
    warnings += filter(None, [other_schedulers.warning(scheduler_name or "")])

    # 1. What its containers ask for. A copy of an admitted pod has lost its limits; its note says it instead. A pod
    # whose GPUs come from a claim template asks for one GPU per container here, and the template has the number.
    # ``asks``: by container, a number of GPUs, a share or MIG profiles. ``product``, ``vendor``: empty if not named.
    # ``template``: the entry of spec.resourceClaims and its ResourceClaimTemplate; None without one.
    copied = _is_copy(pod)
    if copied:
        kueue.check_copy(pod)
    template = pod.template if copied else None
    if copied and template is None:
        asks, product, vendor = _noted(pod)
        warnings += _ignored_limits(pod, asks)
    elif not copied:
        _refuse_foreign(pod)
        warnings += [
            f"{key}: only the driver writes this annotation, so your value is dropped. To request it, write "
            f"{_WRITE_INSTEAD[key]}."
            for key in pod.written
            if key in _WRITE_INSTEAD
        ]
        asks, (product, vendor) = gpu_limits.asks(pod), gpu_limits.which(pod)
        template = template_reference.meant(pod, asks)
        if template is None and not asks:
            gpu_limits.refuse_unread(pod)
        kueue.check(pod)
    by_template = template is not None
    if template is not None:
        template_reference.check_names(*template)
        asks, product, vendor = template_reference.users(pod, template[0]), "", ""

    # 2. The request that annotations and limits make, and what is wrong with it.
    # ``note``: its text. ``requests``: names of the claim's requests by container. ``longest_s``: how long the pod may
    # run.
    spec = pod.spec
    annotations = tuple(pod.words.items())
    resolved_request, note, requests, longest_s, without_effect = _resolved(
        annotations, tuple(asks.items()), product, vendor, policies, by_template=by_template,
        limits=gpu_limits.have_limits(pod), deadline_s=spec.active_deadline_seconds,
    )  # fmt: skip
    warnings += addon.check(resolved_request, by_template=by_template)
    warnings += template_reference.advice(pod, resolved_request, template)
    if not by_template:
        warnings += scheduler_placed.advice(resolved_request)
        warnings += filter(None, [vendor_words.count_warning(resolved_request.request)])
    warnings += gang.check(pod, resolved_request, policies)
    warnings += kueue.advice(pod, resolved_request)
    warnings += without_effect

    # 3. Claim, gate and label. The claim is made from the pod's own template by the controller, from the driver's
    # template by Kubernetes (a ``static`` pod, which the scheduler alone places, without a gate), or by the controller.
    shared = None if resolved_request.shared is msgspec.UNSET else resolved_request.shared
    if shared is not None:
        # All containers use all of a shared set, so it does not matter whose GPUs an init container borrows.
        asks = dict(list(asks.items())[:1])
    sent_claims = spec.resource_claims or ()
    gates = desired.with_last(spec.scheduling_gates or (), _GATE)
    label, written = names.LABEL_PLACED, {}
    # ``with_last`` and ``replaced`` return a list as it should be: the author's entries stay, and ours is added.
    if template is not None:
        written = {names.TEMPLATE: "/".join(template)}
        claims = desired.replaced(sent_claims, pod_view.PodClaim(template[0], new_name()))
    elif scheduler_placed.is_static(resolved_request):
        # Kubernetes makes the claim from a template that is named after the note. So the note has all that the claim is
        # made from: also the names of the author's environment variables that no edit of the claim may replace.
        authors_variables = scheduler_placed.kept(pod, requests)
        note = resolved.write(scheduler_placed.noted(resolved_request, authors_variables))
        claims = desired.with_last(
            sent_claims, pod_view.PodClaim(names.POD_CLAIM, None, claim_alternatives.template_name(note))
        )
        label, gates = names.LABEL_STATIC, desired.without(spec.scheduling_gates or (), names.GATE)
    else:
        claims = desired.with_last(sent_claims, pod_view.PodClaim(names.POD_CLAIM, shared or new_name()))
    # A gated pod leaves the PodGroup that Kubernetes made for its Job: kube-scheduler tries no pod of a PodGroup while
    # another one has a gate. The note keeps the PodGroup's name, a copy of the pod has left it already.
    group_to_leave = pod_groups.left(pod) if label == names.LABEL_PLACED else ""
    if group_to_leave:
        written |= {names.POD_GROUP: group_to_leave}
    return (
        desired.Desired(
            label=label,
            written=written | {names.REQUEST: note},
            # App containers and sidecars use requests of their own. Init containers end before, and borrow GPUs.
            containers=tuple(_app(c, requests) for c in pod.containers),
            init_containers=tuple(
                _app(c, requests) if c.restart_policy == "Always" else _init(c, asks, requests, copied=copied)
                for c in pod.init_containers
            ),
            claims=claims,
            gates=gates,
            node_name=None,
            scheduler_name=scheduler_name,
            deadline_s=desired.ended_after(longest_s, spec.active_deadline_seconds),
            # The copied pod's affinity may have the nodes that the controller wrote into it: they are removed.
            required=authors_affinity(pod) if copied else desired.AS_SENT,
            leaves_group=group_to_leave != "" and pod.is_in_group,
        ),
        warnings,
    )


@functools.lru_cache(maxsize=256)
def _resolved(
    words: tuple[tuple[str, str], ...],
    asks: tuple[tuple[str, Asked], ...],
    product: str,
    vendor: str,
    policies: Policies,
    *,
    by_template: bool,
    limits: bool,
    deadline_s: int | None,
) -> tuple[Resolved, str, Requests, int | None, tuple[str, ...]]:
    """Return the resolved request of a pod, with its note, request names, time limit and warnings.

    The result is cached, because the pods of one job have the same annotations and limits.

    Args:
        words: The pod's annotations.
        asks: The containers' requests for GPUs, by container.
        product: GPU product of the limits; empty for any.
        vendor: GPU vendor of the limits; empty for the default.
        policies: The policies in force.
        by_template: Whether a claim template says how many GPUs the pod has.
        limits: Whether containers have GPU limits.
        deadline_s: ``activeDeadlineSeconds`` of the pod; None without one.

    Returns:
        Five values: the resolved request; the text of the note with it; the names of the claim's requests by container,
        empty if a template makes the claim; for how many seconds the pod may run; warnings of annotations without
        effect.

    Raises:
        WordError: An annotation is bad or contradicts another.
    """
    # Dicts cannot be keys of a cache, so they come as tuples.
    annotations = Annotations(dict(words), policies)
    resolved_request = resolved.resolve(annotations, dict(asks), product=product, vendor=vendor)
    longest_s = annotations.max_duration_s
    warnings = effects.warnings(
        annotations, resolved_request, by_template=by_template, product=product, vendor=vendor, limits=limits,
        deadline_s=deadline_s,
    )  # fmt: skip
    if by_template:
        template_reference.check(resolved_request, annotations)
        return resolved_request, resolved.write(resolved_request), {}, longest_s, tuple(warnings)
    scheduler_placed.check(resolved_request, policies)
    return resolved_request, resolved.write(resolved_request), resolved_request.requests, longest_s, tuple(warnings)


def authors_affinity(pod: pod_view.Pod) -> Any:
    """Return the node affinity that a created pod must require, as JSON; ``AS_SENT`` for no change.

    The affinity changes only in a copy of a placed pod. The copy has the affinity by which the controller restricted
    the original to its nodes, and gets instead the affinity that its author required. This affinity is in a note, an
    annotation of the driver. The result is None if the author required no node affinity.

    Raises:
        WordError: The note or the affinity is not valid.
    """
    selector = pod_view.selector(pod.spec)
    if selector is None or not selector.node_selector_terms or not affinity.is_narrowed(pod.written, selector):
        return desired.AS_SENT
    own = affinity.authors(pod.written)
    return None if own is None else affinity.plain(own)


def _is_copy(pod: pod_view.Pod) -> bool:
    entry = pod.own_claim
    return (
        names.REQUEST in pod.written
        and entry is not None
        and (
            _CLAIM_NAME.fullmatch(entry.resource_claim_name or "") is not None
            or claim_alternatives.TEMPLATE_NAME.fullmatch(entry.resource_claim_template_name or "") is not None
            or _shares(pod, entry.resource_claim_name)
        )
    )


def _shares(pod: pod_view.Pod, claim: str | None) -> bool:
    """Return whether a copied pod's note says that the original pod shared this claim.

    Several pods can share one claim. The note is an annotation with the request of the original pod. The result is
    False if the note cannot be read.

    Args:
        pod: The pod as sent.
        claim: The name of the claim; None without one.
    """
    try:
        return claim is not None and resolved.read(pod.written).shared == claim
    except WordError:
        return False


def _noted(pod: pod_view.Pod) -> tuple[Asks, str, str]:
    """Return what a copy of an earlier pod requests, from the note on the copy.

    The note is an annotation with the resolved request, written by the webhook on the original.

    The three values are the requests by container, the product and the vendor. A copy has no GPU limits, because the
    webhook removed the limits of the original. Product and vendor are empty if these limits named none.

    Raises:
        WordError: The note cannot be read, or names a container that the pod does not have.
    """
    try:
        note = resolved.read(pod.written)
    except WordError as error:
        raise WordError(f"{error} Or remove this annotation and set the GPU limit in each container.") from None
    present = [container.name for container in (*pod.app_containers, *pod.init_containers)]
    noted = note.asked
    for name in noted:
        if name not in present:
            raise WordError(
                f"The annotation {names.REQUEST} names the container {name[:63]!r}, which the pod does not have. "
                f"Remove this annotation and set the limit {names.GPU_RESOURCE} in each container."
            )
    return {name: noted[name] for name in present if name in noted}, note.product or "", note.vendor or ""


def _ignored_limits(pod: pod_view.Pod, asks: Asks) -> list[str]:
    if pod.gated or pod.label == names.LABEL_STATIC:
        return []  # a second pass: a LimitRange has put its default where the first took a limit away
    return [
        f"container {c.name[:63]!r}: its limit ({described(own)}) is ignored. The annotation {names.REQUEST}, copied "
        f"from another pod, requests {described(asks[c.name]) if c.name in asks else 'none'}."
        for c in pod.app_containers
        if (own := gpu_limits.asked(c.name, gpu_limits.amounts(c))) and own != asks.get(c.name)
    ]


def _refuse_foreign(pod: pod_view.Pod) -> None:
    if pod.spec.node_name:
        raise WordError(
            f"spec.nodeName: {messages.shown(pod.spec.node_name)}: with a fixed node the driver cannot choose the "
            f"GPUs. Remove it and write a nodeSelector kubernetes.io/hostname, or remove the {names.PREFIX} "
            f"annotations."
        )
    entry = pod.own_claim
    if entry is not None and not _CLAIM_NAME.fullmatch(entry.resource_claim_name or ""):
        raise WordError(
            f"spec.resourceClaims: the name {names.POD_CLAIM!r} is reserved for the driver. Give this claim another "
            f"name."
        )
    if entry is None:
        for container in (*pod.app_containers, *pod.init_containers):
            if _uses_claim(container.claims):
                raise WordError(
                    f"container {container.name[:63]!r}: resources.claims: only the driver writes the entry "
                    f"{names.POD_CLAIM!r}. Write the limit {names.GPU_RESOURCE} instead."
                )


def _uses_claim(claims: Sequence[pod_view.UsedClaim]) -> bool:
    return any(claim.name == names.POD_CLAIM for claim in claims)


def _app(container: pod_view.Container, requests: Requests) -> desired.Container | None:
    """Return the desired fields of an app container or a sidecar; None for no change.

    A container with GPUs uses its own requests of the claim, and loses its GPU limits.

    Args:
        container: The container.
        requests: The names of the claim's requests, by container.
    """
    stripped = gpu_limits.amounts(container).gpus
    if container.name in requests:
        return _user(container, requests[container.name], stripped)
    return desired.Container(tuple(range(len(container.claims))), stripped) if stripped else None


def _user(
    container: pod_view.Container, requests: Sequence[str | None], stripped: tuple[tuple[str, ...], ...]
) -> desired.Container:
    """Return the desired fields of a container that uses GPUs of the pod's claim.

    Args:
        container: The container.
        requests: The names of the claim's requests that it uses. None instead of a name means the whole claim.
        stripped: The GPU limits to remove, as paths below ``resources``.
    """
    own = [pod_view.UsedClaim(names.POD_CLAIM, request) for request in requests]
    return desired.Container(desired.with_last(container.claims, *own), stripped)


def _init(container: pod_view.Container, asks: Asks, requests: Requests, *, copied: bool) -> desired.Container | None:
    """Return the desired fields of an init container; None for no change.

    An init container with a GPU limit uses the GPUs of another container, or all GPUs of the pod.

    Args:
        container: The init container.
        asks: The GPUs of the pod's containers (``gpu_limits.asks``).
        requests: The names of the claim's requests, by container.
        copied: Whether the pod is a copy of another pod, so that its limits do not count.

    Raises:
        WordError: It requests a number of GPUs that neither one container nor the pod has.
    """
    amounts = gpu_limits.amounts(container)
    # A copy's init containers hold their share already; a limit here is a LimitRange's default.
    if copied and _lost(container, requests):
        return _user(container, next(iter(requests.values())), amounts.gpus)
    if not amounts.gpus:
        return None
    own_ask = 0 if copied else gpu_limits.asked(container.name, amounts)
    if not own_ask:
        return desired.Container(tuple(range(len(container.claims))), amounts.gpus)
    lender = gpu_limits.lender(container.name, own_ask, asks)
    return _user(container, (None,) if lender is None else requests[lender], amounts.gpus)


def _lost(container: pod_view.Container, requests: Requests) -> bool:
    """Return whether an init container refers to requests that the pod's new claim does not have.

    The kubelet would not start this container. This happens in a copy of a pod if one of the two shares a claim and the
    other does not: then the requests have other names.

    Args:
        container: The init container.
        requests: The names of the new claim's requests, by container.
    """
    known = {name for own in requests.values() for name in own}
    mine = (used.request for used in container.claims if used.name == names.POD_CLAIM)
    return bool(known) and any(request and request not in known for request in mine)
