"""The rules of reservations: GPUs that are kept for workloads that wait for too long. No I/O.

Whoever is asked for many GPUs of one node may wait for ever while smaller requests take each GPU that becomes free. So
the first, by the queue's order, that has been blocked for longer than a bounded wait gets a set of GPUs reserved: one
reservation a partition, one a tenant. Others run on these GPUs only if they are gone by then.

The caller gives what is so: who waits, the sets that could be reserved with whoever is on them, and the time, in
seconds of one clock that outlives a failover. A ``Reservation`` holds all that is to be kept between two questions.
Same input, same answer.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from dradriver.api.policies import tenant_policies

Gpu: TypeAlias = tuple[str, str]
"""Node and device."""

_LISTED: Final = 3  # pods that a reason names
_MOST_DOUBLED: Final = 8
_MINUTE_S: Final = 60.0
_DEFAULTS: Final = tenant_policies.Reservation()


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all reservations.

    Attributes:
        bounded_wait_s: For how long one may be blocked before it gets a reservation, seconds.
        idle_s: For how long a place may stand idle for one: so many GPU-seconds for each of its GPUs.
        short_s: How long those may run on reserved GPUs, at most, while nobody knows when the others will end.
        moves: How often one that has cost too much moves to another place before it ends.
    """

    bounded_wait_s: float = _DEFAULTS.after_minutes * _MINUTE_S
    idle_s: float = _DEFAULTS.idle_minutes * _MINUTE_S
    short_s: float = _DEFAULTS.short_minutes * _MINUTE_S
    moves: int = _DEFAULTS.moves

    @classmethod
    def of(cls, section: tenant_policies.Reservation) -> Terms:
        """Return the terms of reservations that a policies file sets."""
        return cls(
            bounded_wait_s=section.after_minutes * _MINUTE_S,
            idle_s=section.idle_minutes * _MINUTE_S,
            short_s=section.short_minutes * _MINUTE_S,
            moves=section.moves,
        )


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits and found no place.

    Attributes:
        who: Its name.
        tenant: Whose it is.
        partition: Where it may be placed: nodes that no other partition has.
        since: When it first found none, or when its last reservation came to nothing, seconds.
        failed: How many reservations of its came to nothing.
        priority: Its priority.
    """

    who: str
    tenant: str = ""
    partition: str = ""
    since: float
    failed: int = 0
    priority: int = 0


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who has GPUs of a set.

    Attributes:
        who: Its name, for people.
        gpus: How many of the set.
        ends_at: When they are free at the latest: its declared end, or that of its grace where it was told to end;
            None for one that may run without end.
        work_gpu_s: What an endless one is expected to need yet; see ``expected_work``.
    """

    who: str
    gpus: int
    ends_at: float | None
    work_gpu_s: float = 0.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set that would do for one that waits, free or not.

    Attributes:
        gpus: All of the set, in order.
        uses: Who is on them now; what is left is free.
    """

    gpus: tuple[Gpu, ...]
    uses: tuple[Use, ...] = ()

    @property
    def expected_at(self) -> float | None:
        """Return when a set to reserve is free at the latest, 0 for at once; None while an endless pod is on it."""
        latest = 0.0
        for use in self.uses:
            if use.ends_at is None:
                return None
            latest = max(latest, use.ends_at)
        return latest


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that are kept for one that waits.

    Attributes:
        who: For whom.
        tenant: Whose it is.
        partition: Where they are.
        gpus: The GPUs, in order.
        expected_at: When they are all free at the latest, seconds; None while an endless one is on them.
        endless: Who those are.
        idle_gpu_s: What has stood idle for it at this place until ``counted_at``, GPU-seconds.
        counted_at: Until when that is counted, seconds.
        moved: How often it has moved because it cost too much.
        priority: Of whom it is for.
    """

    who: str
    tenant: str
    partition: str
    gpus: tuple[Gpu, ...]
    expected_at: float | None
    endless: tuple[str, ...]
    idle_gpu_s: float
    counted_at: float
    moved: int = 0
    priority: int = 0


class Step(enum.Enum):
    """What is to be done with a reservation."""

    KEEP = "keep"
    MOVE = "move"
    END = "end"


def due(
    blocked: Iterable[Blocked],
    reservations: Collection[Reservation],
    terms: Terms,
    now: float,
    *,
    resting: Collection[str] = (),
) -> list[Blocked]:
    """Return the blocked workloads that get a reservation now, in the queue's order.

    There is at most one reservation for each partition and for each tenant. A tenant's second workload waits until the
    first one has begun.

    Args:
        blocked: The blocked workloads.
        reservations: The existing reservations.
        terms: The rules of the policies.
        now: Seconds since the epoch.
        resting: Partitions in which reservations pause; see ``rests``.
    """
    partitions = {*resting, *(reservation.partition for reservation in reservations)}
    tenants = {reservation.tenant for reservation in reservations}
    due_workloads = []
    for workload in blocked:
        if workload.partition in partitions or workload.tenant in tenants or now < due_at(workload, terms):
            continue
        partitions.add(workload.partition)
        tenants.add(workload.tenant)
        due_workloads.append(workload)
    return due_workloads


