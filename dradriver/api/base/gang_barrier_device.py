"""The gang barrier device (``seat``): a device without hardware that keeps the pod of a gang from being bound.

The whole cluster has one such device, which all claims share. The scheduler allocates it together with the claim's GPUs
and then waits. Meanwhile the pod keeps its GPUs, its CPU and its node. The scheduler binds the pod when the claim's
status has the condition ``GO`` for the barrier device (KEP-5007, ``bindingConditions``; KEP-5075, a device that claims
share). API servers before 1.36 drop these fields silently.

A node agent of a release without gang barriers refuses to prepare claims with this device. So each node agent that
supports gang barriers publishes the attribute ``seats`` on the devices of its node.
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
"""The attribute that a node agent publishes on each of its devices if it supports gang barriers.

After a rollback, the older agent publishes the devices again without this attribute. An annotation would stay.
"""


def known(device: Device) -> bool:
    """Return whether the node agent that published a device can prepare claims with gang barrier devices.

    Node agents of older releases cannot, so gangs with a barrier must avoid their nodes.
    """
    return device.attributes.get("seats", {}).get("bool") is True


class Seat(msgspec.Struct, frozen=True, gc=False):
    """A claim's gang barrier device, which keeps the pod unbound until its gang starts.

    Attributes:
        share_id: The identifier of the claim's share of the device, because all claims share one device.
        told: The names of the conditions that are true for the device in the claim's status. ``GO`` lets the scheduler
            bind the pod, ``OFF`` makes the scheduler release the pod's node.
    """

    share_id: str
    told: tuple[str, ...] = ()


def of(claim: ResourceClaim) -> Seat | None:
    """Return the gang barrier device that was allocated to a claim; None if it has none.

    The device keeps the claim's pod unbound until its gang starts.
    """
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
    """Return the ResourceSlice that has the gang barrier device; no node owns the slice.

    The cluster has one such device, and all claims of gangs share it. It keeps their pods unbound until the gang
    starts.

    Args:
        class_uid: The uid of the DeviceClass of gang barriers, which owns the slice: Kubernetes deletes both together.
            Empty for a slice without an owner.
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
    """Return the fields of the gang barrier device that the API server dropped.

    The result is empty if the server kept all fields. A server drops fields whose feature gate is off.

    Args:
        stored: The slice that the server stored.
    """
    devices = stored["spec"].get("devices") or [{}]
    return tuple(field for field in _ABLE if not devices[0].get(field))


def request(beside: Container[str] = ()) -> dict[str, Any]:
    """Return the request that adds a gang barrier device to a claim.

    The device keeps the claim's pod unbound until its gang starts.

    Args:
        beside: The names of the claim's other requests. The new request gets another name.
    """
    name = next(name for n in itertools.count(1) if (name := DEVICE if n == 1 else f"{DEVICE}-{n}") not in beside)
    return {"name": name, "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}}


def status(metadata: Metadata, seat: Seat, condition: str, *, now: datetime.datetime) -> dict[str, Any]:
    """Return a claim's status with one condition, ``GO`` or ``OFF``, for its gang barrier device.

    ``GO`` lets the scheduler bind the pod. ``OFF`` makes the scheduler release the node and devices of the pod. The
    caller applies the status with a separate field manager, because the node agent applies entries for its own devices
    to the same list.

    Args:
        metadata: The claim's metadata.
        seat: The claim's gang barrier device.
        condition: ``GO`` or ``OFF``.
        now: The time of the change, UTC.
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
