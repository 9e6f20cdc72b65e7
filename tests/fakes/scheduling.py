"""What kube-scheduler gives a pinned claim: devices that are free, or so much of them as is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from dradriver.api import names, quantity, slices
from tests.fakes.apistore import Object

_PLACEMENT = re.compile(
    r'\?parentUUID\.orValue\(""\) == "([^"]+)" .*\?profile\.orValue\(""\) == "([^"]+)" .*orValue\(-1\) == ([0-9]+)$'
)


def results(node: str, devices: Mapping[str, Object], claim: Object, claims: Iterable[Object]) -> list[Object] | None:
    """Return what a claim gets of a node's devices; None where one has not enough left.

    Args:
        node: The node.
        devices: Its devices as its slices have them, by name.
        claim: The claim, every request of which is pinned by uuid.
        claims: All claims, which hold what they were allocated.
    """
    used = _used(node, claims)
    counters = [counter for name in used for counter in _counters(devices.get(name, {}))]
    found: list[Object] = []
    for request in claim["spec"]["devices"]["requests"]:
        for name in _wanted(request, devices):
            device = devices.get(name)
            if device is None or (not device.get("allowMultipleAllocations") and name in used):
                return None
            if not _has(device, request["exactly"].get("capacity", {}).get("requests", {})):
                return None
            own = used.setdefault(name, {})
            one = result(node, name, request["name"])
            if device.get("allowMultipleAllocations"):
                asked = request["exactly"].get("capacity", {}).get("requests", {})
                rounded = {key: consumed(asked.get(key), capacity) for key, capacity in device["capacity"].items()}
                takes = {key: text for key, text in rounded.items() if text is not None}
                if len(takes) < len(rounded):
                    return None
                for key, text in takes.items():
                    own[key] = own.get(key, 0) + quantity.whole(text)
                    if own[key] > quantity.whole(device["capacity"][key]["value"]):
                        return None
                one |= {"shareID": f"{claim['metadata']['uid']}-{len(found)}", "consumedCapacity": takes}
            counters += _counters(device)
            if len(set(counters)) < len(counters):
                return None
            found.append(one)
    return found


def consumed(asked: str | None, capacity: Object) -> str | None:
    """Return what a request takes of a capacity by its policy, rounded up; None for more than anybody may have.

    A range's values were tried with Kubernetes 1.36.3; of valid ones it is the next (KEP-5075).
    """
    policy = capacity["requestPolicy"]
    text: str = policy["default"]
    if asked is None:
        return text
    unit = "Mi" if text.endswith("Mi") else ""
    one, wanted = quantity.whole(f"1{unit}"), quantity.whole(asked)
    if (valid := policy.get("validValues")) is not None:
        return min((each for each in valid if quantity.whole(each) >= wanted), key=quantity.whole, default=None)
    within = {key: quantity.whole(each) for key, each in policy["validRange"].items()}
    steps = max(-(-(wanted - within["min"]) // within["step"]), 0)
    taken = within["min"] + steps * within["step"]
    return None if taken > within["max"] else f"{taken // one}{unit}"


def _has(device: Object, asked: Mapping[str, str]) -> bool:
    """Whether a device has what is asked of its capacities."""
    has = {key: quantity.whole(capacity["value"]) for key, capacity in device.get("capacity", {}).items()}
    return all(has.get(key, -1) >= quantity.whole(text) for key, text in asked.items())


def pinned(request: Object) -> list[str]:
    """Return the uuids of the GPUs that a request's selector allows, or allows a placement of."""
    text = request["exactly"]["selectors"][0]["cel"]["expression"]
    if (placement := _PLACEMENT.search(text)) is not None:
        return [placement[1]]
    uuids: list[str] = json.loads(text[text.rindex("[") :])
    assert len(uuids) == request["exactly"]["count"]
    return uuids


def _wanted(request: Object, devices: Mapping[str, Object]) -> list[str]:
    """Names of the devices that a request's selector allows; one of no device where there is none."""
    placement = _PLACEMENT.search(request["exactly"]["selectors"][0]["cel"]["expression"])
    if placement is None:
        return [slices.device_name(uuid) for uuid in pinned(request)]
    uuid, profile, start = placement.groups()
    wanted = {"parentUUID": {"string": uuid}, "profile": {"string": profile}, "placement": {"int": int(start)}}
    return [name for name, device in devices.items() if wanted.items() <= device["attributes"].items()] or [""]


def _counters(device: Object) -> list[tuple[str, str]]:
    return [(one["counterSet"], name) for one in device.get("consumesCounters", ()) for name in one["counters"]]


def result(node: str, device: str, request: str = "main") -> Object:
    """Return the result of a request that gets a device, by its name or a GPU's uuid."""
    return {"request": request, "driver": names.DRIVER, "pool": node, "device": slices.device_name(device)}


def _used(node: str, claims: Iterable[Object]) -> dict[str, dict[str, int]]:
    """What allocated claims take of a node's devices, by capacity; nothing is named of one that is taken whole."""
    used: dict[str, dict[str, int]] = {}
    for claim in claims:
        for one in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()):
            if one["pool"] == node:
                own = used.setdefault(one["device"], {})
                for key, text in one.get("consumedCapacity", {}).items():
                    own[key] = own.get(key, 0) + quantity.whole(text)
    return used