def rests(since: float, failed: int, terms: Terms, now: float) -> bool:
    """Return whether reservations pause in a partition because one there failed; the pause is the bounded wait.

    Without a pause the next workload would get a reservation at once, and GPUs would stand idle for one after another.
    """
    return failed > 0 and now < since + terms.bounded_wait_s


def due_at(blocked: Blocked, terms: Terms) -> float:
    """Return when a workload may get a reservation: twice as late after each reservation that failed.

    Else a workload that needs all GPUs, one of which is in use without end, would let the others stand idle again and
    again.
    """
    wait_s: float = terms.bounded_wait_s * 2.0 ** min(blocked.failed, _MOST_DOUBLED)
    return blocked.since + wait_s


def expected_work(gpus: int, running_s: float) -> float:
    """Return how much longer a pod without an end needs reserved GPUs, in GPU-seconds: as much as it has had.

    Durations have long tails (a tenth of the jobs lasts ten times the median and more), so that what has run for long
    is likely to go on for long: with P(longer than t) ~ 1/t half of those that reached t end before 2t.
    """
    return gpus * max(running_s, 1.0)


def readiness(candidate: Candidate, now: float) -> tuple[int, float, float]:
    """Return the sort key of a set to reserve, the least is the best: has endless pods, time until free, cost.

    Without endless pods the time is the latest declared end. The cost is the GPU-seconds that stand idle until then:
    ``sum(gpus * (latest end - own end))``, and free GPUs stand idle from now on. With endless pods the time is their
    expected work, and the cost is 0.

    Worked example at 0, for a set of 2 GPUs. One GPU in use until 60 costs 60 GPU-seconds. Both in use until 60 cost
    none, and are preferred. A set that is free at 50 is preferred to both.
    """
    latest_end = candidate.expected_at
    if latest_end is None:
        return 1, sum(use.work_gpu_s for use in candidate.uses if use.ends_at is None), 0.0
    latest_end = max(latest_end, now)
    free_gpus = len(candidate.gpus) - sum(use.gpus for use in candidate.uses)
    idle_of_free = free_gpus * (latest_end - now)
    idle_of_used = sum(use.gpus * (latest_end - max(use.ends_at or 0.0, now)) for use in candidate.uses)
    return 0, latest_end, idle_of_free + idle_of_used


def best(candidates: Iterable[Candidate], now: float) -> Candidate | None:
    """Return the best set to reserve: that of the least ``readiness``, then the first by its GPUs."""
    return min(candidates, key=lambda candidate: (readiness(candidate, now), candidate.gpus), default=None)


def reserve(blocked: Blocked, candidate: Candidate, now: float) -> Reservation:
    """Return the reservation of a set for a blocked workload."""
    return Reservation(
        who=blocked.who,
        tenant=blocked.tenant,
        partition=blocked.partition,
        gpus=candidate.gpus,
        expected_at=candidate.expected_at,
        endless=tuple(_endless(candidate)),
        idle_gpu_s=0.0,
        counted_at=now,
        priority=blocked.priority,
    )


def move(reservation: Reservation, candidate: Candidate, now: float, *, for_cost: bool = True) -> Reservation:
    """Return a reservation at another place, with a new account."""
    return msgspec.structs.replace(
        reservation,
        gpus=candidate.gpus,
        expected_at=candidate.expected_at,
        endless=tuple(_endless(candidate)),
        idle_gpu_s=0.0 if for_cost else reservation.idle_gpu_s,
        counted_at=now,
        moved=reservation.moved + for_cost,
    )


def seen(reservation: Reservation, here: Candidate) -> Reservation:
    """Update a reservation by the pods that are on the reserved GPUs now."""
    endless = tuple(_endless(here))
    if (here.expected_at, endless) == (reservation.expected_at, reservation.endless):
        return reservation
    return msgspec.structs.replace(reservation, expected_at=here.expected_at, endless=endless)


def counted(reservation: Reservation, idle: int, now: float) -> Reservation:
    """Add the idle time of reserved GPUs to the reservation's account."""
    cost = idle * max(now - reservation.counted_at, 0.0)
    return msgspec.structs.replace(reservation, idle_gpu_s=reservation.idle_gpu_s + cost, counted_at=now)


