"""The gang barrier device (seat): it gives nothing, and keeps a gang member's pod from being bound.

It is one device for all nodes and all claims. The scheduler allocates it with the claim's GPUs and then waits: the pod
keeps its GPUs, its CPU and its node, and is bound once the claim's status says ``GO`` of the seat (KEP-5007,
``bindingConditions``; KEP-5075, a device that claims share). Servers before 1.36 drop these fields without a word.
An agent that does not know seats refuses to prepare such a claim: one that does says so on its node's devices.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Container, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import Device, ResourceClaim
from dradriver.api.base.objects import Metadata

DEVICE: Final = "seat"
CLASS: Final = f"seat.{names.DRIVER}"
SLICE: Final = f"gang-seats-{names.DRIVER}"
TYPE: Final = {"type": {"string": "seat"}}

GO: Final = "gang-go"
OFF: Final = "gang-off"

KNOWN: Final[dict[str, dict[str, Any]]] = {"seats": {"bool": True}}
"""What an agent that prepares claims with seats says on each of its devices: an older one that comes after it, as after
a rollback, writes its devices anew, where an annotation would stay."""


def known(device: Device) -> bool:
    """Return whether the agent that published a device prepares claims with gang barrier devices."""
    return device.attributes.get("seats", {}).get("bool") is True


class Seat(msgspec.Struct, frozen=True, gc=False):
    """A seat that a claim was allocated.

    Attributes:
        share_id: Which share of the one device.
        told: The conditions that were written of it: ``GO``, ``OFF``.
    """

    share_id: str
    told: tuple[str, ...] = ()


def of(claim: ResourceClaim) -> Seat | None:
    """Return the gang barrier device that a claim was allocated; None if it has none."""
    if claim.status.allocation is None:
        return None
    results = (r for r in claim.status.allocation.devices.results if names.is_seat(r.driver, r.pool))
    if (result := next(results, None)) is None:
        return None
    same = (s for s in claim.status.devices if names.is_seat(s.driver, s.pool) and s.share_id == result.share_id)
    told = tuple(met.type for status in same for met in status.conditions if met.status == "True")
    return Seat(result.share_id or "", told)


_ABLE: Final = {"allowMultipleAllocations": True, "bindingConditions": [GO], "bindingFailureConditions": [OFF]}


def resource_slice(class_uid: str = "") -> dict[str, Any]:
    """Return the one slice that has the gang barrier device, which no node owns.

    Args:
        class_uid: The uid of the DeviceClass of seats, with which the slice goes; empty for one that stays.
    """
    owner = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "name": CLASS, "uid": class_uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": SLICE} | ({"ownerReferences": [owner]} if class_uid else {}),
        "spec": {
            "driver": names.DRIVER,
            "allNodes": True,
            "pool": {"name": names.SEAT_POOL, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": DEVICE, "attributes": TYPE} | _ABLE],
        },
    }


def dropped(stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which fields that a gang barrier device needs are missing in the slice that a server stored."""
    devices = stored["spec"].get("devices") or [{}]
    return tuple(field for field in _ABLE if not devices[0].get(field))


def request(beside: Container[str] = ()) -> dict[str, Any]:
    """Return a claim's request for a gang barrier device, with a name that none of its other requests has."""
    name = next(name for n in itertools.count(1) if (name := DEVICE if n == 1 else f"{DEVICE}-{n}") not in beside)
    return {"name": name, "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}}


def status(metadata: Metadata, seat: Seat, condition: str, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the claim status by which the gang barrier lets a pod be bound (``GO``), or takes its place (``OFF``).

    To be applied with a field manager of its own: the node agent applies entries of its devices to the same list.
    """
    met = {
        "type": condition,
        "status": "True",
        "reason": "Gang",
        "message": "",
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    entry = {"driver": names.DRIVER, "pool": names.SEAT_POOL, "device": DEVICE, "shareID": seat.share_id}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
        "status": {"devices": [entry | {"conditions": [met]}]},
    }
