"""The annotations that show on a pod what it got: its GPUs or fraction, the kind of links, the bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.allocator.request import Choice, Part, PartChoice, SharePart
from dradriver.api.base import names

# `IDLE_END` is not among them: it says what happens to the pod later.
_CHOSEN: Final = tuple(name for name in (*names.RESULTS, *names.FORMER_RESULTS) if name != names.IDLE_END)


def written(choice: Choice | PartChoice, uuids: Mapping[int, str]) -> dict[str, str | None]:
    """Return the annotations that show a pod's author the chosen GPUs; None removes an annotation.

    The full choice is in the claim's annotation ``names.CHOICE``.

    Args:
        choice: The chosen GPUs or fractions.
        uuids: The uuid of each chosen GPU, by the GPU's number on its machine.
    """
    if isinstance(choice, PartChoice):
        parts = [part for parts in choice.containers for part in parts]
        # None removes an annotation that an earlier place of the pod had.
        return dict.fromkeys(_CHOSEN) | {
            names.ALLOCATED: ",".join(uuids[part.gpu] for part in parts),
            names.PART: ",".join(map(described, parts)),
        }
    # A single GPU has no peer, so no bandwidth. The links' rate is written only if NCCL's bandwidth is not predicted.
    busbw_gbps, bandwidth_gbps = (0.0, 0.0) if len(choice.gpus) == 1 else (choice.busbw_gbps, choice.bandwidth_gbps)
    return {
        **dict.fromkeys(names.FORMER_RESULTS),
        names.ALLOCATED: ",".join(uuids[index] for index in choice.gpus),
        names.RING_ORDER: ",".join(str(index) for index in choice.ring),
        names.BANDWIDTH: gbps(bandwidth_gbps) if bandwidth_gbps and not busbw_gbps else None,
        names.BUSBW: gbps(busbw_gbps) if busbw_gbps else None,
        names.LEVEL: choice.level.value,
        names.FALLBACK: ",".join(word.value for word in choice.fallback) or None,
        names.PART: None,
        names.REASON: None,
    }


def described(part: Part) -> str:
    """Return a fraction as a result annotation of a pod shows it: ``25%/20480Mi``, or ``1g.10gb@6`` with its start."""
    if isinstance(part, SharePart):
        return f"{part.amount.cores}%/{part.amount.memory_mib}Mi"
    return f"{part.profile}@{part.start}"


def gbps(value: float) -> str:
    """Return a bandwidth as a result annotation of a pod shows it: ``47.5GB/s``."""
    return f"{value:.1f}".removesuffix(".0") + "GB/s"
