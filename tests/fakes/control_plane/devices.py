"""Which devices a claim gets on a node, by the rules of kube-scheduler's allocator.

Of these there are pools (the newest generation, once all its slices are there), device classes as the charts have them,
selectors as the driver writes them, capacities that are consumed (KEP-5075, values tried with Kubernetes 1.36.3),
counters (KEP-4815), taints of devices and administrators' rules. A device that is listed no more gives its counters
back. A device that claims share gives each a share id, and what its claim's pod is bound by (KEP-5007) is told with it.
Of slices of more than one node there are those of all nodes. NICs of other drivers are had by ``dranet.net`` and by the
SR-IOV driver's class; of an author's own selectors for them nothing is modelled. Constraints and ``firstAvailable`` are
not modelled.
"""

from __future__ import annotations

import collections
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from dradriver.api.base import gang_barrier_device, names, quantity
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.topology.vendors import NVIDIA, VENDORS
from tests.fakes.apistore import Object, Store
from tests.fakes.control_plane.fit import tolerated
from tests.resources import DEVICE_TAINT_RULES

DeviceId = tuple[str, str, str]  # driver, pool, name

_OF: Final = r'device\.attributes\["([^"]+)"\]\.\?'
_UUIDS: Final = re.compile(_OF + r'uuid\.orValue\(""\) in (\[.*\])')
_PLACEMENT: Final = re.compile(
    _OF
    + r'parentUUID\.orValue\(""\) == ("[^"]+") && .*\?profile\.orValue\(""\) == ("[^"]+") && .*orValue\(-1\) == (\d+)'
)
_ADDRESSES: Final = re.compile(
    _OF + r'type\.orValue\(""\) == ("[^"]+") && ' + _OF + r'pciBusID\.orValue\(""\) in (\[.*\])'
)
_LINKED: Final = re.compile(r".*\?nvlinkGroup\d+(Any)?GBps\.orValue.*")
_NIC_ADDRESSES: Final = re.compile(_OF + r'(pciAddress|pciBusID)\.orValue\(""\) in (\[.*\])')
_NVIDIA: Final = "gpu.nvidia.com"
_DRANET, _SRIOV = "dra.net", "sriovnetwork.k8snetworkplumbingwg.io"
_AMD: Final = "gpu.amd.com"
_KEPT_OFF: Final = ("NoSchedule", "NoExecute")
_BINDING: Final = ("bindingConditions", "bindingFailureConditions")


# What a claim asks for.


class Pin(NamedTuple):
    """The devices that a selector lets through: GPUs by uuid, or by address and type, or one MIG placement of a GPU."""

    domain: str
    uuids: tuple[str, ...]
    profile: str = ""
    start: int = 0
    type: str = ""
    name: str = "uuid"

    def holds(self, driver: str, device: Object) -> bool:
        def attribute(name: str, kind: str) -> object:
            every = device.get("attributes", {})
            own = every.get(f"{self.domain}/{name}") or (every.get(name) if self.domain == driver else None)
            return (own or {}).get(kind)

        if self.type:
            address = (device.get("attributes", {}).get("resource.kubernetes.io/pciBusID") or {}).get("string")
            return attribute("type", "string") == self.type and address in self.uuids
        if not self.profile:
            return attribute(self.name, "string") in self.uuids
        told = attribute("parentUUID", "string"), attribute("profile", "string"), attribute("placement", "int")
        return told == (self.uuids[0], self.profile, self.start)


def pins(request: Object) -> list[Pin]:
    """Return what the selectors of a request say; how devices are linked nobody knows here, so that says nothing."""
    texts = [selector["cel"]["expression"] for selector in request["exactly"].get("selectors") or ()]
    if request["exactly"]["deviceClassName"] in _NICS:
        found = [match for text in texts if (match := _NIC_ADDRESSES.fullmatch(text)) is not None]
        return [Pin(match[1], tuple(json.loads(match[3])), name=match[2]) for match in found]
    return [_pin(text) for text in texts if not _LINKED.fullmatch(text)]


def _pin(text: str) -> Pin:
    if (found := _PLACEMENT.fullmatch(text)) is not None:
        return Pin(found[1], (json.loads(found[2]),), json.loads(found[3]), int(found[4]))
    if (found := _ADDRESSES.fullmatch(text)) is not None:
        return Pin(found[1], tuple(json.loads(found[4])), type=json.loads(found[2]))
    found = _UUIDS.fullmatch(text)
    assert found is not None, f"no selector that the driver writes: {text}"
    return Pin(found[1], tuple(json.loads(found[2])))


