"""Which workloads may use reserved GPUs, and the form in which reservations are stored in the API.

``features/reservations`` and the CLI call it.

A *reservation* is a set of GPUs that the controller keeps for a workload that has waited too long.
"""

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
    """Return the key of the pod or gang that a reservation is for.

    Args:
        who: The name of the workload in the reservation (``PendingWorkload.who``).
    """
    namespace, _, rest = who.partition("/")
    return namespace, rest.rpartition("/")[0]


def open_to(
    workload: PendingWorkload, held: Iterable[Reservation], terms: Terms, now: float, later_s: float = 0.0
) -> tuple[str, ...]:
    """Return the names of the reservations whose GPUs a workload may use.

    Args:
        workload: The workload.
        held: All reservations.
        terms: The rules for reservations, from the policies.
        now: Seconds since the epoch.
        later_s: In how many seconds the workload would begin to use the GPUs.

    Raises:
        WordError: The workload's request cannot be read.
    """
    ends_at = now + later_s + workload.lasts_s if workload.lasts_s else None
    return tuple(
        each.who
        for each in held
        if reservation_rules.open_to(each, terms, now, who=workload.who, priority=-workload.order[0], ends_at=ends_at)
    )


class ReadReservations(Limit):
    """The limit by the reservations that are stored in the API.

    The class is for programs that read reservations but do not make any, such as the CLI.
    """

    def __init__(self, held: Sequence[Reservation], terms: Terms) -> None:
        """Make a limit from these reservations and the rules ``terms``."""
        self._held, self._terms = held, terms

    def whose(self, workload: PendingWorkload, later_s: float) -> tuple[str, ...]:
        """Return the names of the reservations whose GPUs a workload may use.

        These are its own reservation, those for workloads of a lower priority, and those whose GPUs are needed only
        after the workload has ended (``reservation_rules.open_to``).

        Args:
            workload: The workload.
            later_s: In how many seconds the workload would begin to use the GPUs. Its end is that much later.

        Raises:
            WordError: The workload's request cannot be read.
        """
        return open_to(workload, self._held, self._terms, time.time(), later_s)


def read(written: reservation_config_map.Written) -> list[tuple[Reservation, int]]:
    """Return the reservations that are stored in the API, with their idle GPUs.

    Each has its number of idle GPUs at the time when it was stored. If the ConfigMap was changed by hand, only the
    first reservation of each partition, of each tenant and of each GPU counts.

    Args:
        written: The content of the ConfigMap.
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
    """Return a reservation in the form in which it is stored in the API.

    Args:
        held: The reservation.
        idle: How many of its GPUs are idle now.
    """
    gpus: dict[str, list[str]] = {}
    for node, device in held.gpus:
        gpus.setdefault(node, []).append(device)
    return reservation_config_map.Kept(
        who=held.who, tenant=held.tenant, partition=held.partition, gpus=gpus, expected_at=held.expected_at,
        endless=list(held.endless[:_TOLD]), idle_gpu_s=held.idle_gpu_s, counted_at=held.counted_at, moved=held.moved,
        priority=held.priority, idle=idle,
    )  # fmt: skip
