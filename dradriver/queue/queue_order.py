"""The order of all waiting workloads, as it would be if each of them found a place.

The CLI and the page show it.

A tenant's *share* is its GPU time divided by its weight. The tenant with the smallest share is served first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from dradriver.allocator.request import Mig, Request, Share, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import ALL_CORES, Key
from dradriver.queue.equivalence_classes import Order
from dradriver.queue.namespace_tenants import ALL, Tenants
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.tenant_turns import turn_of


class Standing(NamedTuple):
    """A workload with its position in the queue.

    Attributes:
        workload: The workload.
        tenant: Its tenant.
        gpus: The number of GPUs that it requests. For fractions of GPUs see ``gpus_of``.
        share: The GPU-seconds of its tenant divided by the tenant's weight, at the time when the workload is served.
    """

    workload: PendingWorkload
    tenant: str
    gpus: float
    share: float


def line(workloads: Iterable[PendingWorkload], tenants: Tenants) -> list[Standing]:
    """Return waiting workloads in the order in which the controller would serve them.

    Each served workload raises the share of its tenant, which the order takes into account.
    """
    waiting: dict[str, list[tuple[Order, Key, PendingWorkload]]] = {}
    for workload in workloads:
        waiting.setdefault(tenants.of(workload.key[0]), []).append((workload.order, workload.key, workload))
    for heap in waiting.values():
        heap.sort(key=lambda item: item[:2])
    shares = {tenant: tenants.share(tenant) for tenant in waiting}
    heads = [(turn_of(heap[0][0], shares[tenant]), tenant) for tenant, heap in waiting.items()]
    heapq.heapify(heads)
    places = dict.fromkeys(waiting, 0)
    found: list[Standing] = []
    while heads:
        _, tenant = heapq.heappop(heads)
        workload, own = waiting[tenant][places[tenant]][2], waiting[tenant]
        gpus = gpus_of(workload)
        found.append(Standing(workload, tenant, gpus, shares[tenant]))
        if tenant != ALL and not tenants.by_kueue(tenant):
            shares[tenant] += gpus * tenants.shares.ahead_s / tenants.weight(tenant)
        places[tenant] += 1
        if places[tenant] < len(own):
            heapq.heappush(heads, (turn_of(own[places[tenant]][0], shares[tenant]), tenant))
    return found


def gpus_of(workload: PendingWorkload) -> float:
    """Return how many GPUs the pods of a waiting workload request.

    A pod whose request cannot be read counts as 0. A share of a GPU counts as the fraction of the compute that it
    requests, a MIG slice as its sevenths of the compute. A share that requests only memory counts as 0, because its
    fraction of a GPU depends on the GPU. The tenant is charged with that fraction when the share has a tentative
    placement (``cluster/pods/gpu_time.py``).
    """
    total = 0.0
    for member in workload.members:
        try:
            total += _gpus(member.wish.request)
        except WordError:
            continue
    return total


def _gpus(request: Request) -> float:
    match request:
        case Whole():
            return float(request.gpus)
        case Share():
            return sum(amount.cores / ALL_CORES for amount in request.amounts)
        case Mig():  # `3g.40gb` is three of seven compute slices
            return sum(
                int(name.partition("g")[0]) / 7 for names in request.profiles for name in names if name[:1].isdigit()
            )
