"""Which workloads may use which reserved GPUs, and how reservations are written to the API and read back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from dradriver.api.claims import reservation_config_map
from dradriver.api.claims.pins import Device, Key
from dradriver.queue import reservation_rules
from dradriver.queue.limits import Limit
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.reservation_rules import Reservation, Terms

MOST_GPUS: Final = 8192  # of one reservation
_TOLD: Final = 8  # of those without an end


def key_of(who: str) -> Key:
    """Return the key of the pod or gang that a reservation is for (``PendingWorkload.who``)."""
    namespace, _, rest = who.partition("/")
    return namespace, rest.rpartition("/")[0]


def open_to(
    workload: PendingWorkload, held: Iterable[Reservation], terms: Terms, now: float, later_s: float = 0.0
) -> tuple[str, ...]:
    """Return whose reserved GPUs a workload may use that begins so many seconds from now.

    Raises:
        WordError: What it asks for cannot be read.
    """
    ends_at = now + later_s + workload.lasts_s if workload.lasts_s else None
    return tuple(
        each.who
        for each in held
        if reservation_rules.open_to(each, terms, now, who=workload.who, priority=-workload.order[0], ends_at=ends_at)
    )


class ReadReservations(Limit):
    """Reservations as they stand in the API, for programs that do not make any."""

    def __init__(self, held: Sequence[Reservation], terms: Terms) -> None:
        """Take these reservations, which hold by these terms."""
        self._held, self._terms = held, terms

    def whose(self, workload: PendingWorkload, later_s: float) -> tuple[str, ...]:
        """Return for whom GPUs are reserved that a workload may have if it begins so many seconds from now.

        Raises:
            WordError: What it requests cannot be read.
        """
        return open_to(workload, self._held, self._terms, time.time(), later_s)


def read(written: reservation_config_map.Written) -> list[tuple[Reservation, int]]:
    """Return the reservations that stand in the API, each with how many of its GPUs were idle then.

    One a partition, one a tenant and each GPU once, whatever somebody has made of it.
    """
    found: list[tuple[Reservation, int]] = []
    taken, partitions, tenants = set[Device](), set[str](), set[str]()
    for kept in written.kept:
        gpus = tuple(sorted({(node, device) for node, devices in kept.gpus.items() for device in devices}))
        if not 0 < len(gpus) <= MOST_GPUS or not taken.isdisjoint(gpus) or kept.who.count("/") < 2:
            continue
        if kept.partition in partitions or kept.tenant in tenants:
            continue
        taken.update(gpus)
        partitions.add(kept.partition)
        tenants.add(kept.tenant)
        held = Reservation(
            who=kept.who, tenant=kept.tenant, partition=kept.partition, gpus=gpus, expected_at=kept.expected_at,
            endless=tuple(kept.endless), idle_gpu_s=kept.idle_gpu_s, counted_at=kept.counted_at, moved=kept.moved,
            priority=kept.priority,
        )  # fmt: skip
        found.append((held, kept.idle))
    return found


def write(held: Reservation, idle: int) -> reservation_config_map.Kept:
    """Return a reservation as it is written to the API, with how many of its GPUs are idle."""
    gpus: dict[str, list[str]] = {}
    for node, device in held.gpus:
        gpus.setdefault(node, []).append(device)
    return reservation_config_map.Kept(
        who=held.who, tenant=held.tenant, partition=held.partition, gpus=gpus, expected_at=held.expected_at,
        endless=list(held.endless[:_TOLD]), idle_gpu_s=held.idle_gpu_s, counted_at=held.counted_at, moved=held.moved,
        priority=held.priority, idle=idle,
    )  # fmt: skip
