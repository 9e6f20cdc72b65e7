"""All possible next steps of a workload. ``step`` returns one, and ``StepRunner`` does it.

A *place* is a node and GPUs for one pod. A *gate* is this driver's scheduling gate. A *gang barrier device* in a pod's
claim keeps the pod unbound until its whole gang can start. To *revoke* a claim is to delete it, so that other pods can
get its GPUs.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.pending import Member
from dradriver.reason import Reason


class Wait(msgspec.Struct, frozen=True):
    """The workload waits until a time or an event.

    Attributes:
        until: The time, by the event loop's clock; None to wait for an event only.
        reason: The text for the pods' authors; None to leave the present text.
    """

    until: float | None = None
    reason: Reason | None = None


class Settle(msgspec.Struct, frozen=True):
    """The pods need no place. If data on their objects are wrong, they are corrected.

    The workload is processed again after the corrections.

    Attributes:
        texts: Annotations of a single pod to write; None as a value removes an annotation.
        joins: The shared claim to whose owners a single pod is added; None if there is none.
        unnominate: Pods whose ``nominatedNodeName`` is removed: no plan needs the CPU that the scheduler keeps for it.
    """

    texts: dict[str, str | None] = {}
    joins: ClaimRecord | None = None
    unnominate: tuple[Member, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to correct, so that the pods can be forgotten."""
        return not (self.texts or self.unnominate) and self.joins is None


class Place(msgspec.Struct, frozen=True):
    """Some members need places.

    Attributes:
        members: The single pod; or the members of a gang that can get places, at most its full size; or the members for
            which the plan of a gang still lacks claims.
        least: How few of these a gang may start with if not all find places.
        until: When the claims of the other members are revoked if no place is found, by the event loop's clock; None
            for never.
        joins: The uid of the claim of other pods that a single pod is to share; empty for a claim of its own.
    """

    members: tuple[Member, ...]
    least: int = 1
    until: float | None = None
    joins: str = ""


class OpenGates(msgspec.Struct, frozen=True):
    """Gated members have their claims, so their gates must be removed.

    If a claim is not valid any more, the claims are deleted instead.
    """

    members: tuple[Member, ...]


class Go(msgspec.Struct, frozen=True):
    """The scheduler is told that a gang's pods may be bound.

    Until then, the gang barrier devices in their claims keep the pods unbound.
    """

    claims: tuple[ClaimRecord, ...]


class Release(msgspec.Struct, frozen=True):
    """Claims must be deleted.

    If a claim has a gang barrier device, which keeps its pod unbound, the scheduler is also told to release the claim.

    Attributes:
        claims: The claims.
        cause: Why GPUs that were chosen for the pods become free again, for the metrics and the back-off; None if no
            pod loses chosen GPUs.
        reason: The text for the pods' authors; None if GPUs are chosen again at once.
        refused: Members for which the scheduler says that it finds no room.
    """

    claims: tuple[ClaimRecord, ...]
    cause: WithdrawReason | None
    reason: Reason | None = None
    refused: Collection[Member] = ()


EndOthers = Ending
"""Other pods have to end for the claims, and are there still."""

Step = Wait | Settle | Place | OpenGates | Release | Go | EndOthers
