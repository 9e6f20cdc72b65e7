"""Records which claims use each device, whole or in fractions.

The inventory of GPUs keeps the record as ``Inventory.holds``.

A device is identified by its pool, which is the node's name, and its device name. A *tentative placement* is the node
and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.api.claims.pins import Device, Key, Usage


class Holds:
    """The claims that use each device, and the devices of each claim, by device identity.

    A device that vanished and came back still belongs to its claim, because this class does not look at ResourceSlices.
    """

    def __init__(self) -> None:
        self._devices: dict[Key, dict[Device, Usage]] = {}
        self._holders: dict[Device, dict[Key, Usage]] = {}

    def hold(self, claim: Key, devices: Mapping[Device, Usage]) -> set[Device]:
        """Replace the devices that a claim uses; an empty mapping if the claim is gone.

        Returns:
            The devices whose usage changed.
        """
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
        """Remove a claim from the users of all devices.

        Returns:
            The devices that the claim used.
        """
        devices = {device for device, holders in self._holders.items() if claim in holders}
        for device in devices:
            del self._holders[device][claim]
            if not self._holders[device]:
                del self._holders[device]
        return devices | self._devices.pop(claim, {}).keys()

    def sound(self, claim: Key) -> bool:
        """Return whether both records of a claim's devices agree.

        One record has the devices of each claim, the other has the claims of each device, with the fractions. The audit
        of the cluster cache asks this.
        """
        return all(self._holders.get(d, {}).get(claim, ...) == a for d, a in self._devices.get(claim, {}).items())

    def claims(self) -> tuple[Key, ...]:
        """Return all claims that use any device."""
        return tuple(self._devices)

    def devices(self) -> tuple[Device, ...]:
        """Return all devices that any claim uses."""
        return tuple(self._holders)

    def of(self, claim: Key) -> Mapping[Device, Usage]:
        """Return the devices that a claim uses."""
        return self._devices.get(claim, {})

    def holders(self, device: Device) -> Mapping[Key, Usage]:
        """Return the claims that use a device, each with the fraction that it uses.

        There are several if they share the device, or if a tentative placement overlaps with another claim.
        """
        return self._holders.get(device, {})
