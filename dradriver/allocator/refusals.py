"""Why nothing fits, and the nearest thing that does."""

from __future__ import annotations

import numpy as np

from dradriver.allocator import demands, rings
from dradriver.allocator.demands import Demand
from dradriver.allocator.numbering import listed, mask_of_gpus, numbers
from dradriver.allocator.picks import pick
from dradriver.allocator.request import Constraint, Request
from dradriver.allocator.tables import Tables
from dradriver.topology.machine import Machine


def refusal(
    machine: Machine, tables: Tables, offered: int, *, request: Request, usable: int, excluded: bool = False
) -> str:
    """One sentence on one machine.

    Args:
        machine: The machine.
        tables: Its tables.
        offered: Mask of all its free GPUs.
        request: What was wanted.
        usable: Mask of those among them that are of the kind that was wanted.
        excluded: Whether some sets were not to be the answer.
    """
    gpus = request.gpus
    what = demands.words(request)
    if gpus > tables.size:
        return f"{what}: no; the machine has {tables.size}"

    def these(mask: int) -> str:
        return listed(numbers(machine, rings.positions(mask)))

    count = offered.bit_count()
    if gpus > count:
        which = f" ({these(offered)})" if count else ""
        return f"{what}: no; {count} of {tables.size} GPUs are free{which}"
    if gpus > usable.bit_count():
        which = f" ({these(usable)})" if usable else ""
        return f"{what}: no; {usable.bit_count()} of {count} free GPUs are such{which}{_products(machine, request)}"
    include = mask_of_gpus(machine, request.include)
    if include & ~usable:
        return f"{what}: no; GPU {these(include & ~usable)} is not free, or not of the kind that is wanted"
    demand = demands.demand(request, include=include)
    if excluded and tables.has(gpus, demand)[usable]:
        return f"{what}: no; the sets that would fit are excluded"
    words = demands.set_words(request)
    if (short := shortfall(tables, usable, gpus=gpus, demand=demand)) is not None:
        most, word, mask = short
        nearest = f"the most {word} that so many free GPUs have is {most:g} GB/s ({these(mask)})"
    elif (found := largest(tables, usable, most=gpus - 1, demand=demand)) is None:
        nearest = f"no free GPU has {words}"
    else:
        nearest = f"largest free {words} set is {found.bit_count()} ({these(found)})"
    if not tables.has(gpus, demand)[tables.everything]:
        nearest += ", and with all GPUs free there would be none either"
    if Constraint.SAME_NUMA in request.required and any(numa is None for numa in tables.shape.numa):
        nearest += "; the machine does not say the NUMA node of every GPU"
    return f"{what}: no; {nearest}; without {words} {usable.bit_count()} GPUs are free"


def largest(tables: Tables, free: int, *, most: int, demand: Demand) -> int | None:
    """The best of the largest sets of at most ``most`` free GPUs that are what is demanded; None for none."""
    for gpus in range(most, 0, -1):
        found = pick(tables, free, gpus=gpus, demand=demand)
        if found is not None:
            return found
    return None


def shortfall(tables: Tables, free: int, *, gpus: int, demand: Demand) -> tuple[float, str, int] | None:
    """Where bandwidth alone is missing: how much there is, of which kind, and on which set; else None."""
    if demand.min_busbw_gbps:
        found = pick(tables, free, gpus=gpus, demand=demand.any_busbw)
        if found is not None:
            return round(float(tables.busbw[found]), 2), "bus bandwidth", found
    if demand.min_bandwidth_gbps:
        weaker = Demand(demand.constraints, 0.0, demand.max_cross, demand.include)
        sets = tables.members(gpus)
        sets = sets[(sets & ~free == 0) & tables.allowed(weaker)[sets]]
        if sets.size:
            found = int(sets[np.argmax(tables.rates()[sets])])
            return round(tables.bandwidth_gbps(found), 2), "bandwidth between neighbours", found
    return None


def _products(machine: Machine, request: Request) -> str:
    """What there is instead, where a name was asked for."""
    if request.product:
        have = sorted({gpu.product for gpu in machine.gpus if gpu.product})
        return f"; the machine has {', '.join(have) or 'no product names'}"
    if request.architecture:
        have = sorted({gpu.architecture for gpu in machine.gpus if gpu.architecture})
        return f"; the machine has {', '.join(have) or 'no architecture names'}"
    return ""
