"""The note on each claim that says which gang plan it belongs to, so that the API alone restores the plan."""

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
    """What a member's claim says of the plan that it belongs to.

    Attributes:
        gang: The identity of the gang (``gang_owners.identity``).
        plan: Tells the plan from others of the same gang: all its claims say the same.
        size: How many claims the plan has; of one that is made for a member that came later, how many it had.
        index: The member's place among them, from 0: the pod's rank hint.
        reach: What holds all its nodes together (``GangChoice.reach``).
        busbw_gbps: Predicted for all of them together; 0 where that is not known.
    """

    gang: str
    plan: str
    size: int
    index: int
    reach: str = ""
    busbw_gbps: float = 0.0


_PLANNED: Final = msgspec.json.Decoder(Planned)


def digest(gang: str, places: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Return the digest that a gang plan's note has: of the gang, each member's pod uid, node and GPU uuids."""
    return hashlib.sha256(msgspec.json.encode([gang, sorted(places)])).hexdigest()[:16]


def written(planned: Planned) -> str:
    """Return the text of the note with a gang's plan on a claim."""
    return msgspec.json.encode(planned).decode()


def read(claim: ResourceClaim) -> Planned | None:
    """Return which gang plan the note on a claim of ours names; None without a note, or for a damaged one."""
    text = claim.metadata.annotations.get(names.PLAN)
    if text is None or len(text) > LONGEST:
        return None
    try:
        planned = _PLANNED.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return planned if 0 <= planned.index < planned.size <= MOST_PODS else None


def texts(planned: Planned, nodes: Sequence[str]) -> dict[str, str | None]:
    """Return the annotations on a gang member's pod that tell its author of the gang's plan; None to remove one.

    Args:
        planned: What its claim says.
        nodes: The gang's nodes, in the order of the ranks.
    """
    return {
        names.RANK_HINT: str(planned.index),
        names.GANG_NODES: ",".join(nodes) if 0 < len(nodes) <= MOST_NODES else None,
        names.GANG_REACH: planned.reach or None,
        names.GANG_BUSBW: result_annotations.gbps(planned.busbw_gbps) if planned.busbw_gbps else None,
    }
