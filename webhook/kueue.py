"""Pods in a queue of Kueue's: what it charges, it must have seen, and it sees limits.

Kueue admits a Job by the limits in its pod template, before there is a pod; a plain pod it admits after the driver has
given it a claim's name, and pods whose claims have names it admits never (0.19: the Workload is Inadmissible).
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
    f"{pod_view.QUEUE}: Kueue admits no plain pod whose claim has a name, as the driver's have: make it a Job"
)
_OR_STATIC: Final = f", or write {names.PLACEMENT}: static and a hard {names.POLICY}"
_COPIED: Final = (
    f"{names.REQUEST}: of a pod that was copied with it Kueue charges nothing, for it charges limits; remove this "
    f"annotation and give each container its limit {names.GPU_RESOURCE}"
)
_BY_WORD: Final = (names.GPUS, names.MIG_PROFILE, names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES)


def check_words(words: Mapping[str, str], *, limits: bool) -> None:
    """Raise unless the GPUs that words ask for stand in limits, too, which Kueue charges.

    Args:
        words: The annotations.
        limits: Whether there are any limits on GPUs.

    Raises:
        WordError: An annotation alone says that there are GPUs.
    """
    resource = VENDORS.get(words.get(names.VENDOR, ""), NVIDIA).resources[0]
    for key in _BY_WORD:
        if key in words and not limits:
            count, where = (values.gpu_count(words[key]), "instead") if key == names.GPUS else (1, "beside it")
            raise WordError(
                f"{key}: Kueue charges limits, and would charge nothing; write the limit {resource}: "
                f"{count or '<count>'} {where}"
            )


def check(pod: pod_view.Pod) -> None:
    """Raise unless Kueue would charge what a pod in a queue asks for; a pod outside queues passes.

    Raises:
        WordError: An annotation alone says that it has GPUs.
    """
    if pod.queued:
        every = (*pod.app_containers, *pod.init_containers)
        check_words(pod.words, limits=any(gpu_limits.asked(c.name, gpu_limits.amounts(c)) for c in every))


def check_copy(pod: pod_view.Pod) -> None:
    """Raise unless the note of a pod in a queue of Kueue is this webhook's own.

    It is of an earlier pass over the same pod then.

    Any other asks for GPUs that stand in no limit: a copy of a placed pod lost its limits, and notes can be made up.

    Raises:
        WordError: Its author sent the note.
    """
    if pod.note_sent:
        raise WordError(_COPIED)


def advice(pod: pod_view.Pod, found: Resolved) -> list[str]:
    """Return a warning of a pod that Kueue will never admit."""
    if not pod.queued_alone or scheduler_placed.is_static(found):
        return []
    return [_PLAIN + (_OR_STATIC if current_ledger() is OURS else "")]
