"""UPDATE of a pod by any user but the controller: the fields that the driver wrote are copied from the live pod.

The *live* pod is the pod as the API server has stored it. A user can apply the manifest of a pod again. The manifest
still has the limits that the webhook removed, and lacks the fields that the driver added. Kubernetes does not let these
fields change, so without this module the API server would refuse every such update.

Annotations that changed are read as on creation, and have an effect while the pod waits for its place. An annotation
that was bad before, and does not change, is not refused: it must be possible to remove the finalizers of an object that
an older release accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dradriver.api.base import affinity, names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import container_limits, values, vendor_words
from dradriver.api.vocabulary.container_requests import request_names
from webhook import (
    addon,
    bounds,
    create,
    desired,
    effects,
    gang,
    gpu_limits,
    pod_groups,
    pod_view,
    scheduler_placed,
    template_reference,
)
from webhook.gpu_limits import Asks

_KEPT: Final = (
    f"spec.affinity.nodeAffinity.{affinity.REQUIRED}: the old value stays, because it cannot change after the pod is "
    f"placed."
)
_TOO_LATE: Final = f"{names.PREFIX} annotations have an effect until the pod is placed. This change has none."
_PARTS: Final = (names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES, names.MIG_PROFILE)
_AGAIN: Final = "Delete the pod and create it again."
_OTHER_PART: Final = f"{', '.join(_PARTS)}: a pod's fraction of a GPU cannot change. {_AGAIN}"
_OTHER_CLAIM: Final = f"{names.CLAIM}: a pod's claim cannot change. {_AGAIN}"
_OTHER_SET: Final = f"{names.SHARED_CLAIM}: a pod's claim cannot change. {_AGAIN}"
_OTHER_PLACEMENT: Final = f"{names.PLACEMENT}: a pod that waits for the controller cannot be handed over. {_AGAIN}"
_OTHER_REQUESTS: Final = f"The number of MIG slices of a pod's containers cannot change. {_AGAIN}"
_OTHER_VENDOR: Final = f"{names.VENDOR}: a pod's vendor cannot change. {_AGAIN}"
_NO_LONGER: Final = f"{names.MAX_DURATION}: the time of a pod cannot be extended. {_AGAIN}"
_NO_NOTE: Final = f"{names.REQUEST} is missing, so the {names.PREFIX} annotations cannot change. {_AGAIN}"


def update(pod: pod_view.Pod, live: pod_view.Pod, policies: Policies) -> tuple[desired.Desired | None, list[str]]:
    """Return the desired fields of an updated pod, and warnings.

    The first value is None if the pod is not for this driver.

    Args:
        pod: The pod as sent.
        live: The pod as stored.
        policies: The policies in force.

    Raises:
        WordError: An annotation that was added or changed is unknown or bad, or a field grew beyond its bound. Or the
            driver's label was added to a pod that did not have it.
    """
    sent, was_sent = Annotations(pod.words, policies), Annotations(live.words, policies)
    # Without one of these labels, this driver did not admit the pod: it has no claim and no gate of ours.
    if live.label not in (names.LABEL_PLACED, names.LABEL_STATIC):
        if pod.label != live.label:
            raise WordError(f"The label {names.LABEL} is set only when a pod is created. Remove it.")
        return None, _read_too_late(sent, was_sent)
    bounds.check(pod, live)
    # The note is the annotation with the resolved request; None if the live pod has none.
    note, warnings = _note(live, sent, was_sent)
    required_affinity, affinity_warnings = _affinity(pod, live)
    deadline_s, deadline_warnings = _deadline(pod, live, sent, was_sent)
    spec, live_spec = pod.spec, live.spec
    return (
        desired.Desired(
            label=live.label,
            written=live.written if note is None else live.written | {names.REQUEST: note},
            containers=_containers(pod.containers, live.containers),
            init_containers=_containers(pod.init_containers, live.init_containers),
            # The author's entries as sent, and the driver's entry as the live pod has it.
            claims=desired.as_in(live_spec.resource_claims or (), spec.resource_claims or (), live.own_entry),
            gates=desired.as_in(live_spec.scheduling_gates or (), spec.scheduling_gates or (), names.GATE),
            node_name=live_spec.node_name,
            scheduler_name=live_spec.scheduler_name,
            deadline_s=deadline_s,
            required=required_affinity,
            leaves_group=pod_groups.leaves_at_update(pod, live),
        ),
        warnings + affinity_warnings + deadline_warnings,
    )


def _note(live: pod_view.Pod, sent: Annotations, was_sent: Annotations) -> tuple[str | None, list[str]]:
    """Return the text of the note with the pod's resolved request, and warnings.

    The note is an annotation for the controller. The text is made again if annotations changed while the pod is gated,
    or if the live pod's note cannot be read. Otherwise the text stays unchanged. None if the live pod has no note and
    none can be made.

    Args:
        live: The pod as stored.
        sent: The annotations as sent.
        was_sent: The annotations of the stored pod.

    Raises:
        WordError: An annotation that was added or changed is bad.
    """
    # ``asks``: the GPUs that the live pod's containers ask for; None if nothing says it any more.
    # ``former_request``: the live pod's note as it was read; None if it is missing or cannot be read.
    note = live.written.get(names.REQUEST)
    asks, former_request = _asks(live)
    texts, old_texts = sent.texts, was_sent.texts
    is_unchanged = texts == old_texts

    # 1. Nothing to do, or too late. A new note is made only if it is known what the containers ask for. Changed
    #    annotations also need the pod's gate: without it, the pod has its place. If a gated pod's changes do nothing,
    #    the reason is that its note is missing.
    if is_unchanged and former_request is not None:
        return note, []
    if texts.get(names.SHARED_CLAIM) != old_texts.get(names.SHARED_CLAIM):
        raise WordError(_OTHER_SET)
    if asks is None or not (live.gated or is_unchanged):
        too_late = _read_too_late(sent, was_sent)
        return note, [_NO_NOTE] if too_late and live.gated else too_late

    # 2. A new note, within what cannot change: the claim's form is fixed when the pod is created.
    try:
        has_other_part = any(texts.get(key) != old_texts.get(key) for key in _PARTS)
        if has_other_part and _has_parts(asks):
            raise WordError(_OTHER_PART)
        if texts.get(names.CLAIM) != old_texts.get(names.CLAIM):
            raise WordError(_OTHER_CLAIM)
        new, warnings = _read(sent, live, asks, former_request)
        # Requests of the claim by container: the pod's containers refer to them by name, and cannot be changed.
        if request_names(new.asked) != request_names(asks):
            raise WordError(_OTHER_REQUESTS)
        if former_request is not None and new.request.vendor != former_request.request.vendor:
            raise WordError(_OTHER_VENDOR)
        return resolved.write(new), warnings
    except WordError as error:
        # Unchanged annotations without a readable note are of an earlier release. They must not block the update.
        if is_unchanged:
            return note, []
        # An error that the old annotations have, too, becomes a warning. A new one is raised.
        _refuse_what_is_new(error, sent, was_sent, lambda annotations: _read(annotations, live, asks, former_request))
        return note, [f"This change of {names.PREFIX} annotations has no effect: {error}"]


def _read(
    annotations: Annotations, live: pod_view.Pod, asks: Asks, former_request: Resolved | None
) -> tuple[Resolved, list[str]]:
    """Return the resolved request of a pod that waits for the controller, and warnings.

    Args:
        annotations: The annotations, as sent or of the stored pod.
        live: The pod as stored.
        asks: The GPUs that its containers request.
        former_request: The resolved request that an annotation of the stored pod notes; None if it cannot be read.

    Raises:
        WordError: An annotation is bad, or requests something that a pod can get only when it is created.
    """
    # What the limits named when the pod was created. The webhook removed the limits then.
    product = "" if former_request is None else former_request.product or ""
    vendor = "" if former_request is None else former_request.vendor or ""
    resolved_request = resolved.resolve(annotations, asks, product=product, vendor=vendor)
    policies, by_template = annotations.policies, live.template is not None
    warnings = addon.check(resolved_request, by_template=by_template)
    warnings += gang.check(live, resolved_request, policies)
    warnings += template_reference.advice(live, resolved_request, live.template)
    if scheduler_placed.is_static(resolved_request):  # a pod that waits for the controller cannot become one
        raise WordError(_OTHER_PLACEMENT)
    if by_template:
        template_reference.check(resolved_request, annotations)
    else:
        scheduler_placed.check(resolved_request, policies)
        warnings += scheduler_placed.advice(resolved_request)
        warnings += filter(None, [vendor_words.count_warning(resolved_request.request)])
    warnings += effects.warnings(
        annotations, resolved_request, by_template=by_template, product=product, vendor=vendor,
        limits=product != "", deadline_s=None,
    )  # fmt: skip
    return resolved_request, warnings


def _has_parts(asks: Asks) -> bool:
    return any(not isinstance(one, int) for one in asks.values())


def _asks(live: pod_view.Pod) -> tuple[Asks | None, Resolved | None]:
    """Return the GPUs that the live pod's containers request, and its resolved request.

    The second value is read from the note on the pod, an annotation of the driver. The first value is taken from the
    second if possible. Each is None if it is not known. The webhook removed the GPU limits when the pod was created, so
    the note is the only complete source. If the note cannot be read, three conditions must hold for the GPUs to be
    known: a single container uses the pod's claim, an annotation has the number of GPUs, and Kueue does not manage the
    pod.
    """
    try:
        note = resolved.read(live.written)
        return note.asked, note
    except WordError:
        pass
    users = [c.name for c in live.app_containers if pod_view.UsedClaim(names.POD_CLAIM, c.name) in c.claims]
    # The annotation of a queued pod does not count: the queue charged the limits, which are gone.
    count = None if live.queued else values.gpu_count(live.words.get(names.GPUS, ""))
    return ({users[0]: count} if count is not None and len(users) == 1 else None), None


def _read_too_late(sent: Annotations, was_sent: Annotations) -> list[str]:
    """Return a warning if annotations changed too late for the driver to read them.

    Too late means after the pod got its place. The result is empty if no annotation changed. ``sent`` are the
    annotations as sent, ``was_sent`` those of the stored pod.

    Raises:
        WordError: An annotation that was added or changed is bad.
    """
    if sent.texts == was_sent.texts:
        return []
    try:
        sent.check()
    except WordError as error:
        _refuse_what_is_new(error, sent, was_sent, Annotations.check)
    return [_TOO_LATE]


def _refuse_what_is_new(
    error: WordError, sent: Annotations, was_sent: Annotations, read: Callable[[Annotations], object]
) -> None:
    """Raise an error about the sent annotations, unless the stored pod's annotations were wrong already.

    In that case only the added and changed annotations must be right.

    Args:
        error: The error in the annotations as sent.
        sent: The annotations as sent.
        was_sent: The annotations of the stored pod.
        read: Reads all annotations; raises WordError if something is wrong.

    Raises:
        WordError: ``error``, or an error in the added and changed annotations.
    """
    try:
        read(was_sent)
    except WordError:
        # The old annotations are as bad, so this change is not the cause. Check what it added by itself.
        changed = {key: value for key, value in sent.texts.items() if was_sent.texts.get(key) != value}
        Annotations(changed, sent.policies).check()
    else:
        raise error


def _deadline(
    pod: pod_view.Pod, live: pod_view.Pod, sent: Annotations, was_sent: Annotations
) -> tuple[int | None, list[str]]:
    """Return the ``activeDeadlineSeconds`` that the updated pod must have, and warnings.

    The deadline is the earliest of those in the sent and in the live pod, because Kubernetes only allows to lower it
    (ValidatePodUpdate). If the annotations of a gated pod changed, ``max-duration`` of ``sent`` counts, too. A
    ``max-duration`` that was removed, or that is later than the deadline, gets a warning. The first value is None if
    there is no deadline. ``sent`` are the annotations as sent, ``was_sent`` those of the live pod.
    """
    bound_s = desired.ended_after(pod.spec.active_deadline_seconds, live.spec.active_deadline_seconds)
    if sent.texts == was_sent.texts or not live.gated:
        return bound_s, []
    try:
        longest_s, was_s = sent.max_duration_s, was_sent.max_duration_s
    except WordError:
        return bound_s, []  # what is new of it is refused with the other words
    earlier_s = desired.ended_after(bound_s, longest_s)
    later = longest_s != was_s and bound_s is not None and (longest_s is None or longest_s > bound_s)
    return earlier_s, [_NO_LONGER] if later else []


def _affinity(pod: pod_view.Pod, live: pod_view.Pod) -> tuple[Any, list[str]]:
    if not affinity.is_narrowed(live.written, pod_view.selector(live.spec)):
        return create.authors_affinity(pod), []  # the manifest may be a copy of a placed pod, while the live one waits
    sent, was = pod_view.required(pod.spec), pod_view.required(live.spec)
    if pod_view.same(sent, was) or (selector := pod_view.selector(pod.spec)) == pod_view.selector(live.spec):
        return desired.AS_SENT, []
    wish = None if pod_view.same(was, pod_view.ABSENT) else was
    try:
        authors = selector is None or selector == affinity.authors(live.written)
    except WordError:
        authors = False
    return wish, [] if authors else [_KEPT]


def _containers(
    sent: Sequence[pod_view.Container], live: Sequence[pod_view.Container]
) -> tuple[desired.Container | None, ...]:
    if len(sent) > bounds.CONTAINERS:
        return (None,) * len(sent)  # an old object beyond all bounds, which only has to stay deletable
    by_name = {container.name: container for container in live}
    return tuple(_container(container, by_name.get(container.name)) for container in sent)


def _container(sent: pod_view.Container, live: pod_view.Container | None) -> desired.Container | None:
    now, was = sent.resources or pod_view.Resources(), (live and live.resources) or pod_view.Resources()
    claims = desired.as_in(was.claims or (), now.claims or (), names.POD_CLAIM)
    stripped: tuple[tuple[str, ...], ...]
    if pod_view.same(now.limits, was.limits) and pod_view.same(now.requests, was.requests):
        stripped = ()
    else:
        kept = any(map(container_limits.is_ours, pod_view.quantities(was.limits)))
        stripped = () if kept else gpu_limits.amounts(sent).gpus
    return desired.Container(claims, stripped)
