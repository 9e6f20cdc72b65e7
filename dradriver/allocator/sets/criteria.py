"""The properties that a set of GPUs must have.

``Tables``, the figures of all sets, caches its answers under these criteria.

A *ring* leads through all GPUs of a set. A *step* is the connection between two neighbours in the ring. The *strength*
of a set replaces the bandwidth in comparisons on machines for which no bandwidth can be predicted.
"""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Constraint


class Criteria(msgspec.Struct, frozen=True, cache_hash=True):
    """The properties that a set of GPUs must have.

    Attributes:
        constraints: Properties that all its GPUs must share.
        min_bandwidth_gbps: Least rate of the weakest step of the best ring, one direction, GB/s.
        max_cross: How many GPUs may be outside the NVLink domain that has most GPUs of the set; None for any number.
        include: Bit mask of GPUs that must be in the set.
        min_busbw_gbps: Least predicted bus bandwidth, GB/s. If no bandwidth can be predicted, no set has it.
        min_worth: Least predicted bus bandwidth, GB/s; if none can be predicted, least strength of the links
            (``Tables.busbw``).
    """

    constraints: frozenset[Constraint] = frozenset()
    min_bandwidth_gbps: float = 0.0
    max_cross: int | None = None
    include: int = 0
    min_busbw_gbps: float = 0.0
    min_worth: float = 0.0

    @property
    def any_busbw(self) -> Criteria:
        """Return these criteria without the criteria about predicted bandwidth."""
        if not (self.min_busbw_gbps or self.min_worth):
            return self
        return msgspec.structs.replace(self, min_busbw_gbps=0.0, min_worth=0.0)

    def including(self, include: int) -> Criteria:
        """Return these criteria, changed so that the set must include some GPUs.

        ``include`` is the bit mask of these GPUs.
        """
        return msgspec.structs.replace(self, include=include) if include != self.include else self


ANY = Criteria()
