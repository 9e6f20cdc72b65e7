"""Writes into a claim's status that its devices are ready, how they are linked, and since when they are idle.

The agent uses server-side apply. The list of devices in the status also has entries of other drivers, which a patch of
the whole list would drop. So the agent needs rights only on this driver's entries, of claims on its own node.

A failed write is tried a few times, and again when the claim is next compared with the API. Each claim has its own
writer, so a write that fails or hangs does not delay the writes for other claims.

A fraction is a MIG instance or a share.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import seconds
from dradriver.api.claims import idleness
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.errors import ApiError
from dradriver.node import metrics
from dradriver.node.claims.allocated_claim import choice_of, ring_of
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice

logger = logging.getLogger(__name__)

READY: Final = ("Ready", "True")
IdleSince = Callable[[str], datetime.datetime | None]
Apply = Callable[[str, str, dict[str, Any]], Awaitable[object]]

_WAITING: Final = 256  # claims; each is some kilobytes, and a connection while the server does not answer
_TRIES: Final = 5
_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 16.0


class Statuses:
    """Writes the statuses of all claims at the same time; the kubelet's calls do not wait for the writes."""

    def __init__(self, apply: Apply, idle_since: IdleSince = lambda _: None) -> None:
        """Store the arguments; write nothing yet.

        Args:
            apply: Applies the body of a claim's status, by namespace and name.
            idle_since: Returns since when a claim's devices have been idle, by the claim's uid; None if they work, or
                if unknown.
        """
        self._apply = apply
        self._idle_since = idle_since
        self._waiting: dict[str, dict[str, Any]] = {}  # by uid, the newest of each, until it is written
        self._writing: set[str] = set()  # uids that have a writer
        self._changed = asyncio.Event()
        self._written: set[str] = set()
        self._refused = ""

    def put(self, claim: ResourceClaim, prepared: PreparedClaim) -> None:
        """Queue the write of a claim's status, unless too many statuses wait already."""
        if prepared.uid not in self._waiting and len(self._waiting) >= _WAITING:
            metrics.STATUS_LOST.inc()
            return
        now, since = datetime.datetime.now(datetime.UTC), self._idle_since(prepared.uid)
        self._waiting[prepared.uid] = body(claim, prepared, now=now, idle_since=since)
        self._changed.set()

    def check(self, claim: ResourceClaim, prepared: PreparedClaim) -> None:
        """Queue the write of a claim's status if the status does not describe the claim's devices as they are now.

        The status can be wrong for three reasons: an agent ended before it wrote the status, the API server did not
        answer, or a MIG instance or share has another place after a reboot. The idle time is written when it begins,
        when it ends, and repeatedly while the controller requests it.
        """
        told = {(entry.driver, entry.pool, entry.device, entry.share_id): entry.data for entry in claim.status.devices}
        if not told and prepared.uid in self._written:  # a server whose DRAResourceClaimDeviceStatus is off drops it
            return
        for device in prepared.devices:
            data = told.get((names.DRIVER, device.pool, device.device, device.share_id))
            if data is None or not _part_data(device).items() <= _read(data).items():
                self.put(claim, prepared)
                return
        if self._unsaid(claim, prepared):
            self.put(claim, prepared)

    def _unsaid(self, claim: ResourceClaim, prepared: PreparedClaim) -> bool:
        """Return whether a claim's idle time must be written into its status.

        There are two reasons to write it: the status has another idle time than the agent knows, or an annotation of
        the controller on the claim requests it.
        """
        since, said = self._idle_since(prepared.uid), idleness.idle_of(claim)
        if since is None or said is None or abs(said.since - since.timestamp()) > 1:
            some = said is not None or any(map(idleness.read, claim.status.devices))
            return since is not None or some
        return idleness.asked(claim.metadata.annotations) is not None

    def forget(self, uid: str) -> None:
        """Stop writing the status of a claim that is not prepared any more."""
        self._written.discard(uid)
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Write claims' statuses until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for uid in [uid for uid in self._waiting if uid not in self._writing]:
                    self._writing.add(uid)
                    group.create_task(self._write(uid))

    async def _write(self, uid: str) -> None:
        """Write one claim's status, always the newest version, until no newer version waits."""
        failures = 0
        try:
            while (applied := self._waiting.get(uid)) is not None:
                error = await self._try(applied)
                failures += 1
                if error is not None and _passes(error) and failures < _TRIES:
                    await asyncio.sleep(wait_s(failures - 1, first_s=_PAUSE_S, longest_s=_LONGEST_PAUSE_S))
                    continue
                if error is not None:
                    self._give_up(applied, error)
                if self._waiting.get(uid) is applied:
                    del self._waiting[uid]
                failures = 0
        finally:
            self._writing.discard(uid)

    async def _try(self, applied: dict[str, Any]) -> DriverError | None:
        """Write a claim's status once; return the error, or None if it was written or the claim is deleted."""
        metadata = applied["metadata"]
        try:
            await self._apply(metadata["namespace"], metadata["name"], applied)
        except DriverError as error:
            is_gone = isinstance(error, ApiError) and (error.not_found or error.conflict)  # or another one now
            return None if is_gone else error
        self._written.add(metadata["uid"])
        self._refused = ""
        return None

    def _give_up(self, applied: dict[str, Any], error: DriverError) -> None:
        metrics.STATUS_LOST.inc()
        if str(error) != self._refused:
            self._refused = str(error)
            metadata = applied["metadata"]
            logger.warning(
                "The status of claim %s/%s cannot be written: %s", metadata["namespace"], metadata["name"], error
            )


