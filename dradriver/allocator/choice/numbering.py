"""The numbering of a machine's GPUs: from their numbers to positions, which are bits of masks, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dradriver.errors import DriverError
from dradriver.topology.machine import Machine


class UnknownGpuError(DriverError):
    """A GPU number that the machine does not have."""

    reason = "UnknownGpu"


def numbers(machine: Machine, positions: Iterable[int]) -> tuple[int, ...]:
    """Return the machine's own GPU numbers of some positions, in the order given."""
    return tuple(machine.gpus[position].index for position in positions)


def mask_of_gpus(machine: Machine, gpus: Collection[int]) -> int:
    """Return the mask of positions of some GPU numbers of a machine.

    Raises:
        UnknownGpuError: A number that the machine does not have.
    """
    positions = {gpu.index: position for position, gpu in enumerate(machine.gpus)}
    unknown = sorted(set(gpus) - positions.keys())
    if unknown:
        raise UnknownGpuError(
            f"machine {machine.name!r} has no GPU {listed(unknown)}; it has {listed(positions) or 'none'}"
        )
    return sum(1 << positions[index] for index in set(gpus))


def listed(gpus: Iterable[int]) -> str:
    """Return GPU numbers as text: ``0, 1, 4``."""
    return ", ".join(map(str, gpus))