def runs_out_at(reservation: Reservation, idle: int, terms: Terms) -> float | None:
    """Return when a reservation's account reaches its bound if so many GPUs stay idle; None for never."""
    left = terms.idle_s * len(reservation.gpus) - reservation.idle_gpu_s
    return None if idle == 0 else reservation.counted_at + max(left, 0.0) / idle


def has_used_up(reservation: Reservation, terms: Terms) -> bool:
    """Return whether a reservation's account has reached its bound, so that the reservation moves or ends.

    The timer rings at ``runs_out_at``, just when the bound is reached. The tolerance is for rounding errors: without it
    the account could be a little below the bound then, and the reservation would be kept.
    """
    return reservation.idle_gpu_s >= terms.idle_s * len(reservation.gpus) * (1 - 1e-9)


def may_run(reservation: Reservation, terms: Terms, now: float, *, ends_at: float | None) -> bool:
    """Return whether another workload may run on reserved GPUs: only if it ends before they are needed.

    That it could be preempted is not enough: its author can prevent that, for example by a disruption budget.

    Args:
        reservation: The reservation of the GPUs.
        terms: The rules of the policies.
        now: Seconds since the epoch.
        ends_at: When the workload ends at the latest if it begins now; None if it declares no end.
    """
    return ends_at is not None and ends_at <= latest_end(reservation, terms, now)


def open_to(
    reservation: Reservation, terms: Terms, now: float, *, who: str, priority: int, ends_at: float | None
) -> bool:
    """Return whether a waiting workload may use reserved GPUs: its own, with a higher priority, or for a short time.

    A workload of the same priority does not go first, whatever share its tenant has. Shares change with each placement.
    A reservation that yields to any tenant with a smaller share would bound no wait.

    Args:
        reservation: The reservation of the GPUs.
        terms: The rules of the policies.
        now: Seconds since the epoch.
        who: The workload, as ``PendingWorkload.who``.
        priority: Its priority.
        ends_at: As for ``may_run``.
    """
    if who == reservation.who or priority > reservation.priority:
        return True
    return may_run(reservation, terms, now, ends_at=ends_at)


def latest_end(reservation: Reservation, terms: Terms, now: float) -> float:
    """Return until when workloads that begin now may run on reserved GPUs, in seconds since the epoch.

    That is the end of the last pod that uses them now. While that is not known, short workloads may run. Once all pods
    have a known end, the last short one decides, and no new one may end later.
    """
    return now + terms.short_s if reservation.expected_at is None else reservation.expected_at


def judge(
    reservation: Reservation,
    *,
    current: Candidate,
    alternative: Candidate | None,
    terms: Terms,
    now: float,
    is_needed: bool = True,
    lost: Collection[Gpu] = (),
) -> tuple[Step, str]:
    """Return what to do with a reservation, and why.

    Args:
        reservation: The reservation. Its idle time is counted until now.
        current: The reserved GPUs, with the pods that use them.
        alternative: The best other set of GPUs; None if there is none.
        terms: The rules of the policies.
        now: Seconds since the epoch.
        is_needed: Whether its workload waits with the same request as before.
        lost: GPUs that the workload cannot have any more, because they or their nodes are broken or removed.
    """
    if not is_needed:
        return Step.END, "nobody waits for it any more"
    if lost and not set(lost).isdisjoint(reservation.gpus):
        return Step.END if alternative is None else Step.MOVE, "reserved GPUs are gone"

    most_idle_gpu_s = terms.idle_s * len(reservation.gpus)
    if not has_used_up(reservation, terms):
        return Step.KEEP, ""
    why = f"{reservation.idle_gpu_s:,.0f} GPU-seconds stood idle, at most {most_idle_gpu_s:,.0f} may"
    # The set with the smaller ``readiness`` is free earlier. ``moved``: how often the reservation cost too much before.
    is_alternative_better = alternative is not None and readiness(alternative, now) < readiness(current, now)
    can_move = is_alternative_better and reservation.moved < terms.moves
    return Step.MOVE if can_move else Step.END, why


def reason(reservation: Reservation) -> str:
    """Return the reason that a workload with a reservation is told; times are seconds since the epoch."""
    nodes = list(dict.fromkeys(node for node, _ in reservation.gpus))
    where = f"{len(reservation.gpus)} GPUs of {_list(nodes)} are reserved for it"
    if reservation.endless:
        return f"{where}; when they will be free is unknown: {_list(reservation.endless)} declares no max-duration"
    if not reservation.expected_at:
        return f"{where}, and free"
    at = datetime.datetime.fromtimestamp(reservation.expected_at, datetime.UTC)
    return f"{where}; they are free by {at:%Y-%m-%d %H:%M} UTC"


def _endless(candidate: Candidate) -> Iterator[str]:
    return (use.who for use in candidate.uses if use.ends_at is None)


def _list(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
