"""How the node agent reports that a claim is idle, and how the controller asks for such reports.

The node agent writes two times into the status of each device of the claim: since when all devices are idle, and when
the agent last saw them idle. The agent writes these times when idleness begins, and removes them when it ends. While an
annotation of the controller on the claim asks for it, the node agent updates the report each minute. Only the agent of
the node may write the report: an admission policy of the chart ensures that (``node/admissionpolicy.yaml``).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import DeviceStatus, ResourceClaim
from dradriver.api.base.objects import seconds

SINCE: Final = "idleSince"
SEEN: Final = "idleSeen"
MARK: Final = SINCE.encode()
"""In the data of each device that is said to do nothing."""

_LONGEST: Final = 16_384  # bytes of one device's data; Kubernetes allows 10 KiB


class Idle(msgspec.Struct, frozen=True):
    """The node agent's last report that all devices of a claim are idle.

    Attributes:
        since: When the devices became idle, seconds since the epoch.
        seen: When the node agent last reported that they were still idle, seconds since the epoch.
    """

    since: float
    seen: float


class _Data(msgspec.Struct):
    since: str = msgspec.field(name=SINCE, default="")
    seen: str = msgspec.field(name=SEEN, default="")


def told(since: datetime.datetime, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the ``data`` for a device's status in a claim, which reports that the claim is idle.

    Args:
        since: When the claim became idle.
        now: When the node agent last saw the claim idle.
    """
    return {SINCE: written(since), SEEN: written(now)}


def written(moment: datetime.datetime) -> str:
    """Return a time in UTC in the form of Kubernetes: ``2026-01-31T12:00:00Z``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(seconds: float) -> str:
    """Return a time in the form of Kubernetes, from seconds since the epoch; empty if invalid."""
    try:
        return written(datetime.datetime.fromtimestamp(seconds, datetime.UTC))
    except (ValueError, OverflowError, OSError):
        return ""


def idle_of(claim: ResourceClaim) -> Idle | None:
    """Return the idleness that a claim's status reports; None unless all its GPUs and fractions are idle."""
    wanted = {(one.pool, one.device, one.share_id) for one in claim.results if not one.admin_access}
    said = {
        (one.pool, one.device, one.share_id): read(one)
        for one in claim.status.devices
        if one.driver == names.DRIVER and (one.pool, one.device, one.share_id) in wanted
    }
    return latest(said.get(one) for one in wanted)


def read(device: DeviceStatus) -> Idle | None:
    """Return the idleness in the status of one device of a claim; None without a readable report."""
    data = bytes(device.data)
    if MARK not in data or len(data) > _LONGEST:
        return None
    try:
        said = msgspec.json.decode(data, type=_Data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    since, seen = seconds(said.since), seconds(said.seen)
    return None if since is None or seen is None else Idle(since, seen)


def asked(annotations: Mapping[str, str]) -> float | None:
    """Return when the controller plans to end the pods of an idle claim, seconds since the epoch.

    The time is in the annotation by which the controller asks for reports of idleness. None without the annotation.

    Args:
        annotations: The claim's annotations.
    """
    return seconds(annotations.get(names.IDLE_END, ""))


def question(end: datetime.datetime | None) -> dict[str, Any]:
    """Return the merge patch of a claim that asks the node agent to report idleness.

    Args:
        end: When the controller plans to end the claim's pods. None removes the annotation, so that the node agent
            stops its reports each minute.
    """
    return {"metadata": {"annotations": {names.IDLE_END: None if end is None else written(end)}}}


def latest(claims: Iterable[Idle | None]) -> Idle | None:
    """Return one report for several claims or devices together.

    Together they are idle since the last one became idle. The result is None if one of them is not idle.

    Args:
        claims: The report of each claim or device; None for one that is not idle.
    """
    every = list(claims)
    some = [idle for idle in every if idle is not None]
    if not some or len(some) < len(every):
        return None
    return Idle(max(idle.since for idle in some), min(idle.seen for idle in some))
