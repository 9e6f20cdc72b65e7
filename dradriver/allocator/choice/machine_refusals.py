"""Refusals of one machine: why no set of its GPUs fits a request, and the nearest set that does."""

from __future__ import annotations

import msgspec
import numpy as np

from dradriver.allocator.choice import fallback_criteria, phrases
from dradriver.allocator.choice.best_set import best_set
from dradriver.allocator.choice.filters import serves, suitable
from dradriver.allocator.choice.numbering import listed, mask_of_gpus, numbers
from dradriver.allocator.request import Constraint, NoPlaceError, Whole
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.tables import Tables
from dradriver.counted import counted
from dradriver.reason import Cause
from dradriver.topology.machine import Machine


def refusal(machine: Machine, tables: Tables, offered: int, *, request: Whole, usable: int) -> NoPlaceError:
    """Return the refusal of one machine: the error that says why it has no place for the request, and what fits.

    Args:
        machine: The machine.
        tables: Its tables.
        offered: Mask of all its free GPUs.
        request: What was wanted.
        usable: Mask of those among them that are of the kind that was wanted.
    """
    what = phrases.wanted(request)
    criteria = fallback_criteria.required(request, include=mask_of_gpus(machine, request.include))
    possible = request.gpus <= tables.size and tables.fits(request.gpus, suitable(machine, request), criteria)
    stable = "such a set is not free" if possible else "the machine has no such set even when all its GPUs are free"
    stable = _never(machine, request) or stable
    detail = _detail(machine, tables, offered, request=request, usable=usable, criteria=criteria)
    return NoPlaceError(
        f"{what}: no; {detail}", stable=f"{what}: no; {stable}", cause=Cause.GPUS if possible else Cause.NEVER
    )


def _detail(machine: Machine, tables: Tables, offered: int, *, request: Whole, usable: int, criteria: Criteria) -> str:
    """Return why a machine has no fitting set, from the simplest cause to the deepest.

    Args:
        machine: The machine.
        tables: Figures of every set of the machine's GPUs, by mask; ``size`` is the number of its GPUs.
        offered: Mask of all free GPUs.
        request: The request.
        usable: Mask of the free GPUs of the requested product and kind.
        criteria: The properties that the set must have; ``include`` is the mask of GPUs that it must contain.
    """
    gpus = request.gpus
    if gpus > tables.size:
        return f"the machine has {tables.size}"
    if why_never := _never(machine, request):
        return why_never

    def gpu_numbers(mask: int) -> str:
        return listed(numbers(machine, positions_of(mask)))

    free_count = offered.bit_count()
    if gpus > free_count:
        numbers_text = f" ({gpu_numbers(offered)})" if free_count else ""
        return f"{free_count} of {counted(tables.size, 'GPU')} {'is' if free_count == 1 else 'are'} free{numbers_text}"
    # ``usable`` leaves out free GPUs of another product or kind than the requested one: they are not "such" GPUs.
    if gpus > usable.bit_count():
        numbers_text = f" ({gpu_numbers(usable)})" if usable else ""
        return f"{usable.bit_count()} of {free_count} free GPUs are such{numbers_text}{_products(machine, request)}"
    if missing_gpus := criteria.include & ~usable:
        return f"GPU {gpu_numbers(missing_gpus)} is not free, or not of the kind that is wanted"

    # The number of GPUs is enough: no set of them has the required properties. Is it bandwidth alone that is missing?
    properties = phrases.wanted_set(request)
    if (short := shortfall(tables, usable, gpus=gpus, criteria=criteria)) is not None:
        most, figure, mask = short  # the best value in GB/s, its name, and the set that has it
        nearest = f"the most {figure} that so many free GPUs have is {most:g} GB/s ({gpu_numbers(mask)})"
    elif (largest := _largest_set(tables, usable, most=gpus - 1, criteria=criteria)) is None:
        nearest = f"no free GPU has {properties}"
    else:
        set_text = f"{properties} set" if properties else "set"
        nearest = f"largest free {set_text} is {largest.bit_count()} ({gpu_numbers(largest)})"

    # Some machines give only certain sets of GPUs together.
    if rule := phrases.together(machine):
        nearest += f", as {rule}"
    has_set_when_all_free = tables.fits(gpus, tables.everything, criteria)
    if not has_set_when_all_free:
        nearest += ", and with all GPUs free there would be none either"
    if Constraint.SAME_NUMA in request.required and any(numa is None for numa in tables.shape.numa):
        nearest += "; the machine does not say the NUMA node of every GPU"
    are_free = f"{counted(usable.bit_count(), 'GPU is', 'GPUs are')} free"
    return f"{nearest}; {f'without {properties} ' if properties else ''}{are_free}"


def _never(machine: Machine, request: Whole) -> str:
    """Why the machine never has such a set, where that is a rule and it has enough such GPUs; else empty."""
    if request.gpus > suitable(machine, request).bit_count():
        return ""
    return phrases.wrong_count(machine, request.gpus) or phrases.no_figure(machine.vendor, request)


def shortfall(tables: Tables, free: int, *, gpus: int, criteria: Criteria) -> tuple[float, str, int] | None:
    """Return the most bandwidth of a refused machine, and on which set, if only bandwidth is missing; else None."""
    if criteria.min_busbw_gbps:
        mask = best_set(tables, free, gpus=gpus, criteria=criteria.any_busbw)
        if mask is not None:
            return tables.busbw_gbps(mask), "bus bandwidth", mask
    if criteria.min_bandwidth_gbps:
        weaker = msgspec.structs.replace(criteria, min_bandwidth_gbps=0.0, min_busbw_gbps=0.0)
        sets = tables.members(gpus)
        sets = sets[(sets & ~free == 0) & tables.allowed(weaker)[sets]]
        if sets.size:
            mask = int(sets[np.argmax(tables.rates()[sets])])
            return round(tables.bandwidth_gbps(mask), 2), "bandwidth between neighbours", mask
    return None


def _largest_set(tables: Tables, free: int, *, most: int, criteria: Criteria) -> int | None:
    """The best of the largest sets of at most ``most`` free GPUs that meet the criteria; None for none."""
    for gpus in range(most, 0, -1):
        mask = best_set(tables, free, gpus=gpus, criteria=criteria)
        if mask is not None:
            return mask
    return None


def _products(machine: Machine, request: Whole) -> str:
    """What the machine has instead, if the request names a product, an architecture or a version; else empty."""
    if machine.vendor.word != request.vendor:
        return f"; the machine has those of {machine.vendor.word}"
    if not serves(machine, request):
        driver, cuda = machine.driver_version or "not known", machine.cuda_version or "not known"
        return f"; its driver is {driver}, and the newest CUDA that it knows {cuda}"
    if request.product:
        have = sorted({gpu.product for gpu in machine.gpus if gpu.product})
        return f"; the machine has {', '.join(have) or 'no product names'}"
    if request.architecture:
        have = sorted({gpu.architecture for gpu in machine.gpus if gpu.architecture})
        return f"; the machine has {', '.join(have) or 'no architecture names'}"
    return ""
