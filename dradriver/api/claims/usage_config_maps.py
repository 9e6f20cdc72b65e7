"""GPU time, stored in ConfigMaps of the driver's namespace: a fixed number of them, each with a bounded size.

A *bucket* is the key by which GPU time is summed: a namespace, owner, product and kind (whole GPUs, shares or MIG
slices). One ConfigMap has the current hour and is written every minute. Each further ConfigMap has the past hours of
one day. A new day overwrites the ConfigMap of the day 36 days before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.policies.fields import MOST_DAYS

HOUR_S: Final = 3600
DAY_H: Final = 24
PLACES: Final = MOST_DAYS + 1
MOST_ROWS: Final = 256  # of an hour, beside what is added up by namespace
MOST_PODS: Final = 1024  # of an hour that are told apart, where there is room for them
_FEWEST_ROWS: Final = 16
_MOST_NAMESPACES: Final = 4096
MOST_BYTES: Final = 900_000  # of a day; a ConfigMap holds a MiB
OTHERS: Final = "others"
"""The owner of a bucket that adds up small buckets."""
_NAME: Final = "gpu-topology-usage"
_KEY: Final = "usage.json"
_VERSION: Final = 1

Kind = Literal["whole", "share", "slice"]


class Bucket(msgspec.Struct, frozen=True, order=True):
    """The key by which GPU time is summed: namespace, owner, product, and whole GPU or fraction.

    Attributes:
        namespace: The claim's namespace.
        owner: The owner of its pod, ``Job/train``; empty if it is not known.
        product: The GPUs' full product name; empty if it is not known.
        kind: Whole GPUs, shares or MIG slices.
    """

    namespace: str
    owner: str
    product: str
    kind: Kind


Hours = dict[int, dict[Bucket, float]]
"""GPU-seconds by hour, counted from the epoch."""


class Detail(msgspec.Struct):
    """Idle time and GPU time by pod, for one hour.

    Attributes:
        idle: For each bucket, the GPU-seconds in which all devices of the claim were idle.
        pods: For each bucket and pod name, the pod's GPU-seconds, and how many of them were idle. Only the largest pods
            are listed. So their sum can be less than the bucket's GPU-seconds.
    """

    idle: dict[Bucket, float] = {}
    pods: dict[tuple[Bucket, str], tuple[float, float]] = {}


Details = dict[int, Detail]
"""``Detail`` by hour, counted from the epoch."""

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Row = tuple[str, str, str, Kind, _Seconds]
_Pod = tuple[Annotated[int, msgspec.Meta(ge=0)], str, _Seconds, _Seconds]


class _Written(msgspec.Struct):
    """The JSON in a ConfigMap of GPU time. Hours are numbers, counted from the epoch.

    Older releases do not know ``idle`` and ``pods``: they skip the fields, and do not write them.

    Attributes:
        version: The format's version.
        until: The time up to which GPU time is counted, seconds since the epoch.
        hours: For each hour, rows of a bucket's fields and its GPU-seconds.
        idle: For each hour, the idle GPU-seconds of each row in ``hours``.
        pods: For each hour and pod: the number of the row in ``hours``, its name, its GPU-seconds, and how many were
            idle.
    """

    version: int
    until: float
    hours: dict[int, list[_Row]]
    idle: dict[int, list[_Seconds]] = {}
    pods: dict[int, list[_Pod]] = {}


class _ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


class Kept(msgspec.Struct, frozen=True):
    """The content of one ConfigMap with GPU time.

    Attributes:
        version: Its resourceVersion.
        until: The time up to which GPU time is counted, seconds since the epoch.
        hours: GPU-seconds by hour.
        details: Idle time and GPU time by pod, for each hour.
    """

    version: str
    until: float
    hours: Hours
    details: Details = {}


def every_name() -> list[str]:
    """Return the names of all possible ConfigMaps with GPU time. The last one is for the current hour."""
    return [*(f"{_NAME}-{place:02}" for place in range(PLACES)), name_of(None)]


def name_of(day: int | None) -> str:
    """Return the name of a day's ConfigMap with GPU time.

    Args:
        day: The day, counted from the epoch; None for the current hour.
    """
    return f"{_NAME}-hour" if day is None else f"{_NAME}-{day % PLACES:02}"


def config_map(
    day: int | None,
    hours: Hours,
    *,
    until: float,
    namespace: str,
    owners: Sequence[Mapping[str, str]] = (),
    version: str = "",
    details: Mapping[int, Detail] | None = None,
) -> dict[str, Any]:
    """Return a ConfigMap with the GPU time of some hours.

    Args:
        day: The day, counted from the epoch; None for the current hour.
        hours: GPU-seconds by hour.
        until: The time up to which GPU time was counted, seconds since the epoch.
        namespace: The driver's namespace.
        owners: The ConfigMap's ``ownerReferences``: Kubernetes deletes the ConfigMap when they are gone.
        version: The resourceVersion of the ConfigMap that it replaces; empty for a new ConfigMap.
        details: Idle time and pods by hour. If the room is not enough, only the largest pods are written.
    """
    text = _text(hours, details or {}, until)
    metadata = {"name": name_of(day), "namespace": namespace} | ({"ownerReferences": list(owners)} if owners else {})
    metadata |= {"resourceVersion": version} if version else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_KEY: text}}


def read(config_map: Mapping[str, Any]) -> Kept:
    """Return the GPU time that a ConfigMap holds.

    Raises:
        WordError: Another program, or another release of this driver, wrote or changed the ConfigMap.
    """
    try:
        typed_map = msgspec.convert(config_map, _ConfigMap)
        written = msgspec.json.decode((typed_map.data or {}).get(_KEY, ""), type=_Written)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise WordError(f"ConfigMap {name_in(config_map)} has no readable GPU usage: {error}. Delete it.") from None
    if written.version != _VERSION:
        raise WordError(
            f"ConfigMap {typed_map.metadata.name} was written by another release (version {written.version}), and "
            f"this release cannot read it."
        )
    hours: Hours = {}
    details: Details = {}
    for hour, rows in written.hours.items():
        # A row: namespace, owner, product, kind, GPU-seconds. ``idle`` has a number for each row, in the same order. An
        # entry of ``pods``: the row's number, the pod's name, GPU-seconds, idle GPU-seconds.
        buckets = [Bucket(*row[:4]) for row in rows]
        hours[hour] = {bucket: row[4] for bucket, row in zip(buckets, rows, strict=True)}
        idle, pods = written.idle.get(hour, ()), written.pods.get(hour, ())
        if idle or pods:
            details[hour] = Detail(
                {bucket: seconds for bucket, seconds in zip(buckets, idle, strict=False) if seconds},
                {(buckets[row], name): (gpu_s, idle_s) for row, name, gpu_s, idle_s in pods if row < len(buckets)},
            )
    return Kept(typed_map.metadata.resource_version, written.until, hours, details)


def name_in(config_map: Mapping[str, Any]) -> str:
    """Return the name in a ConfigMap's metadata; empty if the object has none."""
    metadata = config_map.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def bounded(buckets: Mapping[Bucket, float], most: int, namespaces: int) -> dict[Bucket, float]:
    """Return buckets of GPU time, fewer if there are too many, with the same sum as before.

    A bucket is a sum of GPU time, by namespace, owner, GPU product and kind. Small buckets of a namespace are added up,
    so that the ConfigMap does not grow without limit.

    Args:
        buckets: GPU-seconds by bucket.
        most: How many buckets stay as they are: the largest ones.
        namespaces: How many sums of namespaces are allowed in addition. Smaller sums go into one sum of all namespaces,
            for each kind of usage.
    """
    return moved(buckets, folds(buckets, most, namespaces))


