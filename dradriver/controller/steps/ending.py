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
        """Return when to look at the ending pods again, by the loop's clock."""
        return min(self.until, now + LOOK_S)


def ending_for(
    claims: Collection[ClaimRecord], picture: Picture, now: float, wall: float, lasts_s: int
) -> Ending | None:
    """Return the state of the pods that must end before some claims get their GPUs.

    None if no pod must end, or if all of them have ended.

    Args:
        claims: The claims. For one that is allocated no pod has to end any more.
        picture: The cluster cache.
        now: The loop's clock.
        wall: The time that claims are written by, seconds since the epoch.
        lasts_s: How long the waiting pods will use the GPUs, in seconds; 0 for no limit.
    """
    # ``claim.preempts`` is what the claim says of the pods that must end for it: which, until when to wait, and why.
    preempting = [(claim, claim.preempts) for claim in claims if claim.preempts is not None and claim.devices is None]
    living = {pod.metadata.uid: pod for _, preempts in preempting for pod in conflicts.living(picture, preempts)}
    if not living:
        return None
    ends_at = max(preempts.until for _, preempts in preempting)  # seconds since the epoch, as ``wall``
    not_deleted = tuple(pod for pod in living.values() if pod.metadata.deletion_timestamp is None)
    victims = {uid for _, preempts in preempting for uid in preempts.uids}

    # A node that is drained before the waiting pods would end is no place for them any more.
    drained = picture.nodes.gone_by(ends_at + lasts_s if lasts_s else math.inf)
    nodes = (claim.pin.choice.node for claim, _ in preempting if claim.pin)
    drained_node = next((node for node in nodes if node in drained), "")
    if drained_node:
        late_reason = Reason(Cause.NODES, f"its node {drained_node} goes for maintenance before it would end")
    else:
        first_pod = next(iter(living.values())).metadata
        more_text = f" and {len(living) - 1} more" if len(living) > 1 else ""
        late_reason = Reason(
            Cause.ENDING, f"pod {first_pod.namespace}/{first_pod.name}{more_text} did not end for it in time"
        )
    why = next((preempts.why for _, preempts in preempting if preempts.why), "others have to end for it")
    return Ending(
        claims=tuple(claim for claim, _ in preempting),
        pods=not_deleted,
        begun=len(not_deleted) < len(victims),
        until=now + ends_at - wall,
        over=wall >= ends_at or bool(drained_node),
        late=late_reason,
        why=Reason(Cause.ENDING, why),
    )