def pinned(claim: Object) -> list[str]:
    """Return the uuids of the GPUs that a claim's selectors let through, or let through a placement of."""
    every = (pin for request in claim["spec"]["devices"]["requests"] for pin in pins(request))
    return [uuid for pin in every if pin.name == "uuid" for uuid in pin.uuids]


# What a claim was given.


def results(claim: Object) -> list[Object]:
    """Return a claim's results as the scheduler wrote them."""
    allocation = claim.get("status", {}).get("allocation") or {}
    found: list[Object] = (allocation.get("devices") or {}).get("results") or []
    return found


def result(node: str, device: str, request: str = "main", *, driver: str = names.DRIVER) -> Object:
    """Return the result of a request that gets a device, by its name or a GPU's uuid."""
    return {"request": request, "driver": driver, "pool": node, "device": resource_slices.device_name(device)}


# What nodes offer.


class Offer(NamedTuple):
    """A node's devices in their order, and what there is of each counter: by driver, pool, set and name."""

    devices: dict[DeviceId, Object]
    counters: dict[tuple[str, ...], int]


def offer(store: Store, node: str) -> Offer:
    """Return what a node offers to new claims."""
    found = Offer({}, {})
    ruled = rules(store)
    for (driver, pool), pieces in _pools(store, node).items():
        for piece in pieces:
            for each in piece["spec"].get("sharedCounters") or ():
                for name, counter in each["counters"].items():
                    found.counters[driver, pool, each["name"], name] = quantity.whole(counter["value"])
            for device in piece["spec"].get("devices") or ():
                if (driver, pool, device["name"]) not in ruled:
                    found.devices[driver, pool, device["name"]] = device
    return found


def rules(store: Store) -> frozenset[DeviceId]:
    """Return the devices that administrators' rules keep new claims off."""
    chosen = [rule["spec"]["deviceSelector"] for rule in store.all(DEVICE_TAINT_RULES)]
    return frozenset((one["driver"], one["pool"], one["device"]) for one in chosen)


def _pools(store: Store, node: str) -> dict[tuple[str, str], list[Object]]:
    """A node's pools by driver and name: the slices of the newest generation, if they are all there."""
    found: dict[tuple[str, str], list[Object]] = {}
    for piece in store.all(RESOURCE_SLICES):
        if piece["spec"].get("nodeName") == node or piece["spec"].get("allNodes"):
            found.setdefault((piece["spec"]["driver"], piece["spec"]["pool"]["name"]), []).append(piece)
    for key, pieces in found.items():
        newest = max(piece["spec"]["pool"]["generation"] for piece in pieces)
        there = [piece for piece in pieces if piece["spec"]["pool"]["generation"] == newest]
        whole = all(piece["spec"]["pool"]["resourceSliceCount"] == len(there) for piece in there)
        found[key] = sorted(there, key=lambda piece: str(piece["metadata"]["name"])) if whole else []
    return found


class Room:
    """What is left of a node's devices."""

    def __init__(self, offered: Offer, taken: Iterable[Object]) -> None:
        """``taken`` are the results of all claims."""
        self._devices, self._left = offered.devices, collections.Counter(offered.counters)
        self._used: dict[DeviceId, collections.Counter[str]] = {}
        for each in taken:
            if not each.get("adminAccess"):
                self._take(each)

    def allocate(self, claim: Object) -> list[Object] | None:
        """Return results for all requests of a claim, taken from the room; None where something does not fit."""
        given: list[Object] = []
        for request in claim["spec"].get("devices", {}).get("requests", ()):
            exactly, wanted = request["exactly"], pins(request)
            count = exactly.get("count", 1)
            for (driver, pool, name), device in self._devices.items():
                if not count:
                    break
                of_class = _CLASSES.get(exactly["deviceClassName"], _never)(driver, device)
                taints = [taint for taint in device.get("taints") or () if taint.get("effect") in _KEPT_OFF]
                kept_off = not all(tolerated(taint, exactly.get("tolerations") or ()) for taint in taints)
                if not of_class or kept_off or not all(pin.holds(driver, device) for pin in wanted):
                    continue
                takes = self._fits((driver, pool, name), exactly.get("capacity", {}).get("requests", {}))
                if takes is not None:
                    one: Object = {"request": request["name"], "driver": driver, "pool": pool, "device": name}
                    if takes:
                        one["consumedCapacity"] = takes
                    if device.get("allowMultipleAllocations"):
                        one["shareID"] = _share(claim, len(given))
                    one |= {key: device[key] for key in _BINDING if key in device}
                    self._take(one)
                    given.append(one)
                    count -= 1
            if count:
                return None
        return given

    def _fits(self, key: DeviceId, requests: Mapping[str, str]) -> dict[str, str] | None:
        """Return what a request consumes of a device's capacities; None where it does not fit."""
        device, used = self._devices[key], self._used.get(key)
        capacity = device.get("capacity", {})
        if not requests.keys() <= capacity.keys():
            return None
        if not device.get("allowMultipleAllocations"):
            asked = [(quantity.whole(capacity[name]["value"]), quantity.whole(text)) for name, text in requests.items()]
            lacking = any(self._left[counter] < value for counter, value in _counters(key, device))
            return None if used is not None or lacking or any(has < wants for has, wants in asked) else {}
        takes: dict[str, str] = {}
        for name, each in capacity.items():
            text = consumed(requests.get(name), each)
            if text is None or (used or {}).get(name, 0) + quantity.whole(text) > quantity.whole(each["value"]):
                return None
            takes[name] = text
        return takes

    def _take(self, given: Object) -> None:
        key = given["driver"], given["pool"], given["device"]
        used = self._used.setdefault(key, collections.Counter())
        used.update({name: quantity.whole(text) for name, text in given.get("consumedCapacity", {}).items()})
        if (device := self._devices.get(key)) is not None:
            self._left.subtract(dict(_counters(key, device)))


