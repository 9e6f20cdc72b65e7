"""Checks pods in a queue of Kueue: each GPU that they request must count for Kueue's quota.

Kueue counts only limits. Kueue admits a Job by the limits in its pod template, before a pod exists. It admits a plain
pod only after the webhook has replaced the pod's limits by a claim's name. But Kueue never admits a pod that names
claims (0.19: the Workload is Inadmissible).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.pod.resolved import Resolved
from dradriver.api.vocabulary import values
from dradriver.topology.vendors import NVIDIA, VENDORS
from webhook import gpu_limits, pod_view, scheduler_placed

_PLAIN: Final = (
    f"{pod_view.QUEUE}: Kueue never admits a plain pod that uses a claim by name, as the driver's pods do. Create a "
    f"Job instead"
)
_OR_STATIC: Final = f", or write {names.PLACEMENT}: static and a required {names.POLICY}"
_COPIED: Final = (
    f"{names.REQUEST}: Kueue charges limits, and a copied pod with this annotation has none. Remove the annotation "
    f"and set the limit {names.GPU_RESOURCE} in each container."
)
_BY_WORD: Final = (names.GPUS, names.MIG_PROFILE, names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES)


def check_words(words: Mapping[str, str], *, limits: bool) -> None:
    """Raise if annotations request GPUs that no limit requests, because Kueue would not charge them.

    Args:
        words: The annotations.
        limits: Whether there are any limits on GPUs.

    Raises:
        WordError: Only an annotation requests GPUs.
    """
    resource = VENDORS.get(words.get(names.VENDOR, ""), NVIDIA).resources[0]
    for key in _BY_WORD:
        if key in words and not limits:
            count, instead_or_too = (
                (values.gpu_count(words[key]), "instead") if key == names.GPUS else (1, "in addition")
            )
            raise WordError(
                f"{key}: Kueue charges limits, so it would charge nothing for this pod. Write the limit {resource}: "
                f"{count or '<count>'} {instead_or_too}."
            )


def check(pod: pod_view.Pod) -> None:
    """Raise if Kueue manages a pod but would not count the pod's GPUs for its quota.

    Raises:
        WordError: Only an annotation requests GPUs.
    """
    if pod.queued:
        every = (*pod.app_containers, *pod.init_containers)
        check_words(pod.words, limits=any(gpu_limits.asked(c.name, gpu_limits.amounts(c)) for c in every))


def check_copy(pod: pod_view.Pod) -> None:
    """Raise if the author of a pod in Kueue's queue sent a request note.

    This note is an annotation with the resolved request; only the webhook should write it.

    The note requests GPUs that no limit requests, so Kueue would not charge them. A copy of a placed pod has lost its
    limits, and anyone can invent a note. If this webhook wrote the note in an earlier call for the same pod, nothing is
    raised.

    Raises:
        WordError: The author sent the note.
    """
    if pod.note_sent:
        raise WordError(_COPIED)


def advice(pod: pod_view.Pod, found: Resolved) -> list[str]:
    """Return a warning for a single pod that its author put into Kueue's queue.

    Kueue never admits a pod like this, because the pod names a claim. There is no warning if only the scheduler places
    the pod (``static``): then the pod refers to a template and not to a claim. ``found`` is the pod's resolved request.
    """
    if not pod.queued_alone or scheduler_placed.is_static(found):
        return []
    return [_PLAIN + (_OR_STATIC if current_ledger() is OURS else "") + "."]