def folds(
    buckets: Mapping[Bucket, float], most: int, namespaces: int, *, products: bool = True
) -> dict[Bucket, Bucket]:
    """Return the bucket of GPU time to which each too small bucket is added.

    A bucket is a sum of GPU time, by namespace, owner, GPU product and kind. Buckets that stay as they are have no
    entry in the result. A namespace has one target bucket for each GPU product and kind, because prices depend on the
    product. If ``products`` is false or there is no room, a namespace has one target bucket for each kind.

    Args:
        buckets: GPU-seconds by bucket.
        most: How many buckets are kept, the largest first.
        namespaces: How many target buckets are allowed. The smaller ones become one bucket for each kind, which is for
            all namespaces.
        products: Whether target buckets are separate for each product.
    """
    if len(buckets) <= most:
        return {}
    kept = dict(heapq.nsmallest(most, buckets.items(), key=_largest_first))
    folded = {b: Bucket(b.namespace, OTHERS, b.product if products else "", b.kind) for b in buckets if b not in kept}
    merged = _sums(buckets, folded)
    if products and len(merged) > namespaces:
        folded = {b: Bucket(b.namespace, OTHERS, "", b.kind) for b in folded}
        merged = _sums(buckets, folded)
    if len(merged) > namespaces:
        least = {b for b, _ in sorted(merged.items(), key=_largest_first)[namespaces:]}
        folded = {b: Bucket("", OTHERS, "", to.kind) if to in least else to for b, to in folded.items()}
    return folded


