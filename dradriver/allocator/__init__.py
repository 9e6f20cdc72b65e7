"""Choice of GPUs for a request: which GPUs of which machines. The controller and the CLI call this package.

It imports nothing of Kubernetes.

request    a request for GPUs, the choice for it, and the error that there is no place, as plain data
gang_request  the same for a gang: many pods that start together
set_policies  the properties that each value of the annotation ``policy`` requires
sets       how good a set of GPUs is: figures of every subset of a machine's GPUs
choice     the choice of one set among the free GPUs of one machine
parts      fractions: shares and MIG slices, the free capacity of a GPU, and the place that costs later pods least
fleet      the choice of nodes in a cluster, for one pod (whole GPUs or fractions) and for gangs

Each package uses only the packages above it in this list. All but the first three need numpy. Python loads numpy when
one of their names is used for the first time.

Words of this package:

* A *position* is the index of a GPU in ``Machine.gpus``. A *mask* is a set of GPUs as an integer: bit ``i`` is position
  ``i``.
* The *free mask* of a node is the mask of its free GPUs.
* A *group* has all nodes with the same kind of machine. A *slot* is the index of a node in its group.
* A *row* is the index of a node in arrays of the caller.
* A *fraction* is a share or a MIG slice.
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
