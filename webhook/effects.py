"""Warns of annotations that have no effect on their pod, with the reason.

There is no warning for an annotation that repeats a default (``nccl: auto``). The webhook does not know whether nodes
or the chart's options leave an annotation without effect (``spot`` without spot nodes, ``idle-timeout`` if it is off).
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
    """What is known of the pod.

    Attributes:
        wish: What its words come to.
        by_template: Whether a claim's template says how many GPUs it has.
        product: The product that its limits name; empty for none.
        vendor: Whose GPUs its limits ask for; empty for none.
        limits: Whether limits say how many GPUs it has.
        deadline_s: The deadline of its spec; None without one.
        longest_s: For how long it may run; None for any time.
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


_STATIC: Final = f"on a pod of {names.PLACEMENT}: {values.STATIC}"
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
    return "on a pod with one GPU: it is about sets of several" if alone else _of_whole(pod, text)


def _of_gang(pod: _About, _: str) -> str:
    return "" if pod.in_gang else f"on a pod of no gang: write {names.GANG}, or remove it"


def _not_static(pod: _About, _: str) -> str:
    return _STATIC if pod.static else ""


def _idle(pod: _About, _: str) -> str:
    if pod.wish.shared is not msgspec.UNSET:
        return f"on a pod of {names.SHARED_CLAIM}: nobody is ended while others may work on its GPUs"
    return _not_static(pod, "")


def _count(pod: _About, _: str) -> str:
    return "where the containers' limits say how many GPUs there are" if pod.limits else ""


def _product(pod: _About, text: str) -> str:
    return "where the containers' limits name the same product" if pod.product and pod.product == text else ""


def _vendor(pod: _About, text: str) -> str:
    return "where the containers' limits say the same" if pod.vendor == text else ""


def _nccl(pod: _About, text: str) -> str:
    vendor = VENDORS[pod.wish.request.vendor]
    told = vendor is NVIDIA or (vendor is AMD and text == values.NEAR_NICS)  # RCCL reads NCCL_IB_HCA, too
    return "" if told else f"on GPUs of {vendor.word}: jobs bring {vendor.library}, which is told nothing"


def _duration(pod: _About, _: str) -> str:
    earlier = pod.deadline_s is not None and pod.longest_s is not None and pod.deadline_s <= pod.longest_s
    return f"where spec.activeDeadlineSeconds, {pod.deadline_s}, ends the pod before" if earlier else ""


def _of_whole(pod: _About, _: str) -> str:
    return "" if isinstance(pod.wish.request, Whole) else "on a part of a GPU: it is about sets of whole GPUs"


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
        wish: The request that they make.
        by_template: Whether a claim template has the number of GPUs.
        product: GPU product of the pod's limits; empty for none.
        vendor: GPU vendor of the pod's limits; empty for none.
        limits: Whether limits have the number of GPUs.
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
            warnings_found.append(f"{key}: without effect {why}")
    return warnings_found


def _why_without_effect(key: str, text: str, pod: _About) -> str:
    if _DEFAULTS.get(key) == text or key not in _RULES:
        return ""
    return _RULES[key](pod, text)


def _why_name_without_effect(key: str, spelled_out: SpelledOut, pod: _About) -> str:
    """Return why a policy's or workload's name has no effect; empty where it has one, or asks for nothing."""
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
    return reasons[0] if reasons else "beside the pod's other words, which stand above it or say the same"


def _same(key: str, text: str, other: str | None) -> bool:
    """Return whether two texts of a word come to the same; what is required may stand there twice."""
    if other is None or text == other:
        return text == other
    one, two = (annotation_words.BY_KEY[key].read(key, each) for each in (text, other))
    return bool(set(one) == set(two) if key == names.REQUIRED else one == two)
