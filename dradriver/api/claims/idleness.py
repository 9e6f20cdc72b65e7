"""What a node's agent says of a claim's work, in the claim's status, and what the controller asks it on the claim.

In the data of each of its devices: since when all of them have done nothing, and when that was last seen to be so.
It is written when it begins and taken away when it ends; while the controller asks, it is said anew each minute. Only
the agent of the node may write this: an admission policy of the chart sees to it (``node/admissionpolicy.yaml``).
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
    """That a claim's devices do nothing, as its node's agent said last.

    Attributes:
        since: Since when, in seconds since the epoch.
        seen: Until when that was seen, at least.
    """

    since: float
    seen: float


class _Data(msgspec.Struct):
    since: str = msgspec.field(name=SINCE, default="")
    seen: str = msgspec.field(name=SEEN, default="")


def told(since: datetime.datetime, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the device data for a claim's status that says since when the claim has been idle."""
    return {SINCE: written(since), SEEN: written(now)}


def written(moment: datetime.datetime) -> str:
    """Return when a claim became idle, in UTC, as Kubernetes writes times."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(seconds: float) -> str:
    """Return when a claim became idle, seconds since the epoch, in Kubernetes' form; empty for what is no time."""
    try:
        return written(datetime.datetime.fromtimestamp(seconds, datetime.UTC))
    except (ValueError, OverflowError, OSError):
        return ""


def idle_of(claim: ResourceClaim) -> Idle | None:
    """Return since when a claim is idle by its status; None unless all its devices of ours are said to be idle."""
    wanted = {(one.pool, one.device, one.share_id) for one in claim.results if not one.admin_access}
    said = {
        (one.pool, one.device, one.share_id): read(one)
        for one in claim.status.devices
        if one.driver == names.DRIVER and (one.pool, one.device, one.share_id) in wanted
    }
    return latest(said.get(one) for one in wanted)


def read(device: DeviceStatus) -> Idle | None:
    """Return what one device's data in a claim's status says of idleness; None if nothing that can be read."""
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
    """Return when the controller means to end an idle claim's pods, by the claim's annotations; None if it does not."""
    return seconds(annotations.get(names.IDLE_END, ""))


def question(end: datetime.datetime | None) -> dict[str, Any]:
    """Return the merge patch by which a claim asks its agent to go on reporting idleness; None takes it away."""
    return {"metadata": {"annotations": {names.IDLE_END: None if end is None else written(end)}}}


def latest(claims: Iterable[Idle | None]) -> Idle | None:
    """Return since when all of some claims are idle together; None if one is not."""
    every = list(claims)
    some = [idle for idle in every if idle is not None]
    if not some or len(some) < len(every):
        return None
    return Idle(max(idle.since for idle in some), min(idle.seen for idle in some))
