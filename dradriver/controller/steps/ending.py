"""The victims of a preemption that still exist, and their deadline. Pure.

``observe`` calls it.
"""

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
    """The pods that still have to end before a waiting workload gets its GPUs.

    Attributes:
        claims: The claims of the waiting workload that name these pods.
        pods: The pods that were not told to end yet (no deletion timestamp).
        begun: Whether other pods that the claims name are being deleted or are gone.
        until: When the waiting workload's claims are deleted if pods still run, by the event loop's clock.
        over: Whether these claims must be deleted now: the deadline has passed, or the maintenance of a node begins too
            early.
        late: The reason to show if these claims are deleted.
        why: The reason to show on the waiting pods.
    """

    claims: tuple[ClaimRecord, ...]
    pods: tuple[Pod, ...]
    begun: bool
    until: float
    over: bool
    late: Reason
    why: Reason

    def look_at(self, now: float) -> float:
        """Return when to check the ending pods again.

        This time and ``now`` are by the event loop's clock.
        """
        return min(self.until, now + LOOK_S)


def ending_for(
    claims: Collection[ClaimRecord], picture: Picture, now: float, wall: float, lasts_s: int
) -> Ending | None:
    """Return the pods that must end before claims get their GPUs; None if none.

    Args:
        claims: The claims of a waiting workload. Allocated claims are ignored: no pod has to end for them any more.
        picture: The cluster cache.
        now: The time by the event loop's clock.
        wall: The time in seconds since the epoch; the deadlines on claims are in this form.
        lasts_s: How many seconds the waiting pods will use the GPUs; 0 for no limit.
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
        late_reason = Reason(Cause.NODES, f"Maintenance of node {drained_node} begins before this pod would end.")
    else:
        first_pod = next(iter(living.values())).metadata
        more_text = f" and {len(living) - 1} more" if len(living) > 1 else ""
        late_reason = Reason(
            Cause.ENDING,
            f"Pod {first_pod.namespace}/{first_pod.name}{more_text} did not end in time to release its GPUs.",
        )
    why = next((preempts.why for _, preempts in preempting if preempts.why), "Waiting until other pods have ended.")
    return Ending(
        claims=tuple(claim for claim, _ in preempting),
        pods=not_deleted,
        begun=len(not_deleted) < len(victims),
        until=now + ends_at - wall,
        over=wall >= ends_at or bool(drained_node),
        late=late_reason,
        why=Reason(Cause.ENDING, why),
    )
