"""GPU time as it stands in the API: ConfigMaps of the driver's namespace, a fixed number of them and each bounded.

One has the hour that goes on and is written every minute; each of the others has the hours of a day that are over. The
days take turns: a day's place is that of the day 36 days before.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from dradriver.api import names
from dradriver.api.errors import WordError
from dradriver.api.objects import Metadata
from dradriver.api.policies.model import MOST_DAYS

HOUR_S: Final = 3600
DAY_H: Final = 24
PLACES: Final = MOST_DAYS + 1
MOST_ROWS: Final = 256  # of an hour, beside what is added up by namespace
_FEWEST_ROWS: Final = 16
_MOST_NAMESPACES: Final = 4096
MOST_BYTES: Final = 900_000  # of a day; a ConfigMap holds a MiB
OTHERS: Final = "others"
"""The owner, or the namespace, of what was too little to be told apart."""
_NAME: Final = "gpu-topology-usage"
_KEY: Final = "usage.json"
_VERSION: Final = 1

Kind = Literal["whole", "share", "slice"]


class Bucket(msgspec.Struct, frozen=True, order=True):
    """Whose GPU time of which GPUs is added up.

    Attributes:
        namespace: Of the claim.
        owner: What made its pod, ``Job/train``; empty where that is not known.
        product: The GPUs' full product name; empty where that is not known.
        kind: Whether they are had whole.
    """

    namespace: str
    owner: str
    product: str
    kind: Kind


Hours = dict[int, dict[Bucket, float]]
"""GPU-seconds by hour, counted from the epoch."""

_Row = tuple[str, str, str, Kind, Annotated[float, msgspec.Meta(ge=0, le=1e12)]]


class _Written(msgspec.Struct):
    """A ConfigMap's text: hours by their numbers, and until when they were counted, seconds since the epoch."""

    version: int
    until: float
    hours: dict[int, list[_Row]]


class _ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


class Kept(msgspec.Struct, frozen=True):
    """What one ConfigMap says.

    Attributes:
        version: Its resourceVersion.
        until: Until when was counted, seconds since the epoch.
        hours: GPU-seconds.
    """

    version: str
    until: float
    hours: Hours


def every_name() -> list[str]:
    """Return the names of all that there can be, the hour's last."""
    return [*(f"{_NAME}-{place:02}" for place in range(PLACES)), name_of(None)]


def name_of(day: int | None) -> str:
    """Return the name of a day's ConfigMap, counted from the epoch; of the hour that goes on for None."""
    return f"{_NAME}-hour" if day is None else f"{_NAME}-{day % PLACES:02}"


def config_map(
    day: int | None, hours: Hours, *, until: float, namespace: str, class_uid: str, version: str = ""
) -> dict[str, Any]:
    """Return a ConfigMap with these hours.

    Args:
        day: Which day's; None for the hour that goes on.
        hours: GPU-seconds.
        until: Until when was counted.
        namespace: The driver's.
        class_uid: The uid of the DeviceClass of GPUs, with which it goes; empty where there is none.
        version: The resourceVersion that it replaces; empty for a new one.
    """
    most, namespaces = MOST_ROWS, _MOST_NAMESPACES
    hours = {hour: bounded(buckets, most, namespaces) for hour, buckets in hours.items()}
    while len(text := _text(hours, until)) > MOST_BYTES:
        if most > _FEWEST_ROWS or not namespaces:
            most //= 2  # who made it goes before whose it is: that decides whose turn it is
        else:
            namespaces //= 2
        hours = {hour: bounded(buckets, most, namespaces) for hour, buckets in hours.items()}
    owner = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "name": names.DEVICE_CLASS, "uid": class_uid}
    metadata = {"name": name_of(day), "namespace": namespace} | ({"ownerReferences": [owner]} if class_uid else {})
    metadata |= {"resourceVersion": version} if version else {}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_KEY: text}}


def read(config_map: Mapping[str, Any]) -> Kept:
    """Return what a ConfigMap says.

    Raises:
        WordError: It was not written by this driver, or was changed since.
    """
    try:
        found = msgspec.convert(config_map, _ConfigMap)
        written = msgspec.json.decode((found.data or {}).get(_KEY, ""), type=_Written)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise WordError(f"ConfigMap {name_in(config_map)} tells of no GPU time: {error}; delete it") from None
    if written.version != _VERSION:
        raise WordError(f"ConfigMap {found.metadata.name} is of another release (version {written.version})")
    hours = {
        hour: {Bucket(namespace, owner, product, kind): seconds for namespace, owner, product, kind, seconds in rows}
        for hour, rows in written.hours.items()
    }
    return Kept(found.metadata.resource_version, written.until, hours)


def name_in(config_map: Mapping[str, Any]) -> str:
    """Return the name of an object that may be none."""
    metadata = config_map.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def bounded(buckets: Mapping[Bucket, float], most: int, namespaces: int) -> dict[Bucket, float]:
    """Return fewer buckets of the same sum, with each namespace's: all but the largest are added up by namespace.

    Args:
        buckets: GPU-seconds.
        most: So many keep their owner and product.
        namespaces: So many sums of a namespace there are beside these; what is less is added up altogether.
    """
    if len(buckets) <= most:
        return dict(buckets)
    kept = dict(heapq.nsmallest(most, buckets.items(), key=_largest_first))
    merged: dict[Bucket, float] = {}
    for bucket, seconds in buckets.items():
        if bucket not in kept:
            _add(merged, Bucket(bucket.namespace, OTHERS, "", bucket.kind), seconds)
    for place, (bucket, seconds) in enumerate(sorted(merged.items(), key=_largest_first)):
        _add(kept, bucket if place < namespaces else Bucket("", OTHERS, "", bucket.kind), seconds)
    return kept


def _largest_first(item: tuple[Bucket, float]) -> tuple[float, Bucket]:
    return -item[1], item[0]


def _add(buckets: dict[Bucket, float], bucket: Bucket, seconds: float) -> None:
    buckets[bucket] = buckets.get(bucket, 0.0) + seconds


def _text(hours: Hours, until: float) -> str:
    rows: dict[int, list[_Row]] = {
        hour: [
            (bucket.namespace, bucket.owner, bucket.product, bucket.kind, round(seconds, 3))
            for bucket, seconds in buckets.items()
        ]
        for hour, buckets in sorted(hours.items())
    }
    return msgspec.json.encode(_Written(_VERSION, round(until, 3), rows)).decode()
