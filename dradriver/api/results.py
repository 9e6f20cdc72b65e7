"""What was chosen, as annotations on the pod."""

from __future__ import annotations

from dradriver.allocator.request import Choice
from dradriver.api import names
from dradriver.topology.machine import Machine


def written(choice: Choice, machine: Machine) -> dict[str, str | None]:
    """Return the annotations that tell a pod's author what the pod got; None for those to take away."""
    uuids = uuid_of(machine)
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


def uuid_of(machine: Machine) -> dict[int, str]:
    """Return each GPU's uuid by the machine's own number."""
    return {gpu.index: gpu.uuid for gpu in machine.gpus}


def gbps(value: float) -> str:
    """Return a bandwidth in the form that ``min-bandwidth`` is written in: ``47.5GB/s``."""
    return f"{value:.1f}".removesuffix(".0") + "GB/s"
