"""The criteria that a request sets: what it requires, and the rungs of what it prefers."""

from __future__ import annotations

from dradriver.allocator.request import Constraint, Whole
from dradriver.allocator.sets.criteria import Criteria


def fallback_levels(request: Whole, *, include: int = 0) -> tuple[Criteria, ...]:
    """Return the criteria of all fallback levels, best first: with each preferred constraint, then the required alone.

    Args:
        request: What is wanted.
        include: Mask of the positions that must be in the set.
    """
    required = frozenset(request.required)
    ladder = [required | {wish} for wish in request.preferred]
    return tuple(_criteria(request, rung, include) for rung in dict.fromkeys((*ladder, required)))


def required(request: Whole, *, include: int = 0) -> Criteria:
    """Return the criteria of the last fallback level, which every set must meet."""
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
