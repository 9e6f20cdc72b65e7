"""Warns of annotations that have no effect on their pod, with the reason.

There is no warning for an annotation that repeats a default (``nccl: auto``). There is also none if the reason is not
in the pod: the webhook does not know the nodes (``spot`` without spot nodes) and the chart's options (``idle-timeout``
if it is off).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from dradriver.allocator.request import Strategy, Whole
from dradriver.api.base import names
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.workload_words import SpelledOut
from dradriver.api.vocabulary import annotation_words, values
from dradriver.api.vocabulary.annotation_words import About
from dradriver.topology.vendors import AMD, NVIDIA, VENDORS


class _About(NamedTuple):
    """The facts about a pod that decide whether an annotation has an effect.

    Attributes:
        wish: The resolved request of its annotations.
        by_template: Whether a claim template says how many GPUs the pod has.
        product: The GPU product that its limits name; empty for none.
        vendor: The GPU vendor of its limits; empty without GPU limits.
        limits: Whether limits say how many GPUs it has.
        deadline_s: ``activeDeadlineSeconds`` in its spec; None without one.
        longest_s: For how many seconds the pod may run, by annotation, policy and spec; None for no limit.
    """

    wish: Resolved
    by_template: bool
    product: str
    vendor: str
    limits: bool
    deadline_s: int | None
    longest_s: int | None = None

    @property
    def static(self) -> bool:
        return self.wish.placement == values.STATIC

    @property
    def in_gang(self) -> bool:
        return self.wish.gang is not msgspec.UNSET and self.wish.gang.asked


_STATIC: Final = f"on a pod with {names.PLACEMENT}: {values.STATIC}."
_DEFAULTS: Final = {  # what is so where nothing is said
    **{key: choices[0] for key, choices in annotation_words.ASIDE.items()},
    names.STRATEGY: Strategy.BEST_FIT.value,
    names.VENDOR: NVIDIA.word,
    names.REQUIRE_NVLINK: "false",
    names.PREFER_SAME_NUMA: "false",
}


def _of_set(pod: _About, text: str) -> str:
    request = pod.wish.request
    alone = isinstance(request, Whole) and request.gpus == 1 and not pod.by_template and not pod.in_gang
    return "on a pod with one GPU, because it is about sets of GPUs." if alone else _of_whole(pod, text)


def _of_gang(pod: _About, _: str) -> str:
    return "" if pod.in_gang else f"on a pod without a gang. Write {names.GANG}, or remove it."


def _not_static(pod: _About, _: str) -> str:
    return _STATIC if pod.static else ""


def _idle(pod: _About, _: str) -> str:
    if pod.wish.shared is not msgspec.UNSET:
        return f"on a pod with {names.SHARED_CLAIM}, because other pods may still use the GPUs."
    return _not_static(pod, "")


def _count(pod: _About, _: str) -> str:
    return "because the containers' limits give the number of GPUs." if pod.limits else ""


def _product(pod: _About, text: str) -> str:
    return "because the containers' limits name the same product." if pod.product and pod.product == text else ""


def _vendor(pod: _About, text: str) -> str:
    return "because the containers' limits name the same vendor." if pod.vendor == text else ""


def _nccl(pod: _About, text: str) -> str:
    vendor = VENDORS[pod.wish.request.vendor]
    told = vendor is NVIDIA or (vendor is AMD and text == values.NEAR_NICS)  # RCCL reads NCCL_IB_HCA, too
    return "" if told else f"on GPUs of {vendor.word}, because the driver does not configure {vendor.library}."


def _duration(pod: _About, _: str) -> str:
    earlier = pod.deadline_s is not None and pod.longest_s is not None and pod.deadline_s <= pod.longest_s
    return f"because spec.activeDeadlineSeconds ({pod.deadline_s} s) ends the pod earlier." if earlier else ""


def _of_whole(pod: _About, _: str) -> str:
    return (
        "" if isinstance(pod.wish.request, Whole) else "on a fraction of a GPU, because it is about sets of whole GPUs."
    )


def _near_nic(pod: _About, text: str) -> str:
    return _STATIC if pod.static else _of_whole(pod, text)


_Rule = Callable[[_About, str], str]
"""Gives why a word with this text has no effect; empty where it has one."""

# A single GPU has these levels or not: one without NVLinks is none that nvlink takes. Beside a part they are refused;
# only names may bring them there.
_LEVELS: Final = (names.REQUIRED, names.REQUIRE_NVLINK, names.PREFERRED)
_RULES: Final[dict[str, _Rule]] = {
    **{word.key: _of_set for word in annotation_words.EVERY if word.about is About.SET and word.key != names.POLICY},
    **dict.fromkeys(_LEVELS, _of_whole),
    **{word.key: _of_gang for word in annotation_words.EVERY if word.about is About.GANG},
    names.NEAR_NIC: _near_nic,
    names.STRATEGY: _not_static,
    names.WHEN_FULL: _not_static,
    names.SPOT: _not_static,
    names.IDLE_TIMEOUT: _idle,
    names.GPUS: _count,
    names.PRODUCT: _product,
    names.VENDOR: _vendor,
    names.NCCL: _nccl,
    names.MAX_DURATION: _duration,
}
del _RULES[names.GANG], _RULES[names.GANG_SIZE]  # by them it is one
ALWAYS: Final = frozenset(
    (
        names.ARCHITECTURE, names.MIN_MEMORY, names.MIN_DRIVER, names.MIN_CUDA, names.SHARE, names.SHARE_MEMORY,
        names.SHARE_CORES, names.MIG_PROFILE, names.CLAIM, names.PLACEMENT, names.SHARED_CLAIM, names.GANG,
        names.GANG_SIZE, *_LEVELS,
    )
)  # fmt: skip
"""Words that have an effect on whatever pod is admitted with them."""
NAMES: Final = (names.POLICY, names.WORKLOAD)
"""Words that stand for others: they have none where none of these has any, or all of them stand elsewhere, too."""


def warnings(
    annotations: Annotations,
    wish: Resolved,
    *,
    by_template: bool,
    product: str,
    vendor: str = "",
    limits: bool,
    deadline_s: int | None,
) -> list[str]:
    """Return a warning for each annotation without effect, in the order of the annotations.

    Args:
        annotations: The pod's annotations.
        wish: The resolved request of the annotations.
        by_template: Whether a claim template says how many GPUs the pod has.
        product: GPU product of the pod's limits; empty for none.
        vendor: GPU vendor of the pod's limits; empty for none.
        limits: Whether the pod's limits say how many GPUs it has.
        deadline_s: ``activeDeadlineSeconds`` of the pod; None without one.

    Raises:
        WordError: An annotation cannot be read.
    """
    pod = _About(wish, by_template, product, vendor, limits, deadline_s, annotations.max_duration_s)
    warnings_found = []
    for key, text in annotations.said.items():  # as the author wrote them, without what a policy adds
        # The annotations ``policy`` and ``workload`` have names that stand for other annotations (``spelled_out``).
        why = (
            _why_name_without_effect(key, annotations.spelled_out, pod)
            if key in NAMES
            else _why_without_effect(key, text, pod)
        )
        if why:
            warnings_found.append(f"{key} has no effect {why}")
    return warnings_found


def _why_without_effect(key: str, text: str, pod: _About) -> str:
    if _DEFAULTS.get(key) == text or key not in _RULES:
        return ""
    return _RULES[key](pod, text)


def _why_name_without_effect(key: str, spelled_out: SpelledOut, pod: _About) -> str:
    """Return why the annotation ``policy`` or ``workload`` has no effect on a pod.

    Empty if the annotation has an effect, or if its value stands for no annotations.

    Args:
        key: Which of the two annotations.
        spelled_out: The pod's annotations, and those that ``policy`` and ``workload`` stand for.
        pod: The facts about the pod.
    """
    is_policy = key == names.POLICY
    if not (spelled_out.by_policy if is_policy else spelled_out.by_workload):
        return ""
    # A policy stands above a workload, which may say the same in vain: ask with the workload and without it.
    reasons: list[str] = []
    for workload in (True, False) if is_policy else (True,):
        meant = spelled_out.texts(workload=workload)
        without = spelled_out.texts(policy=not is_policy, workload=workload and is_policy)
        if without.keys() - meant.keys():
            return ""  # without it a workload would say more
        brought = {word: text for word, text in meant.items() if not _same(word, text, without.get(word))}
        reasons = [_why_without_effect(word, text, pod) for word, text in brought.items()]
        if not all(reasons):
            return ""
    return reasons[0] if reasons else "because the pod's other annotations override it or say the same."


def _same(key: str, text: str, other: str | None) -> bool:
    """Return whether the texts ``text`` and ``other`` of an annotation mean the same.

    In ``required`` the order of the properties does not matter.
    """
    if other is None or text == other:
        return text == other
    one, two = (annotation_words.BY_KEY[key].read(key, each) for each in (text, other))
    return bool(set(one) == set(two) if key == names.REQUIRED else one == two)