def _passes(error: DriverError) -> bool:
    """Return whether a failed write may succeed later; if not, the server refused it."""
    return not isinstance(error, ApiError) or error.status >= 500 or error.status == 429


def body(
    claim: ResourceClaim,
    prepared: PreparedClaim,
    *,
    now: datetime.datetime,
    idle_since: datetime.datetime | None = None,
) -> dict[str, Any]:
    """Return the body that is applied to a claim's status, with an entry per device.

    The entry of a MIG instance or share identifies the fraction. For a claim that leaves the choice of the fraction to
    the agent, no other field of the API identifies it. A MIG instance has ``profile``, ``placement`` and its own
    ``uuid``. A share has ``cores`` (percent) and ``memory``. Both have ``parentUUID``, the uuid of the GPU.

    Args:
        claim: The claim, with its present status.
        prepared: The prepared claim.
        now: The time at which the status is written.
        idle_since: Since when no device of the claim has worked; None if one works, or if unknown.
    """
    # 1. The data that all devices of the claim have in common.
    # The controller's choice of GPUs, as the claim's annotation has it; None if the scheduler chose alone.
    choice = choice_of(claim)
    common: dict[str, Any] = {}
    if choice is not None:
        common = {
            "level": choice.level.value,
            "bandwidthGBps": round(choice.bandwidth_gbps, 1),
            "busbwGBps": round(choice.busbw_gbps, 1),
            "score": choice.score,
        }
        # Between several GPUs a bandwidth of 0 means "unknown". A single GPU has 0.
        if len(choice.gpus) > 1:
            common = {key: value for key, value in common.items() if value or not key.endswith("GBps")}
    # The ring has the same GPUs as the list of uuids, in an order that helps NCCL.
    ring = ring_of(claim)
    if ring:
        common["ring"] = list(ring)
    else:
        common["uuids"] = [_own_uuid(device) for device in prepared.devices]
    if idle_since is not None:
        common |= idleness.told(idle_since, now=now)

    # 2. An entry for each device.
    # ``lastTransitionTime`` stays that of the first write, as Kubernetes' conventions require.
    condition = {
        "type": READY[0],
        "status": READY[1],
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": _ready_since(claim) or idleness.written(now),
    }
    devices = []
    for device in prepared.devices:
        entry: dict[str, Any] = {"driver": names.DRIVER, "pool": device.pool, "device": device.device}
        if device.share_id is not None:
            entry["shareID"] = device.share_id
        data = {"uuid": _own_uuid(device), "request": device.request, **common} | _part_data(device)
        devices.append(entry | {"conditions": [condition], "data": data})
    metadata = {"name": prepared.name, "namespace": prepared.namespace, "uid": prepared.uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "status": {"devices": devices},
    }


def _ready_since(claim: ResourceClaim) -> str:
    """Return, from a claim's status, the time since when this driver's devices are ready.

    The text is empty if no device is ready, if the ready devices have different times, or if a time is not valid.
    """
    ours = [one.conditions for one in claim.status.devices if one.driver == names.DRIVER]
    ready = {c.last_transition_time for conditions in ours for c in conditions if (c.type, c.status) == READY}
    times = {time for time in ready if time is not None and seconds(time) is not None}
    return times.pop() if len(times) == len(ready) == 1 else ""


def _part_data(device: PreparedDevice) -> dict[str, Any]:
    """Return the data by which a status identifies a device: its uuid and attributes.

    Only a fraction has attributes here, with the uuid of its GPU as ``parentUUID``.
    """
    part = {"parentUUID": device.uuid, **device.told} if device.told else {}
    return {"uuid": _own_uuid(device), **part}


def _read(data: msgspec.Raw) -> dict[str, Any]:
    """Return a device's data in a status; empty if the data is not a JSON object.

    Other programs may have written the data.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _own_uuid(device: PreparedDevice) -> str:
    """Return the device's own uuid: a MIG device has its own, a share has the uuid of its GPU."""
    return str(device.told.get("uuid", device.uuid))
