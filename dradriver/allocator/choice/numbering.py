"""Converts a machine's own GPU numbers to positions and back.

The position of a GPU is its index in ``Machine.gpus``. In a bit mask, bit ``i`` stands for position ``i``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dradriver.errors import DriverError
from dradriver.topology.machine import Machine


class UnknownGpuError(DriverError):
    """A request or argument names a GPU number that the machine does not have."""

    reason = "UnknownGpu"


def numbers(machine: Machine, positions: Iterable[int]) -> tuple[int, ...]:
    """Return the machine's own numbers of the GPUs at some positions, in the same order.

    The position of a GPU is its index in ``Machine.gpus``.
    """
    return tuple(machine.gpus[position].index for position in positions)


def mask_of_gpus(machine: Machine, gpus: Collection[int]) -> int:
    """Return the bit mask of the GPUs with these numbers.

    Bit ``i`` is the GPU at position ``i`` of the machine.

    Raises:
        UnknownGpuError: The machine does not have one of the numbers.
    """
    positions = {gpu.index: position for position, gpu in enumerate(machine.gpus)}
    unknown = sorted(set(gpus) - positions.keys())
    if unknown:
        raise UnknownGpuError(
            f"machine {machine.name!r} has no GPU {listed(unknown)}. Its GPUs: {listed(positions) or 'none'}"
        )
    return sum(1 << positions[index] for index in set(gpus))


def listed(gpus: Iterable[int]) -> str:
    """Return GPU numbers as text: ``0, 1, 4``."""
    return ", ".join(map(str, gpus))
