"""Why a promise is taken back."""

from __future__ import annotations

import enum
from typing import Final

from dradriver.reason import Cause, Reason


class WithdrawReason(enum.StrEnum):
    """Why a promise is taken back; the values are metric labels."""

    TAKEN = "taken"  # another claim was given one of its devices
    GONE = "gone"  # one of its devices is not offered any more
    DAMAGED = "damaged"  # nobody knows any more what it stands for
    UNSCHEDULABLE = "unschedulable"  # the scheduler finds no room on its nodes, whatever we think of them
    OVERLOOKED = "overlooked"  # the same of a part that has room by our books: made anew, the scheduler finds it
    OVERDUE = "overdue"  # the scheduler has not bound the pod, and does not say why
    BYPASSED = "bypassed"  # somebody bound the pod and left its claim as it was
    OUTDATED = "outdated"  # the gated pod asks for something else by now, or its GPUs went to another
    UNENDED = "unended"  # those that had to end for it may not any more, or did not in time
    ASLEEP = "asleep"  # the gang lost a pod, and the scheduler would try no other one that waits for that place
    BLOCKED = "blocked"  # the pod cannot be lifted: a gate, or somebody else's use of its claim


_TOLD: Final = {
    WithdrawReason.TAKEN: "another claim was given one of its devices",
    WithdrawReason.GONE: "one of its devices is not offered any more",
    WithdrawReason.DAMAGED: "somebody changed its claim",
    WithdrawReason.ASLEEP: "pods of its gang are deleted while it starts",
    WithdrawReason.OVERLOOKED: "the scheduler overlooks that there is room for it",
}


def again(cause: WithdrawReason) -> Reason:
    """Return the reason of a pod whose placement is withdrawn again and again, the last time for this cause."""
    why = _TOLD.get(cause, "its claim is not what it asks for any more")
    return Reason(Cause.POD, f"what it is promised is taken back again and again: {why}")
