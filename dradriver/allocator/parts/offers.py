"""Which GPUs of a node can be used as fractions (shares or MIG slices): plain data, without numpy.

The cluster cache sets it in the fleet, the allocator's arrays of nodes.
"""

from __future__ import annotations

from typing import Final

import msgspec


class ShareRule(msgspec.Struct, frozen=True):
    """The rule for shares of one GPU.

    A GPU without a rule has shares of any size, which together have at most the GPU's memory.

    Attributes:
        memory_mib: Memory that all shares together may have, MiB; 0 for the GPU's memory. A single share never has more
            than the GPU's memory.
        equal: The number of equal shares; 0 if each share has a size of its own.
    """

    memory_mib: int = 0
    equal: int = 0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """How a node offers its GPUs, by the machine's own numbers.

    A GPU that is in none of the fields is offered as a whole only.

    Attributes:
        shared: GPUs that can have several shares at a time.
        sliced: GPUs that can have MIG slices, which are created on demand.
        parts_only: GPUs of ``shared`` or ``sliced`` that are never allocated as whole GPUs: their MIG mode is on, and
            only a reset of the GPU would end it.
        rules: Pairs of a GPU number and the rule for its shares, ascending.
        tenants: Pairs of a GPU number and the only tenant that may get more fractions of this GPU, ascending. A tenant
            is any number but 0, as in ``Fleet.rank``.
    """

    shared: frozenset[int] = frozenset()
    sliced: frozenset[int] = frozenset()
    parts_only: frozenset[int] = frozenset()
    rules: tuple[tuple[int, ShareRule], ...] = ()
    tenants: tuple[tuple[int, int], ...] = ()


WHOLE: Final = Offer()