def _sums(buckets: Mapping[Bucket, float], folded: Mapping[Bucket, Bucket]) -> dict[Bucket, float]:
    merged: dict[Bucket, float] = {}
    for bucket, to in folded.items():
        _add(merged, to, buckets[bucket])
    return merged


def moved(buckets: Mapping[Bucket, float], to: Mapping[Bucket, Bucket]) -> dict[Bucket, float]:
    """Return GPU-seconds by bucket (``Bucket``), with small buckets added to larger ones.

    Args:
        buckets: GPU-seconds by bucket.
        to: The target bucket of each bucket that is added to another one (``folds``).
    """
    if not to:
        return dict(buckets)
    found: dict[Bucket, float] = {}
    for bucket, seconds in buckets.items():
        _add(found, to.get(bucket, bucket), seconds)
    return found


def largest_pods(
    pods: Mapping[tuple[Bucket, str], tuple[float, float]], most: int
) -> dict[tuple[Bucket, str], tuple[float, float]]:
    """Return the ``most`` pods with the largest GPU time of an hour.

    Args:
        pods: GPU-seconds and idle GPU-seconds of each pod, by ``Bucket`` (namespace, owner, product, kind) and pod
            name.
        most: How many pods to return.
    """
    if len(pods) <= most:
        return dict(pods)
    return dict(heapq.nsmallest(most, pods.items(), key=_most_first))


def _most_first(item: tuple[tuple[Bucket, str], tuple[float, float]]) -> tuple[float, tuple[Bucket, str]]:
    return -item[1][0], item[0]


def _largest_first(item: tuple[Bucket, float]) -> tuple[float, Bucket]:
    return -item[1], item[0]


def _add(buckets: dict[Bucket, float], bucket: Bucket, seconds: float) -> None:
    buckets[bucket] = buckets.get(bucket, 0.0) + seconds


