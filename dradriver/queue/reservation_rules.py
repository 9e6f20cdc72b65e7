"""The rules of reservations: GPUs that are kept for workloads that have waited too long. No I/O.

A workload that requests many GPUs of one node could wait for ever while smaller workloads take each GPU that becomes
free. So a workload that has been blocked for longer than a bounded wait gets a set of GPUs reserved. It must be the
first such workload in the queue's order: there is at most one reservation for each partition and for each tenant. Other
workloads may run on these GPUs only if they end before the GPUs are needed.

The caller is ``features/reservations``. It passes the blocked workloads, and the sets that could be reserved with the
pods that use them. It also passes the time in seconds, of a clock that continues after a failover. A ``Reservation``
holds all state between two calls. The same input always gives the same answer.

A tenant's *partition* is the GPUs that the policies file gives to it.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from dradriver.api.policies import tenant_policies
from dradriver.counted import first_of

Gpu: TypeAlias = tuple[str, str]
"""Node and device."""

_LISTED: Final = 3  # pods that a reason names
_MOST_DOUBLED: Final = 8
_MINUTE_S: Final = 60.0
_DEFAULTS: Final = tenant_policies.Reservation()


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for all reservations.

    Attributes:
        bounded_wait_s: How long a workload must be blocked before it gets a reservation, seconds.
        idle_s: How long reserved GPUs may be idle: this many GPU-seconds for each GPU of the set.
        short_s: The longest time that other workloads may run on reserved GPUs while it is not known when the GPUs will
            be free, seconds.
        moves: How often a reservation that has cost too much moves to another place before it ends.
    """

    bounded_wait_s: float = _DEFAULTS.after_minutes * _MINUTE_S
    idle_s: float = _DEFAULTS.idle_minutes * _MINUTE_S
    short_s: float = _DEFAULTS.short_minutes * _MINUTE_S
    moves: int = _DEFAULTS.moves

    @classmethod
    def of(cls, section: tenant_policies.Reservation) -> Terms:
        """Return the rules of reservations from the section ``queue.reservation`` of the policies file."""
        return cls(
            bounded_wait_s=section.after_minutes * _MINUTE_S,
            idle_s=section.idle_minutes * _MINUTE_S,
            short_s=section.short_minutes * _MINUTE_S,
            moves=section.moves,
        )


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that waits and found no place.

    Attributes:
        who: Its name (``PendingWorkload.who``).
        tenant: Its tenant.
        partition: The partition in which it may be placed. No other partition has its nodes.
        since: When it first found no place, or when the last reservation of its tenant failed, if that was later;
            seconds.
        failed: How many reservations of its tenant have failed and still count (``ReservationWaits.failed``).
        priority: Its priority.
    """

    who: str
    tenant: str = ""
    partition: str = ""
    since: float
    failed: int = 0
    priority: int = 0


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or gang that uses GPUs of a set.

    Attributes:
        who: Its name, for people.
        gpus: How many GPUs of the set it uses.
        ends_at: When these GPUs are free at the latest: its declared end, or the end of its grace period if it is
            terminating. None if it may run without end.
        work_gpu_s: If it may run without end, the GPU-seconds that it is expected to need; see ``expected_work``.
    """

    who: str
    gpus: int
    ends_at: float | None
    work_gpu_s: float = 0.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of GPUs, free or in use, that could be reserved for a workload.

    Attributes:
        gpus: The GPUs of the set, sorted.
        uses: The pods and gangs that use some of these GPUs now. All other GPUs of the set are free.
    """

    gpus: tuple[Gpu, ...]
    uses: tuple[Use, ...] = ()

    @property
    def expected_at(self) -> float | None:
        """Return when all GPUs of the set are free at the latest, in seconds since the epoch.

        0 if they are free now. None while a pod without a known end uses some of them.
        """
        latest = 0.0
        for use in self.uses:
            if use.ends_at is None:
                return None
            latest = max(latest, use.ends_at)
        return latest


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that are kept for a waiting workload.

    Attributes:
        who: The name of the workload.
        tenant: The tenant of the workload.
        partition: The partition of the GPUs.
        gpus: The GPUs, in order.
        expected_at: When all these GPUs are free at the latest, seconds. None while a pod without a known end uses
            some.
        endless: The names of the pods without a known end.
        idle_gpu_s: GPU-seconds that these GPUs have been idle for the workload until ``counted_at``.
        counted_at: The time until which ``idle_gpu_s`` is counted, seconds.
        moved: How often the reservation has moved to other GPUs because it cost too much.
        priority: The priority of the workload.
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
    """The next step for a reservation: keep it, move it to other GPUs, or end it."""

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
    reservation of the first one has ended.

    Args:
        blocked: The blocked workloads, in the queue's order.
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
    """Return whether no reservation may be made in a partition, because one failed lately.

    The pause is as long as the wait before a workload gets a reservation (``bounded_wait_s``). Without a pause the next
    workload would get a reservation at once, and one reservation after another would keep GPUs idle.

    Args:
        since: When the last reservation in the partition failed, seconds.
        failed: How many reservations in the partition have failed.
        terms: The rules of the policies.
        now: The time, seconds.
    """
    return failed > 0 and now < since + terms.bounded_wait_s


def due_at(blocked: Blocked, terms: Terms) -> float:
    """Return when a blocked workload may get a reservation.

    The wait after ``Blocked.since`` is ``terms.bounded_wait_s``. It doubles, at most 8 times, with each failed
    reservation of the workload's tenant. For example, a workload may need all GPUs of a node, and a pod without end
    uses one of them. Without the longer waits, its reservations would again and again keep the other GPUs idle.
    """
    wait_s: float = terms.bounded_wait_s * 2.0 ** min(blocked.failed, _MOST_DOUBLED)
    return blocked.since + wait_s


def expected_work(gpus: int, running_s: float) -> float:
    """Return the GPU-seconds that a pod without a known end will probably need.

    These are as many as it has used. Durations have long tails: a tenth of the jobs lasts ten times the median and
    more. So a pod that has run for long is likely to run for long. With P(longer than t) ~ 1/t, half of the pods that
    reached t end before 2t.

    Args:
        gpus: The number of its GPUs.
        running_s: How long it has run, seconds.
    """
    return gpus * max(running_s, 1.0)


def readiness(candidate: Candidate, now: float) -> tuple[int, float, float]:
    """Return a sort key for sets that could be reserved. The lowest is the best.

    If all pods on the set have a known end, the key is 0, the latest of these ends, and the cost. The cost is the
    GPU-seconds that GPUs of the set are idle until the latest end: ``sum(gpus * (latest end - own end))``. Free GPUs
    are idle from now on.

    If some pods have no known end, the key is 1, their expected work in GPU-seconds, and 0.

    Example at time 0, for sets of 2 GPUs. If one GPU is in use until 60 and the other is free, the cost is 60
    GPU-seconds. If both are in use until 60, the cost is 0, and this set is preferred. A set that is free at 50 is
    preferred to both.
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
    """Return the set with the lowest ``readiness``; None without candidates.

    Among equal sets, the first one by its GPUs is returned.
    """
    return min(candidates, key=lambda candidate: (readiness(candidate, now), candidate.gpus), default=None)


