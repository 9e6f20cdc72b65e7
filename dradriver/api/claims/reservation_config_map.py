"""Reservations, and who had to end for others, as they stand in the API: a bounded ConfigMap of the driver's.

Not on the pods that they are for: whoever may edit a pod could reserve GPUs then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.claims.evicted_workloads import Evicted, Seconds, Who

NAME: Final = "gpu-topology-reservations"
MOST_KEPT: Final = 64
MOST_BLOCKED: Final = 256
MOST_EVICTED: Final = 1024
_KEY: Final = "reservations.json"
_VERSION: Final = 1

Some = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reservation; ``queue.reservation_rules.Reservation`` says what each is. Times are seconds since the epoch.

    Attributes:
        who: The workload that it is for: namespace, name and, for a single pod, uid.
        gpus: Device names by node.
        idle: How many of the GPUs stood idle when it was written.
    """

    who: Who
    tenant: Who = ""
    partition: Who = ""
    gpus: dict[str, list[str]]
    expected_at: Seconds | None = None
    endless: list[Who] = []
    idle_gpu_s: Seconds = 0.0
    counted_at: Seconds
    moved: Some = 0
    priority: int = 0
    idle: Some = 0


class Since(msgspec.Struct, frozen=True, array_like=True):
    """Since when a workload is blocked, or when a tenant's last reservation came to nothing, and how many did."""

    who: Who
    at: Seconds
    failed: Some = 0


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What the ConfigMap says."""

    version: int = _VERSION
    kept: Annotated[list[Kept], msgspec.Meta(max_length=MOST_KEPT)] = []
    blocked: Annotated[list[Since], msgspec.Meta(max_length=MOST_BLOCKED)] = []
    failed: Annotated[list[Since], msgspec.Meta(max_length=MOST_BLOCKED)] = []
    evicted: Annotated[list[Evicted], msgspec.Meta(max_length=MOST_EVICTED)] = []


class _ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


def config_map(
    kept: Sequence[Kept],
    blocked: Sequence[Since],
    failed: Sequence[Since] = (),
    evicted: Sequence[Evicted] = (),
    *,
    namespace: str,
    owners: Sequence[Mapping[str, str]] = (),
    version: str = "",
) -> dict[str, Any]:
    """Return the ConfigMap that keeps these reservations of GPUs.

    Args:
        kept: All that are in force.
        blocked: The workloads that wait for a reservation, longest first.
        failed: The tenants whose reservations came to nothing lately, the last first.
        evicted: The workloads that had to end for others, the oldest first; of too many the last are kept.
        namespace: The driver's.
        owners: Its ``ownerReferences``: Kubernetes deletes the ConfigMap with them.
        version: The resourceVersion that it replaces; empty for a new one.
    """
    metadata = {"name": NAME, "namespace": namespace} | ({"ownerReferences": list(owners)} if owners else {})
    metadata |= {"resourceVersion": version} if version else {}
    written = Written(
        kept=list(kept[:MOST_KEPT]),
        blocked=list(blocked[:MOST_BLOCKED]),
        failed=list(failed[:MOST_BLOCKED]),
        evicted=list(evicted[-MOST_EVICTED:]),
    )
    text = msgspec.json.encode(written).decode()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_KEY: text}}


def read(found: Mapping[str, Any]) -> Written:
    """Return the reservations of GPUs that the ConfigMap holds.

    Raises:
        WordError: It was not written by this driver, or was changed since.
    """
    try:
        data = msgspec.convert(found, _ConfigMap).data or {}
        written = msgspec.json.decode(data.get(_KEY, ""), type=Written)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WordError(f"ConfigMap {NAME} tells of no reservations: {error}; delete it") from None
    if written.version != _VERSION:
        raise WordError(f"ConfigMap {NAME} is of another release (version {written.version})")
    return written
