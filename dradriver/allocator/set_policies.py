"""The properties that each value of the annotation ``policy`` requires of a set of GPUs.

It is data only, without numpy, because the webhook reads it.
"""

from __future__ import annotations

from types import MappingProxyType

from dradriver.allocator.request import Constraint

LINKED = "linked"
# ``best-effort`` demands nothing: the best set that is free. The others are hard: no place rather than less.
POLICIES: MappingProxyType[str, tuple[Constraint, ...]] = MappingProxyType(
    {
        "best-effort": (),
        "nvlink": (Constraint.NVLINK,),
        "single-numa": (Constraint.SAME_NUMA,),
        "pcie": (Constraint.SAME_PCIE_ROOT,),
        LINKED: (Constraint.NVLINK,),  # ``nvlink`` by the name of no vendor
    }
)
