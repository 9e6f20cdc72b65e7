"""How long a leader waits for the scheduler, for pods and for claims. ``controller/main.py`` reads it from options."""

from __future__ import annotations

import msgspec

from dradriver.controller.steps.next_step import PROMISE_S, UNSCHEDULABLE_S
from dradriver.queue.units import HAND_OVER_S


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of one controller.

    Attributes:
        promise_s: How long a tentative placement lasts if the scheduler does not bind the pod.
        unschedulable_s: The same once the scheduler says that it finds no node for the pod.
        hand_over_s: How long a pod waits for a place before kube-scheduler gets it, if the pod allows that.
        grace_s: How long a claim may outlive its pod.
    """

    promise_s: float = PROMISE_S
    unschedulable_s: float = UNSCHEDULABLE_S
    hand_over_s: float = HAND_OVER_S
    grace_s: float = 10.0