def reserve(blocked: Blocked, candidate: Candidate, now: float) -> Reservation:
    """Return a new reservation: the GPUs of ``candidate`` for a blocked workload, from ``now`` on."""
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
    """Return the reservation with another set of GPUs.

    Args:
        reservation: The reservation.
        candidate: The other set of GPUs.
        now: Seconds since the epoch.
        for_cost: Whether it moves because its GPUs were idle for too long. Then its idle time begins at 0, and the move
            is counted.
    """
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
    """Return the reservation with new ``expected_at`` and ``endless``, from the present users of its GPUs.

    Args:
        reservation: The reservation.
        here: The reserved GPUs, with the pods that use them now.
    """
    endless = tuple(_endless(here))
    if (here.expected_at, endless) == (reservation.expected_at, reservation.endless):
        return reservation
    return msgspec.structs.replace(reservation, expected_at=here.expected_at, endless=endless)


def counted(reservation: Reservation, idle: int, now: float) -> Reservation:
    """Return the reservation with the idle time since ``counted_at`` added.

    Args:
        reservation: The reservation.
        idle: How many of its GPUs were idle in this time.
        now: Seconds since the epoch.
    """
    cost = idle * max(now - reservation.counted_at, 0.0)
    return msgspec.structs.replace(reservation, idle_gpu_s=reservation.idle_gpu_s + cost, counted_at=now)