def _share(claim: Object, number: int) -> str:
    """Another one each time that a claim is allocated: what was said of the share before says nothing of this one."""
    return f"{claim['metadata']['uid']}-{claim['metadata'].get('resourceVersion', '0')}-{number}"


def consumed(asked: str | None, capacity: Object) -> str | None:
    """Return what a request takes of a capacity by its policy, rounded up; None for more than anybody may have.

    Of a range's values it is the next, and of valid ones too.
    """
    policy = capacity["requestPolicy"]
    text: str = policy["default"]
    if asked is None:
        return text
    workload = "Mi" if text.endswith("Mi") else ""
    one, wanted = quantity.whole(f"1{workload}"), quantity.whole(asked)
    if (valid := policy.get("validValues")) is not None:
        return min((each for each in valid if quantity.whole(each) >= wanted), key=quantity.whole, default=None)
    within = {key: quantity.whole(each) for key, each in policy["validRange"].items()}
    steps = max(-(-(wanted - within["min"]) // within["step"]), 0)
    taken = within["min"] + steps * within["step"]
    return None if taken > within["max"] else f"{taken // one}{workload}"


def _counters(key: DeviceId, device: Object) -> list[tuple[tuple[str, ...], int]]:
    return [
        ((*key[:2], each["counterSet"], name), quantity.whole(counter["value"]))
        for each in device.get("consumesCounters", ())
        for name, counter in each["counters"].items()
    ]


def _says(device: Object, name: str) -> object:
    """The value of an attribute, of whatever type."""
    return next(iter(device.get("attributes", {}).get(name, {}).values()), None)


def _never(driver: str, device: Object) -> bool:
    return False


def _is_of(driver: str, device: Object, vendor: str = NVIDIA.word) -> bool:
    """Whether a device is a vendor's; one that says of none is NVIDIA's."""
    return driver == names.DRIVER and (_says(device, "vendor") or NVIDIA.word) == vendor


def _whole_of(vendor: str, driver: str, device: Object) -> bool:
    return _is_of(driver, device, vendor) and _says(device, "type") == VENDORS[vendor].type


_EFA: Final = "efa.networking.k8s.aws"
_NICS: Final = {"dranet": _DRANET, "dranet.net": _DRANET, _EFA: _DRANET, _SRIOV: _SRIOV}

_CLASSES: Final[dict[str, Callable[[str, Object], bool]]] = {
    **{vendor.device_class: functools.partial(_whole_of, vendor.word) for vendor in VENDORS.values()},
    names.SHARE_CLASS: lambda driver, device: _is_of(driver, device) and _says(device, "shareable") is True,
    names.MIG_CLASS: lambda driver, device: (
        _is_of(driver, device) and (_says(device, "type") == "mig" or _says(device, "mig") == "dynamic")
    ),
    gang_barrier_device.CLASS: lambda driver, device: driver == names.DRIVER and _says(device, "type") == "seat",
    _NVIDIA: lambda driver, device: driver == _NVIDIA and _says(device, "type") == "gpu",
    "dranet": lambda driver, _: driver == _DRANET,
    "dranet.net": lambda driver, _: driver == _DRANET,
    _EFA: lambda driver, _: driver == _DRANET,
    _SRIOV: lambda driver, _: driver == _SRIOV,
    _AMD: lambda driver, device: driver == _AMD,
}
"""Which devices the charts' classes select."""
