"""The causes for which the controller revokes the GPUs that it chose for a pod, by deleting the pod's claim."""

from __future__ import annotations

import enum
from typing import Final

from dradriver.reason import Cause, Reason


class WithdrawReason(enum.StrEnum):
    """Why the controller revokes GPUs that it chose for a pod; values are metric labels."""

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
    WithdrawReason.TAKEN: "another claim has one of its devices",
    WithdrawReason.GONE: "no node offers one of its devices any more",
    WithdrawReason.DAMAGED: "another program changed its claim",
    WithdrawReason.ASLEEP: "pods of its gang are deleted while the gang starts",
    WithdrawReason.OVERLOOKED: "the scheduler did not see that there is room for it",
}


def again(cause: WithdrawReason) -> Reason:
    """Return the reason to show on a pod that lost its chosen GPUs several times.

    ``cause`` is why it lost them the last time.
    """
    why = _TOLD.get(cause, "its claim does not match its request any more")
    return Reason(Cause.POD, f"The placement of this pod was revoked several times, the last time because {why}.")
