"""The choice on one machine: the best admissible set of free GPUs, and why there is none.

Order of the criteria: required constraints; the highest rung of the preferred ladder that a free set reaches;
predicted bus bandwidth; what stays for others (best set of 8, 4 and 2, then all disjoint sets of 4 and 2, of the
remaining GPUs); fewest NUMA nodes; nearest NICs; lowest numbers. A single GPU is taken where no pair breaks, before
all else. Same input, same answer, always.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np

from dradriver.allocator import rings
from dradriver.allocator.request import Choice, Constraint, NoPlaceError, Request
from dradriver.allocator.tables import Tables, of_machine
from dradriver.errors import DriverError
from dradriver.topology.machine import Machine

Constraints = frozenset[Constraint]

_SAME = 1 - 1e-5  # float32 values closer than this are equal


class UnknownGpuError(DriverError):
    """A GPU number that the machine does not have."""

    reason = "UnknownGpu"


def choose(
    machine: Machine,
    free: Collection[int],
    request: Request,
    *,
    exclude: Collection[frozenset[int]] = (),
) -> Choice:
    """The best set of the machine's free GPUs for the request.

    Args:
        machine: The machine, of up to 16 GPUs.
        free: Its own numbers (``Gpu.index``) of the GPUs that may be taken.
        request: What is wanted.
        exclude: Sets of GPU numbers that must not be the answer (pins that went stale).

    Raises:
        NoPlaceError: No free set fits; the message has the reason and the nearest thing that is possible.
        UnknownGpuError: ``free`` names a GPU that the machine does not have.
        MachineTooLargeError: More than 16 GPUs.
    """
    check(request)
    tables = of_machine(machine)
    free_mask = mask_of_gpus(machine, free)
    numbers = {gpu.index for gpu in machine.gpus}
    excluded = frozenset(mask_of_gpus(machine, gpus) for gpus in exclude if gpus <= numbers)
    for rung in rungs(request):
        found = pick(tables, free_mask, gpus=request.gpus, constraints=rung, exclude=excluded)
        if found is not None:
            return describe(machine, tables, found, request=request)
    raise NoPlaceError(_refusal(machine, tables, free_mask, request=request, excluded=bool(excluded)))


def check(request: Request) -> None:
    """Refuse a request that no machine could answer.

    Raises:
        NoPlaceError: No container, or one that asks for less than one GPU.
    """
    if not request.containers or min(request.containers) < 1:
        asked = ", ".join(map(str, request.containers)) or "none"
        raise NoPlaceError(f"GPUs per container: {asked}; ask for at least 1 GPU in each")


def rungs(request: Request) -> tuple[Constraints, ...]:
    """The constraint sets to try, best first: required with each preferred one, then required alone."""
    required = frozenset(request.required)
    ladder = [required | {wish} for wish in request.preferred]
    return tuple(dict.fromkeys((*ladder, required)))


@lru_cache(maxsize=65536)
def pick(
    tables: Tables,
    free: int,
    *,
    gpus: int,
    constraints: Constraints,
    exclude: frozenset[int] = frozenset(),
) -> int | None:
    """The mask of the best admissible set of ``gpus`` free positions, or None where there is none."""
    if gpus > free.bit_count():
        return None
    sets = tables.members(gpus)
    sets = sets[(sets & ~free == 0) & tables.allowed(constraints)[sets]]
    if exclude:
        sets = sets[~np.isin(sets, list(exclude))]
    if not sets.size:
        return None
    value = tables.busbw[sets]
    sets = sets[value >= value.max() * _SAME]
    lucky = tables.second_tree[sets]
    sets = sets[lucky] if lucky.any() else sets
    for kept in keep_order(gpus):
        left = tables.keep[kept, free ^ sets]
        sets = sets[left >= left.max() * _SAME]
    for cost in (tables.numa_nodes[sets], tables.nic_distance[sets]):
        if cost.size == sets.size:
            sets = sets[cost == cost.min()]
    return int(sets[0])


def keep_order(gpus: int) -> tuple[int, ...]:
    """Rows of ``Tables.keep``, first decides first: a single GPU must not break a pair, a set not an eight."""
    return (4, 3, 0, 1, 2) if gpus == 1 else (0, 1, 2, 3, 4)


def describe(machine: Machine, tables: Tables, mask: int, *, request: Request, node: str = "") -> Choice:
    """The choice that a set of positions is, in the machine's own GPU numbers."""
    busbw = float(tables.busbw[mask])
    best = float(tables.best(frozenset())[mask.bit_count(), tables.everything])
    parts = rings.split(tables, mask, request.containers)
    return Choice(
        gpus=numbers(machine, rings.positions(mask)),
        containers=tuple(numbers(machine, rings.rank_order(tables, part)) for part in parts),
        ring=numbers(machine, rings.best_ring(tables, mask)),
        busbw_gbps=round(busbw, 2),
        bandwidth_gbps=round(tables.bandwidth_gbps(mask), 2),
        level=tables.level(mask),
        score=int(100 * busbw / best + 1e-3) if best > 0 else 100,
        fallback=_missed(tables, mask, request.preferred),
        node=node,
    )


def _missed(tables: Tables, mask: int, preferred: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The rungs above the one that the set stands on: wished and not had."""
    return tuple(itertools.takewhile(lambda wish: not tables.allowed(frozenset((wish,)))[mask], preferred))


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


def wanted(gpus: int, constraints: Collection[Constraint]) -> str:
    """``4 GPUs with nvlink and same-numa``."""
    words = " and ".join(constraint.value for constraint in dict.fromkeys(constraints))
    return f"{gpus} GPU{'s' if gpus > 1 else ''}" + (f" with {words}" if words else "")


def listed(gpus: Iterable[int]) -> str:
    """``0, 1, 4``."""
    return ", ".join(map(str, gpus))


def _refusal(machine: Machine, tables: Tables, free: int, *, request: Request, excluded: bool) -> str:
    """Why nothing fits, and the nearest thing that does."""
    gpus, required = request.gpus, frozenset(request.required)
    what = wanted(gpus, request.required)
    if gpus > tables.size:
        return f"{what}: no; the machine has {tables.size}"
    count = free.bit_count()
    if gpus > count:
        which = f" ({listed(numbers(machine, rings.positions(free)))})" if count else ""
        return f"{what}: no; {count} of {tables.size} GPUs are free{which}"
    best = tables.best(required)
    if excluded and best[gpus, free] >= 0:
        return f"{what}: no; the sets that would fit are excluded"
    words = " and ".join(constraint.value for constraint in request.required)
    largest = next((k for k in range(gpus - 1, 0, -1) if best[k, free] >= 0), 0)
    if not largest:
        nearest = f"no free GPU has {words}"
    else:
        mask = pick(tables, free, gpus=largest, constraints=required)
        assert mask is not None
        which = listed(numbers(machine, rings.positions(mask)))
        nearest = f"largest free {words} set is {largest} ({which})"
    if best[gpus, tables.everything] < 0:
        nearest += ", and with all GPUs free there would be none either"
    if Constraint.SAME_NUMA in required and any(numa is None for numa in tables.shape.numa):
        nearest += "; the machine does not say the NUMA node of every GPU"
    return f"{what}: no; {nearest}; without {words} {count} GPUs are free"
