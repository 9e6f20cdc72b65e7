"""What can have to be done for one pod: what ``next_step`` returns, and the worker does."""

from __future__ import annotations

import msgspec

from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.steps.ending import Ending
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.reason import Reason


class _Untrue(msgspec.Struct, frozen=True):
    """What is not true any more, or not yet, of a pod that has its claim.

    Attributes:
        texts: Annotations; None for those to be taken away.
        joins: The claim that it shares with others and does not belong to yet.
    """

    texts: dict[str, str | None] = {}
    joins: ClaimRecord | None = None

    @property
    def untrue(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.texts) or self.joins is not None


class Settle(_Untrue, frozen=True):
    """The pod needs nothing more, but for what is not true any more."""


class Wait(_Untrue, frozen=True):
    """Nothing can be done before a time or an event.

    Attributes:
        until: The time, by the loop's clock; None for an event.
        reason: What to tell the pod's author; None to leave what was told. Where something is not true it comes first.
    """

    until: float | None = None
    reason: Reason | None = None


class Place(msgspec.Struct, frozen=True):
    """The pod wants a place: its first one, or another within its nodes."""


class Keep(msgspec.Struct, frozen=True):
    """The gated pod has a claim, left by a crash or a conflict: lift the pod if the claim is right, else replace it."""

    claim: ClaimRecord
    cause: WithdrawReason = WithdrawReason.OUTDATED


class Withdraw(msgspec.Struct, frozen=True):
    """The promise ends.

    Attributes:
        claim: The claim to delete.
        cause: Why.
        reason: What to tell the pod's author; None if another tentative placement follows at once.
    """

    claim: ClaimRecord
    cause: WithdrawReason
    reason: Reason | None = None


class Go(msgspec.Struct, frozen=True):
    """The pod has its seat, and its gang has started: tell it to go.

    Attributes:
        claim: The claim with the seat.
    """

    claim: ClaimRecord


class LetGo(msgspec.Struct, frozen=True):
    """The scheduler has to let go of a claim with a seat: its pod has lost its place there, or the claim is going.

    Attributes:
        claim: The claim.
    """

    claim: ClaimRecord


Step = Settle | Wait | Place | Keep | Withdraw | Go | LetGo | Ending
