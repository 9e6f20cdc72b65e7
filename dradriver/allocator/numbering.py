"""Between a machine's own GPU numbers and positions, which are bits of masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dradriver.errors import DriverError
from dradriver.topology.machine import Machine


class UnknownGpuError(DriverError):
    """A GPU number that the machine does not have."""

    reason = "UnknownGpu"


def numbers_of(machine: Machine) -> frozenset[int]:
    """The machine's own numbers of all its GPUs."""
    return frozenset(gpu.index for gpu in machine.gpus)


def numbers(machine: Machine, places: Iterable[int]) -> tuple[int, ...]:
    """The machine's own numbers of some positions, in the order given."""
    return tuple(machine.gpus[place].index for place in places)


def mask_of_gpus(machine: Machine, gpus: Collection[int]) -> int:
    """The mask of some of the machine's GPU numbers.

    Raises:
        UnknownGpuError: A number that the machine does not have.
    """
    places = {gpu.index: place for place, gpu in enumerate(machine.gpus)}
    unknown = sorted(set(gpus) - places.keys())
    if unknown:
        raise UnknownGpuError(
            f"machine {machine.name!r} has no GPU {listed(unknown)}; it has {listed(places) or 'none'}"
        )
    return sum(1 << places[index] for index in set(gpus))


def listed(gpus: Iterable[int]) -> str:
    """``0, 1, 4``."""
    return ", ".join(map(str, gpus))
