"""What is so of those who have to end for the claims of a pod or a gang: whom to tell, and until when to wait. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.records import ClaimRecord
from dradriver.reason import Cause, Reason

LOOK_S: Final = 0.5  # between two looks whether they are gone


class Ending(msgspec.Struct, frozen=True):
    """Others have to end, and are there still.

    Attributes:
        claims: The claims that name them.
        pods: Those who have not been told to end.
        begun: Whether others have, or are gone already.
        until: When what was promised is given back, by the loop's clock.
        over: Whether that is now, or has to be: its node goes too soon.
        late: Why, then.
        why: What to tell whoever waits for them.
    """

    claims: tuple[ClaimRecord, ...]
    pods: tuple[Pod, ...]
    begun: bool
    until: float
    over: bool
    late: Reason
    why: Reason

    def look_at(self, now: float) -> float:
        """Return when to look again, by the loop's clock."""
        return min(self.until, now + LOOK_S)


def ending_for(
    claims: Collection[ClaimRecord], picture: Picture, now: float, wall: float, lasts_s: int
) -> Ending | None:
    """Return what is so of those who have to end for some claims; None where none has to, or all have.

    Args:
        claims: The claims; of one that has its devices nobody has to end any more.
        picture: The cluster.
        now: The loop's clock.
        wall: The time that claims are written by, seconds since the epoch.
        lasts_s: For how long those have them who wait for it; 0 for ever.
    """
    named = [(claim, claim.preempts) for claim in claims if claim.preempts is not None and claim.devices is None]
    there = {pod.metadata.uid: pod for _, preempts in named for pod in conflicts.living(picture, preempts)}
    if not there:
        return None
    ends_at = max(preempts.until for _, preempts in named)
    untold = tuple(pod for pod in there.values() if pod.metadata.deletion_timestamp is None)
    first = next(iter(there.values())).metadata
    more = f" and {len(there) - 1} more" if len(there) > 1 else ""
    gone = picture.nodes.gone_by(ends_at + lasts_s if lasts_s else math.inf)
    goes = next((claim.pin.choice.node for claim, _ in named if claim.pin and claim.pin.choice.node in gone), "")
    return Ending(
        claims=tuple(claim for claim, _ in named),
        pods=untold,
        begun=len(untold) < len({uid for _, preempts in named for uid in preempts.uids}),
        until=now + ends_at - wall,
        over=wall >= ends_at or bool(goes),
        late=(
            Reason(Cause.NODES, f"its node {goes} goes for maintenance before it would end")
            if goes
            else Reason(Cause.ENDING, f"pod {first.namespace}/{first.name}{more} did not end for it in time")
        ),
        why=Reason(
            Cause.ENDING,
            next((preempts.why for _, preempts in named if preempts.why), "others have to end for it"),
        ),
    )
