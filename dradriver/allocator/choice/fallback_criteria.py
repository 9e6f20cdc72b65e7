"""The criteria of a request's fallback levels: what a set must have at each.

A *constraint* is a property of a set of GPUs, such as ``nvlink`` or one NUMA node. Each level except the last adds one
preferred constraint to the required ones, in the order of the request. The last level has the required constraints
alone. ``machine_choice`` and ``fleet`` try the levels one after another.
"""

from __future__ import annotations

from dradriver.allocator.request import Constraint, Whole
from dradriver.allocator.sets.criteria import Criteria


def fallback_levels(request: Whole, *, include: int = 0) -> tuple[Criteria, ...]:
    """Return the criteria of all fallback levels of a request, best first.

    A caller tries the levels one after another until one has a place. Each level but the last has the required
    constraints and one preferred constraint. The last level has only the required constraints.

    Args:
        request: The GPUs that a pod requests.
        include: Bit mask of the GPUs that must be in the set.
    """
    required = frozenset(request.required)
    ladder = [required | {wish} for wish in request.preferred]
    return tuple(_criteria(request, rung, include) for rung in dict.fromkeys((*ladder, required)))


def required(request: Whole, *, include: int = 0) -> Criteria:
    """Return the criteria that every set of GPUs for a request must meet.

    Preferred constraints are left out. ``include`` is the bit mask of the GPUs that must be in the set.
    """
    return _criteria(request, frozenset(request.required), include)


def _criteria(request: Whole, constraints: frozenset[Constraint], include: int) -> Criteria:
    if request.min_bandwidth_gbps and request.gpus > 1:  # a line rate, which links alone have
        constraints |= {Constraint.NVLINK}
    return Criteria(
        constraints=constraints,
        min_bandwidth_gbps=request.min_bandwidth_gbps,
        max_cross=request.max_cross_nvswitch_gpus,
        include=include,
        min_busbw_gbps=request.min_busbw_gbps,
    )
