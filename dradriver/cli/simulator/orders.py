"""The orders that are compared: whose turn it is, and how others go on when one finds no place.

All start a job with all of its pods or not at all, and none ends a job for another.

* ``fifo``: the oldest first; who finds no place is passed by, until GPUs become free.
* ``strict fifo``: the oldest first; while it finds no place nobody else starts.
* ``easy``: EASY backfilling (Lifka 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001): FIFO, and the first that finds
  no place gets the set that is free first by declared ends reserved, planned anew at each event. Others start if they
  do not touch it or end before that time. Without declared durations only not touching is left.
* ``kueue strict``, ``kueue best effort``: Kueue's StrictFIFO and BestEffortFIFO, a ClusterQueue a tenant, all of them
  one cohort: the tenant's weight of the GPUs is its nominal quota, all may be borrowed, nobody is preempted. The heads
  of all queues are tried in turn, those that stay within their quota before those that borrow, then the oldest. A head
  that finds no place holds up its own queue alone (strict), or is put aside until something is free (best effort).
  With one tenant nobody borrows, and they are ``strict fifo`` and ``fifo``.
* ``ours``: the queue of this driver: the tenant that has had least for its weight (``queue.tenant_shares``), of its
  jobs the oldest. A job that finds no place is passed by. The first that is blocked for longer than a bounded wait gets
  GPUs reserved (``queue.reservation_rules``). All jobs have one priority here.
* ``fair easy``, ``reserved fifo``: to tell what shares do from what reservations do. The one is ``easy`` in the line of
  ``ours``, the other reserves as ``ours`` does in the line of ``fifo``. With one tenant they are ``easy`` and ``ours``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.queue.reservation_rules import Terms


class Turn(enum.Enum):
    """Whose turn it is among the tenants' oldest jobs; of equals it is the oldest one's."""

    AGE = "age"
    QUOTA = "quota"
    SHARE = "share"


class NoPlace(enum.Enum):
    """What becomes of the others when one finds no place."""

    GO_ON = "the others are tried"
    STOP = "nobody else starts"
    STOP_TENANT = "nobody else of its tenant starts"


class Backfilling(msgspec.Struct, frozen=True, kw_only=True):
    """How others go on when one finds no place.

    Attributes:
        no_place: What becomes of them.
        terms: Of reservations; None without any.
        replanned: Whether the first in turn has a set reserved that is chosen anew at each event.
    """

    no_place: NoPlace = NoPlace.GO_ON
    terms: Terms | None = None
    replanned: bool = False


class Order(msgspec.Struct, frozen=True):
    """How waiting jobs are served: any turn goes with any backfilling.

    Attributes:
        turn: Whose turn it is.
        backfilling: How others go on when that one finds no place.
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
