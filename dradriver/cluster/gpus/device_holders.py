"""Which claims hold each device, all of it or a fraction."""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.api.claims.pins import Device, Key, Usage


class Holds:
    """Devices by identity, and the claims that hold them.

    A device that vanished and came back still belongs to the claim that had it: nothing here knows what is listed.
    """

    def __init__(self) -> None:
        self._devices: dict[Key, dict[Device, Usage]] = {}
        self._holders: dict[Device, dict[Key, Usage]] = {}

    def hold(self, claim: Key, devices: Mapping[Device, Usage]) -> set[Device]:
        """Set all devices that a claim holds; nothing when it is gone. Returns the devices that changed."""
        before = self._devices.get(claim, {})
        if before == devices:
            return set()
        for device in before.keys() - devices.keys():
            del self._holders[device][claim]
            if not self._holders[device]:
                del self._holders[device]
        for device, amount in devices.items():
            self._holders.setdefault(device, {})[claim] = amount
        if devices:
            self._devices[claim] = dict(devices)
        else:
            del self._devices[claim]
        return {
            device for device in before.keys() | devices.keys() if before.get(device, "") != devices.get(device, "")
        }

    def forget(self, claim: Key) -> set[Device]:
        """Remove a claim from the holders of devices. Returns the devices that it held."""
        devices = {device for device, holders in self._holders.items() if claim in holders}
        for device in devices:
            del self._holders[device][claim]
            if not self._holders[device]:
                del self._holders[device]
        return devices | self._devices.pop(claim, {}).keys()

    def sound(self, claim: Key) -> bool:
        """Return whether each device that a claim holds lists the claim among its holders, with the same part."""
        return all(self._holders.get(d, {}).get(claim, ...) == a for d, a in self._devices.get(claim, {}).items())

    def claims(self) -> tuple[Key, ...]:
        """Return all claims that hold any device."""
        return tuple(self._devices)

    def devices(self) -> tuple[Device, ...]:
        """Return all devices that a claim holds."""
        return tuple(self._holders)

    def of(self, claim: Key) -> Mapping[Device, Usage]:
        """Return the devices that a claim holds."""
        return self._devices.get(claim, {})

    def holders(self, device: Device) -> Mapping[Key, Usage]:
        """Return the claims that hold a device: one, or several that share it or were promised it twice."""
        return self._holders.get(device, {})