def runs_out_at(reservation: Reservation, idle: int, terms: Terms) -> float | None:
    """Return when the idle time of a reservation reaches its limit if ``idle`` GPUs stay idle.

    ``terms`` has the limit of the idle time. None if no GPU is idle, because the idle time then does not grow.
    """
    left = terms.idle_s * len(reservation.gpus) - reservation.idle_gpu_s
    return None if idle == 0 else reservation.counted_at + max(left, 0.0) / idle


def has_used_up(reservation: Reservation, terms: Terms) -> bool:
    """Return whether a reservation's idle time has reached its limit.

    Then the reservation must move or end. A timer calls this at ``runs_out_at``, just when the limit in ``terms`` is
    reached. By rounding errors the idle time can then be a little below the limit. So a time just below the limit
    counts as reached.
    """
    return reservation.idle_gpu_s >= terms.idle_s * len(reservation.gpus) * (1 - 1e-9)


def may_run(reservation: Reservation, terms: Terms, now: float, *, ends_at: float | None) -> bool:
    """Return whether another workload may run on reserved GPUs.

    It may only if it ends before they are needed. It makes no difference whether the other workload can be preempted:
    its author can prevent the preemption, for example by a disruption budget.

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
    """Return whether a waiting workload may use reserved GPUs.

    The workload may if the reservation is for it, if its priority is higher, or if it ends soon enough (``may_run``).

    A workload of the same priority may not, even if its tenant has a smaller share. Shares change with each placement.
    So a reservation that yields to any tenant with a smaller share would limit no wait.

    Args:
        reservation: The reservation of the GPUs.
        terms: The rules of the policies.
        now: Seconds since the epoch.
        who: The workload, as ``PendingWorkload.who``.
        priority: Its priority.
        ends_at: When the workload ends at the latest if it begins now; None if it declares no end.
    """
    if who == reservation.who or priority > reservation.priority:
        return True
    return may_run(reservation, terms, now, ends_at=ends_at)


def latest_end(reservation: Reservation, terms: Terms, now: float) -> float:
    """Return when other workloads on the reserved GPUs must have ended, in seconds since the epoch.

    If all pods that use the GPUs now have a known end, this is the latest of these ends. If not, a workload that begins
    now may run for ``Terms.short_s``. Such short workloads have a known end. So when the pods without a known end are
    gone, the latest end does not move any more.
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
    """Return whether to keep, move or end a reservation, and why.

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
    """Return the text that tells people why a workload with a reservation waits. Times are UTC."""
    nodes = list(dict.fromkeys(node for node, _ in reservation.gpus))
    where = f"{len(reservation.gpus)} GPUs on {_list(nodes)} are reserved for this workload"
    if reservation.endless:
        return f"{where}. It is not known when they are free: no max-duration on {_list(reservation.endless)}."
    if not reservation.expected_at:
        return f"{where} and free."
    at = datetime.datetime.fromtimestamp(reservation.expected_at, datetime.UTC)
    return f"{where} and free by {at:%Y-%m-%d %H:%M} UTC."


def _endless(candidate: Candidate) -> Iterator[str]:
    return (use.who for use in candidate.uses if use.ends_at is None)


def _list(names: Sequence[str]) -> str:
    return first_of(names, _LISTED)
