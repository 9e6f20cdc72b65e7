"""Says why no set of one machine's GPUs fits a request, and which set is nearest to it.

``machine_choice`` calls this module. *Criteria* are the properties that a set must have, such as NVLink.
"""

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
from dradriver.reason import Cause, sentences
from dradriver.topology.machine import Machine


def refusal(machine: Machine, tables: Tables, offered: int, *, request: Whole, usable: int) -> NoPlaceError:
    """Return the error: why the machine has no place, and what it has instead.

    Args:
        machine: The machine.
        tables: Figures of every set of the machine's GPUs.
        offered: Bit mask of all its free GPUs.
        request: The GPUs that a pod requests.
        usable: Bit mask of the free GPUs that pass the request's filters (product, memory and so on).
    """
    what = phrases.wanted(request)
    criteria = fallback_criteria.required(request, include=mask_of_gpus(machine, request.include))
    possible = request.gpus <= tables.size and tables.fits(request.gpus, suitable(machine, request), criteria)
    why = (
        "the machine has no such free set" if possible else "the machine has no such set, even if all its GPUs are free"
    )
    nearest = ""
    if rule := _never(machine, request):
        why = rule
    else:
        nearest = _nearest(machine, tables, offered, request=request, usable=usable, criteria=criteria)
    return NoPlaceError(why, request=what, nearest=nearest, cause=Cause.GPUS if possible else Cause.NEVER)


def _nearest(machine: Machine, tables: Tables, offered: int, *, request: Whole, usable: int, criteria: Criteria) -> str:
    """Return what a machine has instead of a fitting set, in sentences.

    The causes are tried from the simplest to the most complex, and the text is about the first one that applies.

    Args:
        machine: The machine.
        tables: Figures of every set of the machine's GPUs, by mask; ``tables.size`` is the number of its GPUs.
        offered: Bit mask of all free GPUs.
        request: The request.
        usable: Bit mask of the free GPUs that pass the request's filters (product, memory and so on).
        criteria: The properties that the set must have; ``include`` is the mask of GPUs that it must contain.
    """
    gpus = request.gpus
    if gpus > tables.size:
        return f"The machine has {counted(tables.size, 'GPU')}"

    def gpu_numbers(mask: int) -> str:
        return listed(numbers(machine, positions_of(mask)))

    free_count = offered.bit_count()
    if gpus > free_count:
        numbers_text = f" ({gpu_numbers(offered)})" if free_count else ""
        return f"{free_count} of {counted(tables.size, 'GPU')} {'is' if free_count == 1 else 'are'} free{numbers_text}"
    # ``usable`` leaves out free GPUs of another product or kind than the requested one: they are not "such" GPUs.
    if gpus > usable.bit_count():
        numbers_text = f" ({gpu_numbers(usable)})" if usable else ""
        matching = f"{usable.bit_count()} of {free_count} free GPUs match the request{numbers_text}"
        return sentences(matching, _products(machine, request))
    if missing_gpus := criteria.include & ~usable:
        return f"GPU {gpu_numbers(missing_gpus)} is not free, or does not match the request"

    # The number of GPUs is enough: no set of them has the required properties. Is it bandwidth alone that is missing?
    properties = phrases.wanted_set(request)
    if (short := shortfall(tables, usable, gpus=gpus, criteria=criteria)) is not None:
        most, figure, mask = short  # the best value in GB/s, its name, and the set that has it
        nearest = f"The highest {figure} of {counted(gpus, 'free GPU')} is {most:g} GB/s ({gpu_numbers(mask)})"
    elif (largest := _largest_set(tables, usable, most=gpus - 1, criteria=criteria)) is None:
        nearest = f"No free GPU has {properties}"
    else:
        set_text = f"set with {properties}" if properties else "set"
        nearest = f"The largest free {set_text} has {counted(largest.bit_count(), 'GPU')} ({gpu_numbers(largest)})"

    # Some machines give only certain sets of GPUs together.
    rule = phrases.together(machine)
    rule_text = f"On this machine, {rule}" if rule else ""
    is_unknown = Constraint.SAME_NUMA in request.required and any(numa is None for numa in tables.shape.numa)
    numa_text = "The machine does not report the NUMA node of every GPU" if is_unknown else ""
    are_free = f"{counted(usable.bit_count(), 'GPU is', 'GPUs are')} free"
    free_text = f"Without {properties}, {are_free}" if properties else are_free
    return sentences(nearest, rule_text, numa_text, free_text)


def _never(machine: Machine, request: Whole) -> str:
    """Return as text why the machine can never have the requested set of GPUs.

    There are two reasons: the machine's maker allows no pod this number of GPUs, or the request requires a bandwidth
    that is not known for the vendor. The text is empty if neither reason applies, or if the machine has too few GPUs
    that pass the request's filters.
    """
    if request.gpus > suitable(machine, request).bit_count():
        return ""
    return phrases.wrong_count(machine, request.gpus) or phrases.no_figure(machine.vendor, request)


def shortfall(tables: Tables, free: int, *, gpus: int, criteria: Criteria) -> tuple[float, str, int] | None:
    """Return how near the free GPUs come to the bandwidth that a request requires.

    The result has three parts: the highest bandwidth of a free set in GB/s, its kind as text, and the set. The kind is
    ``bus bandwidth`` or ``bandwidth between neighbours``. The result is None if the request fails for another reason
    than bandwidth.

    Args:
        tables: The bandwidth and other figures of all sets of the machine's GPUs.
        free: Bit mask of the free GPUs.
        gpus: The number of requested GPUs.
        criteria: The properties that the set must have, including the bandwidth.
    """
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
    """Return the largest set of at most ``most`` free GPUs that meets the criteria.

    Sets are bit masks of GPUs. ``tables`` has the figures of all sets. Among equally large sets, the one with the most
    bandwidth is returned. The result is None if there is no such set.
    """
    for gpus in range(most, 0, -1):
        mask = best_set(tables, free, gpus=gpus, criteria=criteria)
        if mask is not None:
            return mask
    return None


def _products(machine: Machine, request: Whole) -> str:
    """Return as text which vendor, driver version, products or architectures the machine has instead.

    The text is empty if the request names none of these.
    """
    if machine.vendor.word != request.vendor:
        return f"The machine has GPUs of vendor {machine.vendor.word}"
    if not serves(machine, request):
        driver, cuda = machine.driver_version or "not known", machine.cuda_version or "not known"
        return f"The machine has driver {driver}, which supports CUDA {cuda}"
    if request.product:
        have = sorted({gpu.product for gpu in machine.gpus if gpu.product})
        return f"The machine has {', '.join(have) or 'no product names'}"
    if request.architecture:
        have = sorted({gpu.architecture for gpu in machine.gpus if gpu.architecture})
        return f"The machine has {', '.join(have) or 'no architecture names'}"
    return ""
