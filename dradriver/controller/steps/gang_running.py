"""Decides about a running gang with missing pods: place its new pods one by one, or restart the gang. Pure.

``RunningGangs`` calls it. An unbound pod that is older than the gang's claims should have started with the gang. If
there is no gang barrier, the scheduler may have bound some pods and found no room for this one. A pod that is younger
than the claims replaces a lost pod, or lets the gang grow.

The *gang barrier* is devices in the claims of a gang that keep its pods unbound until all have places.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps.deadlines import BOUND_S, Deadlines


class Anew(msgspec.Struct, frozen=True):
    """The next step of a running gang: its owner restarts all pods.

    Attributes:
        reason: Why the gang is restarted.
    """

    reason: str


class OneByOne(msgspec.Struct, frozen=True):
    """The next step of a running gang: its unbound pods are placed one by one.

    Attributes:
        until: When to process the gang again, by the event loop's clock; None to wait for an event.
    """

    until: float | None = None


def running_step(
    pods: Sequence[Pod], picture: Picture, least: int, now: float, *, restarts: bool, since: float, deadlines: Deadlines
) -> Anew | OneByOne:
    """Return the next step of a started gang: restart it, or leave it running.

    Args:
        pods: Its living pods.
        picture: The cluster cache.
        least: How many living pods the gang needs at least. Pods that have succeeded are already subtracted.
        now: The time by the event loop's clock.
        restarts: Whether its author wants the whole gang restarted when it loses a pod.
        since: When this process first saw that the gang had started, by the event loop's clock.
        deadlines: Says how long the scheduler may take to allocate the gang's claims.
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
