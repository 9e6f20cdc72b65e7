"""What can have to be done for a workload: what ``step`` returns and the worker does, for one pod as for a gang."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.queue.pending import Member
from dradriver.reason import Reason


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be done before a time or an event.

    Attributes:
        until: The time, by the loop's clock; None for an event.
        reason: What to tell the pods' authors; None to leave what was told.
    """

    until: float | None = None
    reason: Reason | None = None


class Settle(msgspec.Struct, frozen=True):
    """Pods need no place. What their objects say is put right first, and then they are looked at again.

    Attributes:
        texts: Annotations of a single pod; None for those to be removed.
        joins: The claim that a single pod shares with others and does not belong to yet.
        unnominate: Pods for which no plan needs CPU any more that the scheduler keeps for them on a node.
    """

    texts: dict[str, str | None] = {}
    joins: ClaimRecord | None = None
    unnominate: tuple[Member, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the action has nothing to write, so that the pod can be forgotten."""
        return not (self.texts or self.unnominate) and self.joins is None


class Place(msgspec.Struct, frozen=True):
    """Members want places, in addition to those that have theirs.

    Attributes:
        members: Which: the pod, all of a gang that begins, or those that came since.
        least: With how few a gang may begin if not all find places.
        until: When the claims of the other members are revoked if there is no place until then, by the loop's clock.
        joins: The uid of the claim of other pods that a single pod is to share; empty for one of its own.
    """

    members: tuple[Member, ...]
    least: int = 1
    until: float | None = None
    joins: str = ""


class OpenGates(msgspec.Struct, frozen=True):
    """Gated members have their claims: remove their gates if the claims are right, else delete the claims."""

    members: tuple[Member, ...]


class Go(msgspec.Struct, frozen=True):
    """The pods of claims with a gang barrier may be bound: tell the scheduler."""

    claims: tuple[ClaimRecord, ...]


class Release(msgspec.Struct, frozen=True):
    """Claims have to go. If one has a gang barrier, the scheduler is told to let go of it.

    Attributes:
        claims: Which.
        cause: Why; None if only the scheduler has to let go of what is lost already, which counts as no failure.
        reason: What to tell the pods' authors; None if another tentative placement follows at once.
        refused: Members for which the scheduler says that it finds no room.
    """

    claims: tuple[ClaimRecord, ...]
    cause: WithdrawReason | None
    reason: Reason | None = None
    refused: Collection[Member] = ()


EndOthers = Ending
"""Other pods have to end for the claims, and are there still."""

Step = Wait | Settle | Place | OpenGates | Release | Go | EndOthers
