"""The deadlines of a leader for the scheduler, pods and claims. ``controller/main.py`` reads them from options."""

from __future__ import annotations

from typing import Final

import msgspec

PROMISE_S: Final = 30.0
UNSCHEDULABLE_S: Final = 5.0
OVERLOOKED_S: Final = 1.0
UNSEATED_S: Final = 10.0  # that a pod may have its GPUs and no place on their node
BOUND_S: Final = 60.0  # that a scheduler may take to bind a pod that was told to go: it looks every 5 s
LET_GO_S: Final = 15.0  # that it may take to let go of a claim that is deleted and off; after a restart it never does
SCHEDULER_PAUSE_S: Final = 10.0  # kube-scheduler's longest pause before it tries a pod again (podMaxBackoffSeconds)
MEMBER_S: Final = 0.1  # longer that a gang's claims may last for each of its pods: a scheduler seats 20 a second
LONGEST_S: Final = 300.0  # half of what kube-scheduler's bindingTimeout is, unless an administrator sets it
HAND_OVER_S: Final = 5.0  # a pod looks for a place before the scheduler gets it
GATHER_S: Final = 2.0  # that a gang of a range of sizes waits for more pods after the last that came


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of one controller.

    Attributes:
        promise_s: How long chosen GPUs are kept for a pod that the scheduler does not bind (a tentative placement).
        unschedulable_s: How long they are kept after the scheduler reports that it finds no node for the pod.
        hand_over_s: How long a pod waits for a place before it is handed over to kube-scheduler, if the pod allows
            that.
        grace_s: How long a claim may exist without its pod before the controller deletes it.
    """

    promise_s: float = PROMISE_S
    unschedulable_s: float = UNSCHEDULABLE_S
    hand_over_s: float = HAND_OVER_S
    grace_s: float = 10.0

    def placed_s(self, pods: int) -> float:
        """Return how many seconds a gang has until all its claims are allocated.

        The time begins when the claims are created. ``pods`` is the number of the gang's pods.
        """
        return min(self.promise_s + MEMBER_S * pods, max(LONGEST_S, self.promise_s))
