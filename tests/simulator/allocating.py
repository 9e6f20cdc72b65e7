"""Devices given to claims by kube-scheduler's rules: classes, selectors, capacities that are consumed, counters."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dradriver.api import names
from tests.fakes import scheduling
from tests.fakes.apistore import Object
from tests.simulator.taking import Homes, amount, selected


class Room:
    """What is left of one pool's devices."""

    def __init__(self, pool: str, devices: Mapping[str, Object], homes: Homes, taken: Iterable[Object]) -> None:
        """``taken`` are the results of all claims. A device that is listed no more gives its counters back."""
        self._pool, self._devices, self._homes = pool, devices, homes
        self._used: dict[str, collections.Counter[str]] = {}
        self._counted: collections.Counter[tuple[str, str]] = collections.Counter()
        for result in taken:
            if result["pool"] == pool and not result.get("adminAccess"):
                self._take(result)

    def allocate(self, claim: Object) -> list[Object] | None:
        """Return results for all requests of a claim, taken from the room; None where something does not fit."""
        given: list[Object] = []
        for request in claim["spec"].get("devices", {}).get("requests", ()):
            exactly = request["exactly"]
            wanted = selected(exactly, self._homes)
            count = exactly.get("count", 1)
            for name, device in self._devices.items():
                if not count:
                    break
                if (wanted is not None and name not in wanted) or not _OF_CLASS[exactly["deviceClassName"]](device):
                    continue
                consumed = self._fits(device, exactly.get("capacity", {}).get("requests", {}))
                if consumed is not None:
                    result = {"request": request["name"], "driver": names.DRIVER, "pool": self._pool, "device": name}
                    if consumed:
                        result |= {"consumedCapacity": consumed, "shareID": f"{name}-{len(given)}"}
                    self._take(result)
                    given.append(result)
                    count -= 1
            if count:
                return None
        return given

    def _fits(self, device: Object, requests: Mapping[str, str]) -> dict[str, str] | None:
        """Return what a request consumes of a device's capacities; None where it does not fit."""
        capacity, used = device.get("capacity", {}), self._used.get(device["name"])
        if not requests.keys() <= capacity.keys():
            return None
        if not device.get("allowMultipleAllocations"):
            small = any(amount(capacity[name]["value"]) < amount(text) for name, text in requests.items())
            counted = any(self._counted[key] + value > 1 for key, value in _counters(device))
            return None if small or counted or used is not None else {}
        consumed: dict[str, str] = {}
        for name, each in capacity.items():
            text = scheduling.consumed(requests.get(name), each)
            if text is None or (used or {}).get(name, 0) + amount(text) > amount(each["value"]):
                return None
            consumed[name] = text
        return consumed

    def _take(self, result: Object) -> None:
        used = self._used.setdefault(result["device"], collections.Counter())
        used.update({name: amount(text) for name, text in result.get("consumedCapacity", {}).items()})
        if (device := self._devices.get(result["device"])) is not None:
            self._counted.update(dict(_counters(device)))


def _counters(device: Object) -> list[tuple[tuple[str, str], int]]:
    return [
        ((each["counterSet"], name), int(counter["value"]))
        for each in device.get("consumesCounters", ())
        for name, counter in each["counters"].items()
    ]


def _type(device: Object) -> object:
    return device["attributes"].get("type", {}).get("string")


_OF_CLASS: Final[dict[str, Callable[[Object], bool]]] = {
    names.DEVICE_CLASS: lambda device: _type(device) == "gpu",
    names.SHARE_CLASS: lambda device: device["attributes"].get("shareable", {}).get("bool") is True,
    names.MIG_CLASS: lambda device: (
        _type(device) == "mig" or device["attributes"].get("mig", {}).get("string") == "dynamic"
    ),
}
"""Which devices the chart's classes select."""
