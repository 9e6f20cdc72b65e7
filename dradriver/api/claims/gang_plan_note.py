"""The note on each claim that names its gang plan.

A *note* is an annotation in which the driver keeps data for itself. A gang plan has the places of all pods of a gang. A
new leader restores the plan from these notes alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.claims import result_annotations

MOST_NODES: Final = 128  # whose names are written on each pod of a gang; of more nobody could read the order
LONGEST: Final = 1024  # characters of the annotation
MOST_PODS: Final = 20_000  # of a plan, twice what a gang may have: pods that come later may be more than there were


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gang plan that a member's claim belongs to.

    Attributes:
        gang: The identity of the gang (``gang_owners.identity``).
        plan: The identifier of the plan, equal for all claims of the plan and different for other plans of the gang.
        size: How many claims the plan has. In the claim of a member that was added later, it is the number of claims
            before that member.
        index: The member's index in the plan, from 0. The pod's annotation ``rank-hint`` shows it.
        reach: The narrowest level of the network, such as a switch or block, that holds all nodes of the gang.
        busbw_gbps: Predicted all-reduce bus bandwidth of the gang, GB/s; 0 if not known.
    """

    gang: str
    plan: str
    size: int
    index: int
    reach: str = ""
    busbw_gbps: float = 0.0


_PLANNED: Final = msgspec.json.Decoder(Planned)


def digest(gang: str, places: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Return the digest of a gang plan, which is the identifier of the plan.

    Args:
        gang: The identity of the gang.
        places: The uid of each member's pod, its node, and the uuids of its GPUs.
    """
    return hashlib.sha256(msgspec.json.encode([gang, sorted(places)])).hexdigest()[:16]


def written(planned: Planned) -> str:
    """Return a gang plan as the text of the note on a member's claim."""
    return msgspec.json.encode(planned).decode()


def read(claim: ResourceClaim) -> Planned | None:
    """Return the gang plan that the note on this driver's claim names; None without a readable note."""
    text = claim.metadata.annotations.get(names.PLAN)
    if text is None or len(text) > LONGEST:
        return None
    try:
        planned = _PLANNED.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return planned if 0 <= planned.index < planned.size <= MOST_PODS else None


def texts(planned: Planned, nodes: Sequence[str]) -> dict[str, str | None]:
    """Return the annotations that show a gang's plan on a member's pod.

    A value of None removes that annotation from the pod.

    Args:
        planned: The gang plan in the member's claim.
        nodes: The gang's nodes, in the order of the ranks.
    """
    return {
        names.RANK_HINT: str(planned.index),
        names.GANG_NODES: ",".join(nodes) if 0 < len(nodes) <= MOST_NODES else None,
        names.GANG_REACH: planned.reach or None,
        names.GANG_BUSBW: result_annotations.gbps(planned.busbw_gbps) if planned.busbw_gbps else None,
    }
