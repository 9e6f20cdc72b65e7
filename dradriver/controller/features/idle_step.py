"""What is to be done about a workload whose pods' GPUs do nothing: nothing, warn it, wait, or end it.

It is ended only if all of its pods ask for it, each for its own time, if all were warned long enough before, and if
the agent of each node has said anew, after that warning, that their GPUs still do nothing. How long that has been is
told by the agent's own clock, and that it was said just now by this process's: no clock is compared with another's.
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
    """What comes next."""

    NOTHING = enum.auto()
    TAKE_BACK = enum.auto()  # the warning, for a pod works again
    WARN = enum.auto()
    WAIT = enum.auto()  # it is warned
    UNHEARD = enum.auto()  # its time is over, and an agent has not said anew that it is idle
    END = enum.auto()


class Quiet(msgspec.Struct, frozen=True):
    """One pod of a workload.

    Attributes:
        idle: What its claim says; None where it works, or nobody knows.
        timeout_s: After how long it is to be ended; None where it does not say so.
        end: When it is to be ended, as its claim says, in seconds since the epoch; None where it was not warned.
        heard_s: For how long what its claim says is known here without having been said anew; None where it was not
            said since this process knows the claim.
    """

    idle: Idle | None
    timeout_s: int | None
    end: float | None
    heard_s: float | None

    @property
    def over(self) -> bool:
        """Whether it has been idle for as long as it wants to be, as the agent's own clock says."""
        return (
            self.idle is not None and self.timeout_s is not None and self.idle.seen - self.idle.since >= self.timeout_s
        )


def step(pods: Iterable[Quiet], now: float) -> Step:
    """Return the next step for a workload with idle pods; ``now`` is in seconds since the epoch."""
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
    """Return when a workload that is warned now for being idle is to be ended, in seconds since the epoch."""
    dues = [one.idle.since + one.timeout_s for one in pods if one.idle is not None and one.timeout_s is not None]
    return max((now + WARN_S, *dues))