def _text(hours: Hours, details: Mapping[int, Detail], until: float) -> str:
    """Return GPU time as the JSON text of a ConfigMap, shortened to the size that is allowed.

    If the text is too long, the small pods are left out first. Then small buckets of a namespace are added up under the
    owner ``OTHERS``, at first by product, then all products together. Last, small namespaces are added up: tenants'
    positions in the queue depend on the GPU time of namespaces.

    Args:
        hours: GPU-seconds of each bucket, by hour.
        details: Idle time and GPU time by pod, for each hour.
        until: The time up to which GPU time was counted, seconds since the epoch.
    """
    max_rows, max_namespaces, has_products, max_pods = MOST_ROWS, _MOST_NAMESPACES, True, MOST_PODS
    buckets_of_hour = {hour: dict(hours[hour]) for hour in sorted(hours)}
    # By hour: the bucket in ``buckets_of_hour`` to which each merged bucket was added.
    merged_into: dict[int, dict[Bucket, Bucket]] = {hour: {} for hour in buckets_of_hour}

    # 1. Fewer rows, then no products, then fewer namespaces, until the text without pods fits.
    while True:
        # Hours with too many rows: merge the smallest ones, and note what each bucket was merged into.
        for hour, buckets in buckets_of_hour.items():
            if len(buckets) > max_rows:
                merged_now = folds(buckets, max_rows, max_namespaces, products=has_products)
                buckets_of_hour[hour] = moved(buckets, merged_now)
                if hour in details:
                    # Buckets that were merged before may be merged once more.
                    merged_again = {old: merged_now.get(bucket, bucket) for old, bucket in merged_into[hour].items()}
                    merged_into[hour] = merged_again | merged_now
        idle = {
            hour: _idle_of_rows(buckets_of_hour[hour], moved(details[hour].idle, merged_into[hour]))
            for hour in details.keys() & merged_into.keys()
        }
        written = _Written(
            _VERSION,
            round(until, 3),
            {
                hour: [(*_row_head(b), round(seconds, 3)) for b, seconds in row.items()]
                for hour, row in buckets_of_hour.items()
            },
            {hour: entries for hour, entries in idle.items() if entries},
        )
        text = msgspec.json.encode(written)
        if len(text) <= MOST_BYTES:
            break
        if max_rows > _FEWEST_ROWS or not max_namespaces:
            max_rows = _reduced(max_rows, len(text), MOST_BYTES)
        elif has_products:
            has_products = False
        else:
            max_namespaces //= 2

    # 2. As many pods as fit into the rest: half as many each time until the text fits.
    text_without_pods = text
    pods_by_hour = {
        hour: _pods_of_rows(buckets_of_hour[hour], detail.pods, merged_into[hour], max_pods)
        for hour, detail in details.items()
        if hour in merged_into
    }
    while max_pods:
        written.pods = {hour: entries[:max_pods] for hour, entries in pods_by_hour.items() if entries}
        if len(text := msgspec.json.encode(written)) <= MOST_BYTES:
            return text.decode()
        max_pods = _reduced(max_pods, len(text) - len(text_without_pods), MOST_BYTES - len(text_without_pods))
    return text_without_pods.decode()


def _reduced(number: int, size: int, max_size: int) -> int:
    """Return a smaller number of entries to write, so that the text fits into ``max_size``.

    The result is half of ``number``, or less if half is not enough.

    Args:
        number: The present number of entries.
        size: The present size of the text, bytes.
        max_size: The largest size of the text, bytes.
    """
    return number >> max(int(math.log2(size / max(max_size, 1))), 1)


def _row_head(bucket: Bucket) -> tuple[str, str, str, Kind]:
    return bucket.namespace, bucket.owner, bucket.product, bucket.kind


def _idle_of_rows(rows: Mapping[Bucket, float], idle: Mapping[Bucket, float]) -> list[float]:
    """Return the idle GPU-seconds of each row, in order; empty if all are 0.

    Args:
        rows: The GPU-seconds of the rows that are written, by ``Bucket`` (namespace, owner, product, kind).
        idle: The idle GPU-seconds, by bucket.
    """
    seconds_by_row = [round(min(idle.get(bucket, 0.0), seconds), 3) for bucket, seconds in rows.items()]
    return seconds_by_row if any(seconds_by_row) else []


def _pods_of_rows(
    rows: Mapping[Bucket, float],
    pods: Mapping[tuple[Bucket, str], tuple[float, float]],
    merged_into: Mapping[Bucket, Bucket],
    most: int,
) -> list[_Pod]:
    """Return the ``most`` pods with the largest GPU time of an hour, the largest first.

    Each pod refers to its bucket by the bucket's position in ``rows``. A pod is left out if its bucket was added to a
    bucket for all namespaces.

    Args:
        rows: The GPU-seconds of the rows that are written, by ``Bucket`` (namespace, owner, product, kind).
        pods: GPU-seconds and idle GPU-seconds by bucket and pod name.
        merged_into: The bucket in ``rows`` to which a smaller bucket was added.
        most: How many pods to return.
    """
    row_number = {bucket: number for number, bucket in enumerate(rows)}
    entries = []
    for (bucket, name), (had, idle) in sorted(largest_pods(pods, most).items(), key=_most_first):
        row = merged_into.get(bucket, bucket)
        if row in row_number and row.namespace:
            entries.append((row_number[row], name, round(had, 3), round(min(idle, had), 3)))
    return entries
