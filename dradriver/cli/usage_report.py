"""GPU time added up by whoever is asked about, with what it costs. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from dradriver.api.claims.usage_config_maps import HOUR_S, OTHERS, Bucket, Detail, Details, Hours
from dradriver.api.policies.model import Prices
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
_NEGLIGIBLE_S: Final = 1.0  # of all the pods of a row: what rounding each leaves
_SLOT: Final = {"whole": 0, "share": 1, "slice": 2}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one of those that are asked about had. All text in it is safe to print.

    Attributes:
        key: Who, a word for each of ``HEADS``.
        gpu_hours: Hours of GPUs, shares and slices as their part of one.
        whole_hours: Of these, of whole GPUs.
        share_hours: Of shares.
        slice_hours: Of MIG slices.
        idle_hours: How many of all did nothing.
        cost: What the hours cost, as far as they have a price; None without any price.
        idle_cost: What those that did nothing cost.
        unpriced_hours: How many have no price.
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
    """All that is asked for.

    Attributes:
        begin: From when, as Kubernetes writes times.
        end: Until before when.
        counted_until: Until when was counted; empty where nothing was.
        by: Who is told apart.
        currency: Of costs; empty where none is said.
        rows: The dearest first, else those with most hours.
        total: All of them together.
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
) -> Report:
    """Return a report that adds up GPU hours by tenant, namespace, owner or pod, with costs.

    Args:
        hours: GPU-seconds by hour.
        details: What is known of them beside.
        by: Whom to tell apart.
        within: Which hours.
        prices: What GPUs cost.
        tenant_of: Gives whose a namespace is.
        counted_until: Until when was counted, as Kubernetes writes times.
    """
    per_hour = {product: prices.per_hour(product) for product in _products(hours, within)}
    sums: dict[tuple[str, ...], _Sum] = {}
    total = _Sum()
    key_of = _key_of(by, tenant_of)
    for hour in range(within.first, within.end) if within.end - within.first < len(hours) else sorted(hours):
        if hour in hours and within.first <= hour < within.end:
            for bucket, pod, seconds, idle in _parts(hours[hour], details.get(hour), pods=by == "pod"):
                price = per_hour[bucket.product]
                if (one := sums.get(key := key_of(bucket, pod))) is None:
                    one = sums[key] = _Sum()
                one.add(bucket.kind, seconds, idle, price)
                total.add(bucket.kind, seconds, idle, price)
    priced = bool(prices.gpus)
    rows = [one.row(key, priced=priced) for key, one in sums.items()]
    begin, end = within.said()
    return Report(
        begin=begin, end=end, counted_until=counted_until, by=by, currency=prices.currency,
        rows=tuple(sorted(rows, key=lambda row: (-(row.cost or 0.0), -row.gpu_hours, row.key))),
        total=total.row(("",) * len(HEADS[by]), priced=priced),
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


def _parts(
    rows: dict[Bucket, float], detail: Detail | None, *, pods: bool
) -> Iterator[tuple[Bucket, str, float, float]]:
    """Yield an hour's buckets, or their pods: seconds, and how many of them were idle.

    The pods of a bucket never come to more than it: what rounding makes of them is taken back from the last.
    """
    idle = {} if detail is None else detail.idle
    if not pods or detail is None:
        for bucket, seconds in rows.items():
            yield bucket, "", seconds, min(idle.get(bucket, 0.0), seconds)
        return
    left = {bucket: [seconds, min(idle.get(bucket, 0.0), seconds)] for bucket, seconds in rows.items()}
    for (bucket, pod), (had, did_nothing) in detail.pods.items():
        if (rest := left.get(bucket)) is None:
            continue
        seconds = min(had, rest[0])
        if rest[0] - seconds < _NEGLIGIBLE_S:
            seconds = rest[0]
        nothing = min(did_nothing, rest[1], seconds)
        rest[0] -= seconds
        rest[1] -= nothing
        yield bucket, pod, seconds, nothing
    for bucket, (seconds, nothing) in left.items():
        if seconds > 0:
            yield bucket, "", seconds, min(nothing, seconds)
