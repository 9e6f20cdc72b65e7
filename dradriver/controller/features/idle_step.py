"""Decides the next step for a workload with idle GPUs: do nothing, warn, wait or end it. ``IdlePods`` calls it.

A workload is ended only if all of these hold:

1. All its pods request an idle timeout. Each pod has its own.
2. All pods were warned long enough before.
3. After the warning, each node's agent has confirmed again that the GPUs are idle.

The agent's clock measures how long a GPU is idle. This process's clock measures the age of a confirmation. So clocks
of two machines are never compared.

A *workload* is a gang, all pods of an owner that can be suspended (such as a Job), or a single pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from dradriver.api.claims.idleness import Idle

WARN_S: Final = 600.0  # between the warning and the end
FRESH_S: Final = 150.0  # for which what an agent said holds: it is asked to say it each minute


class Step(enum.Enum):
    """The next step for a workload with idle pods."""

    NOTHING = enum.auto()
    TAKE_BACK = enum.auto()  # the warning, for a pod works again
    WARN = enum.auto()
    WAIT = enum.auto()  # it is warned
    UNHEARD = enum.auto()  # its time is over, and an agent has not said anew that it is idle
    END = enum.auto()


class Quiet(msgspec.Struct, frozen=True):
    """The idle state of one pod of a workload.

    Attributes:
        idle: The idle period that the node agent wrote on the pod's claim; None if the pod works, or if nothing is
            known.
        timeout_s: After how many idle seconds the pod must end; None if it requests no timeout.
        end: When the pod must end according to the warning on its claim, in seconds since the epoch; None if the pod
            was not warned.
        heard_s: How many seconds ago this process last saw the agent confirm that the claim is idle; None if it never
            did.
    """

    idle: Idle | None
    timeout_s: int | None
    end: float | None
    heard_s: float | None

    @property
    def over(self) -> bool:
        """Return whether the pod has been idle for at least its timeout.

        Only times by the node agent's clock are compared: the beginning of the idle period and the last confirmation.
        """
        return (
            self.idle is not None and self.timeout_s is not None and self.idle.seen - self.idle.since >= self.timeout_s
        )


def step(pods: Iterable[Quiet], now: float) -> Step:
    """Return the next step for a workload with idle pods.

    ``pods`` has the state of each pod of the workload. ``now`` is in seconds since the epoch.
    """
    every = tuple(pods)
    warned = [one.end for one in every if one.end is not None]
    dues = [
        one.idle.since + max(one.timeout_s, WARN_S)
        for one in every
        if one.idle is not None and one.timeout_s is not None
    ]
    if not every or len(dues) < len(every) or now < max(dues) - WARN_S:
        return Step.TAKE_BACK if warned else Step.NOTHING
    if len(warned) < len(every):
        return Step.WARN
    if now < max(warned):
        return Step.WAIT
    heard = all(one.over and one.heard_s is not None and one.heard_s <= FRESH_S for one in every)
    return Step.END if heard else Step.UNHEARD


def end_of(pods: Iterable[Quiet], now: float) -> float:
    """Return when a workload that is warned now must end, in seconds since the epoch.

    This is when the last of its pods reaches its timeout. If that is less than ``WARN_S`` seconds from now, it is
    ``WARN_S`` seconds from now.
    """
    dues = [one.idle.since + one.timeout_s for one in pods if one.idle is not None and one.timeout_s is not None]
    return max((now + WARN_S, *dues))
