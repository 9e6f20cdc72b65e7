"""What concerns all GPUs of a node alike."""

from __future__ import annotations

from dradriver.node.health.faults import Fault
from dradriver.topology.machine import Machine


def of_all(machine: Machine | None, said: str | None) -> dict[str, tuple[Fault, ...]]:
    """Return the fault ``driver`` of every GPU; none where nothing is said.

    Args:
        machine: The machine as it was last read.
        said: What keeps it from being read; None while it can be.
    """
    if machine is None or said is None:
        return {}
    return {gpu.uuid: (Fault("driver", "", said),) for gpu in machine.gpus}
