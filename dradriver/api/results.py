"""What was chosen, as annotations on the pod."""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.allocator.request import Choice
from dradriver.api import names


def written(choice: Choice, uuids: Mapping[int, str]) -> dict[str, str | None]:
    """Return the annotations that tell a pod's author what the pod got; None for those to take away.

    Args:
        choice: What was chosen.
        uuids: The chosen GPUs' uuids by the machine's own number.
    """
    alone = len(choice.gpus) == 1  # nobody to talk to
    return {
        names.ALLOCATED: ",".join(uuids[index] for index in choice.gpus),
        names.RING_ORDER: ",".join(str(index) for index in choice.ring),
        names.BANDWIDTH: None if alone else gbps(choice.bandwidth_gbps),
        names.BUSBW: None if alone else gbps(choice.busbw_gbps),
        names.LEVEL: choice.level.value,
        names.SCORE: str(choice.score),
        names.FALLBACK: ",".join(word.value for word in choice.fallback) or None,
        names.NODE: choice.node,
        names.REASON: None,
    }


def gbps(value: float) -> str:
    """Return a bandwidth in the form that ``min-bandwidth`` is written in: ``47.5GB/s``."""
    return f"{value:.1f}".removesuffix(".0") + "GB/s"
