"""The choice on one machine: the best set of free GPUs that a request allows, with its figures.

The criteria in their order:

1. the required constraints
2. the best fallback level that a free set reaches: the first preferred constraint that the set meets
3. predicted bus bandwidth
4. the sets of GPUs that remain free for later pods (``set_order``)
5. the cohesion of the set: how near and alike its GPUs are (``set_order.cohesion``)
6. the nearest NICs
7. the lowest GPU numbers

If a single GPU is requested with ``best-fit`` or ``pack``, criterion 4 first compares the pairs of GPUs that remain
free. So a GPU whose linked partner is free, too, is avoided. With ``first-fit``, criteria 4 to 6 do not count. The same
input always gives the same choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import msgspec

from dradriver.allocator.choice import fallback_criteria
from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.choice.filters import suitable
from dradriver.allocator.choice.machine_refusals import refusal
from dradriver.allocator.choice.numbering import mask_of_gpus, numbers
from dradriver.allocator.choice.set_order import preference
from dradriver.allocator.request import Choice, Constraint, Whole, check_request
from dradriver.allocator.sets import rank_order
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.tables import Tables, tables_of
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA


def choose(machine: Machine, free: Collection[int], request: Whole) -> Choice:
    """Return the best set of a machine's free GPUs for a request, split over containers.

    Args:
        machine: The machine, of up to 16 GPUs.
        free: The numbers (``Gpu.index``) of the GPUs that may be taken.
        request: The request. If its vendor is ``nvidia``, the default, the machine's vendor is meant.

    Raises:
        NoPlaceError: No free set fits; the message has the reason and the nearest thing that is possible.
        UnknownGpuError: ``free`` or the request names a GPU that the machine does not have.
        MachineTooLargeError: More than 16 GPUs.
    """
    check_request(request)
    # NVIDIA is the default of a request.
    if request.vendor == NVIDIA.word:
        request = msgspec.structs.replace(request, vendor=machine.vendor.word)

    # Masks of positions: all free GPUs, those of the requested kind among them, and those that the set must have.
    # ``tables`` has the figures of every set of the machine's GPUs, by mask.
    tables = tables_of(machine)
    offered = mask_of_gpus(machine, free)
    usable = offered & suitable(machine, request)
    include = mask_of_gpus(machine, request.include) if request.include else 0
    preferred = preference(request)

    # The criteria of each fallback level, best first: ``best_set`` returns None if no free set meets them.
    for fallback_level in fallback_criteria.fallback_levels(request, include=include):
        mask = best_set(tables, usable, gpus=request.gpus, criteria=fallback_level, preference=preferred)
        if mask is not None:
            return describe(machine, tables, mask, request=request)
    raise refusal(machine, tables, offered, request=request, usable=usable)


def describe(machine: Machine, tables: Tables, mask: int, *, request: Whole, node: str = "") -> Choice:
    """Return the choice of a set of GPUs on a machine: GPU numbers, ring, bandwidth and missed preferences.

    Args:
        machine: The machine.
        tables: The bandwidth and other figures of all sets of the machine's GPUs.
        mask: Bit mask of the set's positions.
        request: The request that the set is for.
        node: The name of the machine's node; empty offline.
    """
    busbw = float(tables.busbw[mask])
    best = float(tables.best(mask.bit_count())[tables.everything])
    parts = rank_order.split(tables, mask, request.containers)
    return Choice(
        gpus=numbers(machine, positions_of(mask)),
        containers=tuple(numbers(machine, rank_order.rank_order(tables, part)) for part in parts),
        ring=numbers(machine, rank_order.best_ring(tables, mask)),
        busbw_gbps=round(busbw, 2) if tables.shape.predicted else 0.0,
        bandwidth_gbps=round(tables.bandwidth_gbps(mask), 2) if machine.vendor.rated else 0.0,
        level=tables.level(mask),
        score=int(100 * busbw / best + 1e-3) if best > 0 else 100,
        fallback=_missed(tables, mask, request.preferred),
        node=node,
    )


def _missed(tables: Tables, mask: int, preferred: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Return the preferred constraints that a set of GPUs misses, for display.

    The result has all constraints of ``preferred`` before the first one that the set meets. ``mask`` is the bit mask of
    the set, ``tables`` has the figures of all sets.
    """
    return tuple(itertools.takewhile(lambda wish: not tables.meets(mask, wish), preferred))
