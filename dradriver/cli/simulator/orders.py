"""The queue orders that are compared: which job is tried next, and whether other jobs start if it finds no place.

All orders start a job with all of its pods or not at all. No order ends a job for another.

* ``fifo``: the oldest first. A job without a place is skipped until GPUs become free.
* ``strict fifo``: the oldest first. While it finds no place, no other job starts.
* ``easy``: EASY backfilling (Lifka 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001). It is FIFO with a reservation
  for the first job without a place. By the declared ends, the reserved set is the first one that becomes free. It is
  chosen again at each event. Other jobs start if they do not use this set, or end before it is needed. Without declared
  durations only jobs that do not use the set start.
* ``kueue strict``, ``kueue best effort``: Kueue's StrictFIFO and BestEffortFIFO, with a ClusterQueue for each tenant,
  all in one cohort. The nominal quota is the tenant's weight of the GPUs. All of it may be borrowed, and no job is
  preempted. The heads of all queues are tried: first heads within their quota, then heads that borrow, each by age. A
  head without a place blocks only its own queue (strict), or is skipped until GPUs become free (best effort). With one
  tenant there is no borrowing, and they are ``strict fifo`` and ``fifo``.
* ``ours``: the queue of this driver. The oldest job of the tenant with the least GPU time for its weight is first
  (``queue.tenant_shares``). A job without a place is skipped. The first job that is blocked for longer than a bounded
  wait gets GPUs reserved (``queue.reservation_rules``). All jobs have one priority here.
* ``fair easy``, ``reserved fifo``: they separate the effect of shares from the effect of reservations. ``fair easy`` is
  ``easy`` with the job order of ``ours``. ``reserved fifo`` reserves as ``ours`` does, with the job order of ``fifo``.
  With one tenant they are ``easy`` and ``ours``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.queue.reservation_rules import Terms


class Turn(enum.Enum):
    """The rule that picks the next job among the oldest jobs of all tenants: by age, quota or share of GPU time.

    Among equals the oldest job is chosen.
    """

    AGE = "age"
    QUOTA = "quota"
    SHARE = "share"


class NoPlace(enum.Enum):
    """Which jobs are tried after a job without a place: all, none, or other tenants' jobs."""

    GO_ON = "the others are tried"
    STOP = "nobody else starts"
    STOP_TENANT = "nobody else of its tenant starts"


class Backfilling(msgspec.Struct, frozen=True, kw_only=True):
    """How other jobs start if a job finds no place.

    Attributes:
        no_place: Which other jobs are tried after a job without a place.
        terms: When GPUs are reserved for a blocked job, and for how long; None without reservations.
        replanned: Whether a set is reserved for the first job in the queue, and chosen again at each event.
    """

    no_place: NoPlace = NoPlace.GO_ON
    terms: Terms | None = None
    replanned: bool = False


class Order(msgspec.Struct, frozen=True):
    """How waiting jobs are served. Any turn can be combined with any backfilling.

    Attributes:
        turn: The rule that chooses the next job.
        backfilling: The rules for other jobs if that job finds no place.
    """

    turn: Turn
    backfilling: Backfilling


_PASS_BY: Final = Backfilling()
_STOP: Final = Backfilling(no_place=NoPlace.STOP)
_STOP_TENANT: Final = Backfilling(no_place=NoPlace.STOP_TENANT)
_EASY: Final = Backfilling(terms=Terms(bounded_wait_s=0.0, idle_s=math.inf, short_s=0.0), replanned=True)
_RESERVE: Final = Backfilling(terms=Terms())

ORDERS: Final[Mapping[str, Order]] = {
    "fifo": Order(Turn.AGE, _PASS_BY),
    "strict fifo": Order(Turn.AGE, _STOP),
    "easy": Order(Turn.AGE, _EASY),
    "kueue strict": Order(Turn.QUOTA, _STOP_TENANT),
    "kueue best effort": Order(Turn.QUOTA, _PASS_BY),
    "fair easy": Order(Turn.SHARE, _EASY),
    "reserved fifo": Order(Turn.AGE, _RESERVE),
    "ours": Order(Turn.SHARE, _RESERVE),
}
SAME_ALONE: Final[Mapping[str, str]] = {
    "kueue strict": "strict fifo",
    "kueue best effort": "fifo",
    "fair easy": "easy",
    "reserved fifo": "ours",
}
"""Orders that are others of these where there is one tenant."""
