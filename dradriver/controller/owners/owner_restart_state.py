"""The state that ``OwnerRestarts`` keeps: requested restarts, and owners that are suspended.

To *restart* a gang is to end all its pods, so that their owner, such as a Job, creates them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.kube.resources import Resource


class RestartRequest(msgspec.Struct):
    """A request to restart a gang.

    Attributes:
        loss: A digest of the uids of the pods that must end. Requests with the same digest are the same restart.
        pods: The pods that must end; empty once there is an answer.
        reason: The text that is written on the owner.
        is_needed: Returns whether the restart is still needed; called before anything is written.
        at_once: Whether to suspend the owner even if many owners are suspended already.
        open: Whether there is no answer yet.
        answer: Why the gang cannot be restarted; empty if it can.
        since: When the answer was found, by the event loop's clock.
    """

    loss: str
    pods: Sequence[Pod]
    reason: str
    is_needed: Callable[[], bool] = lambda: True
    at_once: bool = False
    open: bool = True
    answer: str = ""
    since: float = 0.0


class SuspendedOwner(msgspec.Struct):
    """An owner that the controller has suspended and must resume."""

    resource: Resource
    name: str
    uid: str
    until: float  # when it is resumed even if it still has pods
    gang: Key | None  # the gang that an earlier leader suspended it for, from its record
    asks: dict[Key, RestartRequest]
    remaining: dict[Key, str] | None = None  # uids of its pods that have not ended; None before the first look
