"""Criteria: what a set of positions must be, as a key that tables can keep answers under."""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Constraint


class Criteria(msgspec.Struct, frozen=True, cache_hash=True):
    """What a set of positions must be.

    Attributes:
        constraints: What all its GPUs must have in common.
        min_bandwidth_gbps: Least rate of the weakest step of the best ring.
        max_cross: Most members outside the NVLink domain that holds most of them; None for any number.
        include: Mask of positions that must be in it.
        min_busbw_gbps: Least predicted bandwidth, which no set has where nothing can be predicted.
        min_worth: Least of what sets are compared by, whatever that is.
    """

    constraints: frozenset[Constraint] = frozenset()
    min_bandwidth_gbps: float = 0.0
    max_cross: int | None = None
    include: int = 0
    min_busbw_gbps: float = 0.0
    min_worth: float = 0.0

    @property
    def any_busbw(self) -> Criteria:
        """Return these criteria without the predicted bandwidth."""
        if not (self.min_busbw_gbps or self.min_worth):
            return self
        return msgspec.structs.replace(self, min_busbw_gbps=0.0, min_worth=0.0)

    def including(self, include: int) -> Criteria:
        """Return these criteria with a mask of positions that the set must include."""
        return msgspec.structs.replace(self, include=include) if include != self.include else self


ANY = Criteria()
