"""Which GPUs of which machines for a request. A library of its own; knows nothing of Kubernetes.

request    a request for GPUs and the choice for it, as plain data, and the error that there is no place
gang_request  the same of many pods that start together
set_policies  what the words of ``policy`` require
sets       what a set of GPUs is worth: figures of every subset of a machine
choice     which set of one machine's free GPUs is taken
parts      shares and MIG slices: what is left of a GPU, and where a part takes least from others
fleet      which nodes of a cluster, for one pod, whole or in parts, and for gangs

Each stands on those above it. All but the first three need numpy, which is loaded when a name of theirs is first used.
"""

from typing import TYPE_CHECKING

from dradriver import lazy

if TYPE_CHECKING:
    from dradriver.allocator.choice.machine_choice import choose
    from dradriver.allocator.choice.numbering import UnknownGpuError
    from dradriver.allocator.fleet.domain_capacity import LargestGang, largest_gang
    from dradriver.allocator.fleet.fleet import Fleet
    from dradriver.allocator.fleet.gang_placement import place_gang
    from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
    from dradriver.allocator.parts.offers import Offer
    from dradriver.allocator.request import (
        Amount,
        Choice,
        Constraint,
        Level,
        Mig,
        MigPart,
        NodeWeights,
        NoPlaceError,
        PartChoice,
        Request,
        Share,
        SharePart,
        Strategy,
        Weights,
        Whole,
    )
    from dradriver.allocator.set_policies import POLICIES
    from dradriver.allocator.sets.estimates import Estimate, all_reduce
    from dradriver.allocator.sets.tables import MAX_GPUS, MachineTooLargeError, Tables, tables_of

__all__ = [
    "MAX_GPUS",
    "POLICIES",
    "Amount",
    "Choice",
    "Constraint",
    "Estimate",
    "Fleet",
    "GangChoice",
    "GangRequest",
    "LargestGang",
    "Level",
    "MachineTooLargeError",
    "Mig",
    "MigPart",
    "NoPlaceError",
    "NodeWeights",
    "Offer",
    "PartChoice",
    "Request",
    "Role",
    "Share",
    "SharePart",
    "Strategy",
    "Tables",
    "UnknownGpuError",
    "Weights",
    "Whole",
    "all_reduce",
    "choose",
    "largest_gang",
    "place_gang",
    "tables_of",
]

__getattr__ = lazy.exports(
    __name__,
    {
        "set_policies": ("POLICIES",),
        "request": (
            "Amount",
            "Choice",
            "Constraint",
            "Level",
            "Mig",
            "MigPart",
            "NoPlaceError",
            "NodeWeights",
            "PartChoice",
            "Request",
            "Share",
            "SharePart",
            "Strategy",
            "Weights",
            "Whole",
        ),
        "gang_request": ("GangChoice", "GangRequest", "Role"),
        "sets.estimates": ("Estimate", "all_reduce"),
        "sets.tables": ("MAX_GPUS", "MachineTooLargeError", "Tables", "tables_of"),
        "choice.machine_choice": ("choose",),
        "choice.numbering": ("UnknownGpuError",),
        "parts.offers": ("Offer",),
        "fleet.fleet": ("Fleet",),
        "fleet.gang_placement": ("place_gang",),
        "fleet.domain_capacity": ("LargestGang", "largest_gang"),
    },
)


def __dir__() -> list[str]:
    return __all__
