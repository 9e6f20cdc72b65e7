"""Reservations and evicted workloads, stored in a ConfigMap of the driver with a bounded size.

A reservation keeps GPUs for a workload that has waited long. A reservation is not stored on the pod that it is for:
everyone who may edit a pod could then reserve GPUs.
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
    """A reservation; ``queue.reservation_rules.Reservation`` explains the fields that are not described here.

    Times are seconds since the epoch.

    Attributes:
        who: The workload that the GPUs are reserved for: its namespace, its name and, for a single pod, its uid.
        gpus: Device names by node.
        idle: How many of the GPUs no pod used when the reservation was written.
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
    """Since when a workload waits for a reservation, or when a tenant's last reservation failed.

    For a tenant, ``failed`` is the number of its failed reservations.
    """

    who: Who
    at: Seconds
    failed: Some = 0


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the ConfigMap: reservations, workloads that wait for one, failures and evictions."""

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

    If a list has too many entries, only its first ones are written; of ``evicted``, only the last ones.

    Args:
        kept: All reservations in force.
        blocked: The workloads that wait for a reservation, the longest wait first.
        failed: The tenants whose reservations failed lately, the latest first.
        evicted: The workloads that were evicted for others, the oldest first.
        namespace: The driver's namespace.
        owners: The ConfigMap's ``ownerReferences``: Kubernetes deletes the ConfigMap when they are gone.
        version: The resourceVersion of the ConfigMap that it replaces; empty for a new ConfigMap.
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

    Args:
        found: The ConfigMap, as JSON data.

    Raises:
        WordError: Another program, or another release of this driver, wrote or changed the ConfigMap.
    """
    try:
        data = msgspec.convert(found, _ConfigMap).data or {}
        written = msgspec.json.decode(data.get(_KEY, ""), type=Written)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WordError(f"ConfigMap {NAME} has no readable reservations: {error}") from None
    if written.version != _VERSION:
        raise WordError(
            f"ConfigMap {NAME} was written by another release (version {written.version}), and this release cannot "
            f"read it."
        )
    return written
