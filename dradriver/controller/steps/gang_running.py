"""What becomes of a gang that runs and is not whole: its pods are placed one by one, or all of it starts anew. Pure.

A pod that is there since before the gang's claims is one that was to start with it: where no seat keeps pods from
being bound, the scheduler may find room for some of them and none for others. Any other came for one that was lost, or
because the gang grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps.deadlines import BOUND_S, Deadlines


class Anew(msgspec.Struct, frozen=True):
    """All of the gang are to start anew, by the means of what made them.

    Attributes:
        reason: Why.
    """

    reason: str


class OneByOne(msgspec.Struct, frozen=True):
    """Its pods go on one by one.

    Attributes:
        until: When to look again, by the loop's clock; None for an event.
    """

    until: float | None = None


def running_step(
    pods: Sequence[Pod], picture: Picture, least: int, now: float, *, restarts: bool, since: float, deadlines: Deadlines
) -> Anew | OneByOne:
    """Return the next step for a gang that has started: restart it, or leave it.

    Args:
        pods: Its living pods.
        picture: The cluster.
        least: How many pods it needs at least, less those that have succeeded.
        now: The loop's clock.
        restarts: Whether its author wants all of it to start anew when it loses a pod.
        since: When it was first seen to have started, by the loop's clock.
        deadlines: How long to wait.
    """
    bound = [pod for pod in pods if pod.spec.node_name]
    unbound = [pod for pod in pods if not pod.spec.node_name]
    if not unbound or len(bound) >= least:
        return OneByOne()
    # Only claims with a plan were made for the gang as a whole.
    claims = [claim for pod in pods if (claim := picture.claim_of(pod)) is not None and claim.planned is not None]

    # The gang began when its first claim was made. Unbound pods that were created later replace pods that it lost.
    began_at = min((claim.metadata.creation_timestamp or "" for claim in claims), default="")
    original_unbound = [pod for pod in unbound if (pod.metadata.creation_timestamp or "") <= began_at]
    if restarts and len(original_unbound) < len(unbound):
        return Anew(f"it lost a pod: {len(bound)} of {least} run")

    # Pods that the gang began with must be bound in time. With a gang barrier all are bound at once.
    if not original_unbound:
        return OneByOne()
    has_barrier = any(claim.seat is not None for claim in claims)  # ``seat``: the claim's gang barrier device
    until = since + (BOUND_S if has_barrier else deadlines.placed_s(len(pods)))
    return Anew(f"{len(bound)} of {least} of its pods were bound in time") if now >= until else OneByOne(until)
