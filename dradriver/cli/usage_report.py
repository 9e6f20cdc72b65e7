"""The report of ``gputopo usage``: GPU time added up by tenant, namespace, workload, pod or product. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from dradriver.api.claims.usage_config_maps import HOUR_S, OTHERS, Bucket, Detail, Details, Hours
from dradriver.api.policies.gpu_prices import Prices
from dradriver.cli.period import Period
from dradriver.view.terminal_text import plain

By = Literal["namespace", "tenant", "workload", "pod", "product"]
HEADS: Final[dict[str, tuple[str, ...]]] = {
    "namespace": ("namespace",),
    "tenant": ("tenant",),
    "workload": ("namespace", "workload"),
    "pod": ("namespace", "pod"),
    "product": ("product",),
}
REST: Final = "(others)"  # no object is called so
UNKNOWN: Final = "(unknown)"
ALONE: Final = "(pods alone)"
_NEGLIGIBLE_S: Final = 1.0  # so far the rounded seconds of a row's pods may be from the row's seconds
_SLOT: Final = {"whole": 0, "share": 1, "slice": 2}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU time of one tenant, namespace, workload, pod or product. All text in it is safe to print.

    Attributes:
        key: The names that identify the row, such as namespace and workload, as listed in ``HEADS``.
        gpu_hours: GPU hours; a share or a MIG slice counts as its fraction of a GPU.
        whole_hours: GPU hours of whole GPUs.
        share_hours: GPU hours of shares.
        slice_hours: GPU hours of MIG slices.
        idle_hours: GPU hours during which the GPU was idle.
        cost: Cost of the hours that have a price; None if no GPU has a price.
        idle_cost: Cost of the idle hours.
        unpriced_hours: GPU hours without a price.
    """

    key: tuple[str, ...]
    gpu_hours: float
    whole_hours: float
    share_hours: float
    slice_hours: float
    idle_hours: float
    cost: float | None
    idle_cost: float | None
    unpriced_hours: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A usage report.

    Attributes:
        begin: Begin of the period, as Kubernetes writes times.
        end: End of the period (exclusive).
        counted_until: Time of the last count; empty if nothing was counted.
        by: What each row stands for.
        currency: The currency of costs; empty if the prices name none.
        rows: The rows, the highest cost first, then the most hours.
        total: The sum of all rows.
    """

    begin: str
    end: str
    counted_until: str
    by: str
    currency: str
    rows: tuple[Row, ...]
    total: Row


class _Sum:
    __slots__ = ("cost", "idle", "idle_cost", "seconds", "unpriced")

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0, 0.0]
        self.idle = self.cost = self.idle_cost = self.unpriced = 0.0

    def add(self, kind: str, seconds: float, idle: float, price: float | None) -> None:
        self.seconds[_SLOT[kind]] += seconds
        self.idle += idle
        if price is None:
            self.unpriced += seconds
        else:
            self.cost += seconds * price
            self.idle_cost += idle * price

    def row(self, key: tuple[str, ...], *, priced: bool) -> Row:
        whole, share, piece = (seconds / HOUR_S for seconds in self.seconds)
        return Row(
            key=tuple(map(plain, key)),
            gpu_hours=round(whole + share + piece, 3),
            whole_hours=round(whole, 3),
            share_hours=round(share, 3),
            slice_hours=round(piece, 3),
            idle_hours=round(self.idle / HOUR_S, 3),
            cost=round(self.cost / HOUR_S, 2) if priced else None,
            idle_cost=round(self.idle_cost / HOUR_S, 2) if priced else None,
            unpriced_hours=round(self.unpriced / HOUR_S, 3) if priced else 0.0,
        )


def report(
    hours: Hours,
    details: Details,
    *,
    by: By,
    within: Period,
    prices: Prices,
    tenant_of: Callable[[str], str],
    counted_until: str = "",
    only: str | None = None,
) -> Report:
    """Return a usage report: GPU hours with costs, added up by what ``by`` names.

    Args:
        hours: GPU-seconds by hour.
        details: Idle seconds and pods by hour; hours long ago have none.
        by: What each row of the report stands for.
        within: The hours to report on.
        prices: Prices of GPUs per hour.
        tenant_of: Returns the tenant of a namespace.
        counted_until: Time of the last count, as Kubernetes writes times.
        only: The only namespace to count; None for all.
    """
    price_of = {product: prices.per_hour(product) for product in _products(hours, within)}
    # By the names that make a row (namespace, owner, pod, …): seconds by kind, idle seconds and costs.
    sums: defaultdict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    total = _Sum()
    # Returns the names that make a row, from a bucket (namespace, owner, product, kind) and a pod.
    row_key = _key_of(by, tenant_of)
    for hour in sorted(hours):
        if not within.first <= hour < within.end:
            continue
        for bucket, pod, seconds, idle_s in _seconds_of_hour(hours[hour], details.get(hour), by_pod=by == "pod"):
            if only not in (None, bucket.namespace):
                continue
            price = price_of[bucket.product]  # per hour; None if the policies have no price for it
            sums[row_key(bucket, pod)].add(bucket.kind, seconds, idle_s, price)
            total.add(bucket.kind, seconds, idle_s, price)
    has_prices = bool(prices.gpus)
    rows = [row_sum.row(key, priced=has_prices) for key, row_sum in sums.items()]
    begin, end = within.as_texts()
    return Report(
        begin=begin, end=end, counted_until=counted_until, by=by, currency=prices.currency,
        rows=tuple(sorted(rows, key=lambda row: (-(row.cost or 0.0), -row.gpu_hours, row.key))),
        total=total.row(("",) * len(HEADS[by]), priced=has_prices),
    )  # fmt: skip


def _products(hours: Hours, within: Period) -> Iterable[str]:
    return {bucket.product for hour, rows in hours.items() if within.first <= hour < within.end for bucket in rows}


def _key_of(by: By, tenant_of: Callable[[str], str]) -> Callable[[Bucket, str], tuple[str, ...]]:
    match by:
        case "namespace":
            return lambda bucket, _: (bucket.namespace or REST,)
        case "tenant":
            return lambda bucket, _: (tenant_of(bucket.namespace) if bucket.namespace else REST,)
        case "workload":
            return lambda bucket, _: (bucket.namespace or REST, _workload(bucket.owner))
        case "pod":
            return lambda bucket, pod: (bucket.namespace or REST, pod or REST)
        case "product":
            return lambda bucket, _: (bucket.product or UNKNOWN,)


def _workload(owner: str) -> str:
    return REST if owner == OTHERS else owner or ALONE


def _seconds_of_hour(
    rows: dict[Bucket, float], detail: Detail | None, *, by_pod: bool
) -> Iterator[tuple[Bucket, str, float, float]]:
    """Yield the GPU-seconds of an hour: bucket, pod, GPU-seconds, idle GPU-seconds.

    A bucket is a namespace, owner, product and kind of GPU time.

    Args:
        rows: The GPU-seconds of each bucket in this hour.
        detail: Idle seconds and pods of this hour; None if they are not kept.
        by_pod: Whether to divide buckets by pod. Then GPU-seconds of unknown pods follow with an empty pod name.
    """
    idle_of = {} if detail is None else detail.idle
    if not by_pod or detail is None:
        for bucket, seconds in rows.items():
            yield bucket, "", seconds, min(idle_of.get(bucket, 0.0), seconds)
        return

    # Pods are rounded one by one, so their sum may differ a little from the bucket. The report must add up to the
    # buckets: a pod gets at most what is left, and a negligible rest goes to the last pod.
    remaining = {bucket: (seconds, min(idle_of.get(bucket, 0.0), seconds)) for bucket, seconds in rows.items()}
    for (bucket, pod), (pod_s, pod_idle_s) in detail.pods.items():
        if bucket not in remaining:
            continue
        remaining_s, remaining_idle_s = remaining[bucket]
        seconds = remaining_s if remaining_s - pod_s < _NEGLIGIBLE_S else pod_s
        idle_s = min(pod_idle_s, remaining_idle_s, seconds)
        remaining[bucket] = remaining_s - seconds, remaining_idle_s - idle_s
        yield bucket, pod, seconds, idle_s
    for bucket, (seconds, idle_s) in remaining.items():
        if seconds > 0:
            yield bucket, "", seconds, min(idle_s, seconds)
