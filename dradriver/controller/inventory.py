"""Which GPUs every node has, who holds them, and the allocator's picture of what is free."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from dradriver.allocator import Fleet
from dradriver.api import names, slices
from dradriver.api.objects import Device as SliceDevice
from dradriver.api.objects import ResourceSlice
from dradriver.api.pins import Device, Key
from dradriver.errors import DriverError
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class _Pool:
    """One node's complete newest generation: its machine and the devices that may be given away."""

    def __init__(self, machine: Machine, usable: frozenset[str]) -> None:
        self.machine = machine
        self.usable = usable


class Inventory:
    """All GPUs by identity.

    A device is taken while any claim holds it, listed or not: a GPU that vanished and came back still belongs to the
    claim that had it.
    """

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._pools: dict[str, _Pool] = {}
        self._held: dict[Key, frozenset[Device]] = {}
        self._holders: dict[Device, set[Key]] = {}
        self._fleet = Fleet()
        self._dirty: set[str] = set()

    @property
    def fleet(self) -> Fleet:
        """The allocator's arrays, up to date."""
        for pool in sorted(self._dirty):
            self._refresh(pool)
        self._dirty.clear()
        return self._fleet

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> bool:
        """Take in a slice's change. Returns whether it is one of this driver's."""
        relevant = [s for s in (old, new) if s is not None and s.spec.driver == names.DRIVER]
        if old is not None and old in relevant:
            self._slices.get(old.spec.pool.name, {}).pop(old.metadata.name, None)
        if new is not None and new in relevant:
            self._slices.setdefault(new.spec.pool.name, {})[new.metadata.name] = new
        for pool in {s.spec.pool.name for s in relevant}:
            self._read(pool)
        return bool(relevant)

    def hold(self, key: Key, devices: frozenset[Device]) -> bool:
        """Record the devices that a claim holds from now on; none when it is gone. Returns whether that is news."""
        before = self._held.get(key, frozenset())
        if before == devices:
            return False
        for device in before - devices:
            self._holders[device].discard(key)
            if not self._holders[device]:
                del self._holders[device]
        for device in devices - before:
            self._holders.setdefault(device, set()).add(key)
        if devices:
            self._held[key] = devices
        else:
            del self._held[key]
        self._dirty.update(pool for pool, _ in before ^ devices)
        return True

    @contextlib.contextmanager
    def without(self, key: Key) -> Iterator[None]:
        """Count what a claim holds as free inside the block, to see where its pod could go instead.

        Never await inside: everybody else would see those devices as free.
        """
        devices = self._held.get(key, frozenset())
        self.hold(key, frozenset())
        try:
            yield
        finally:
            self.hold(key, devices)

    def holders(self, device: Device) -> frozenset[Key]:
        """Return the claims that hold a device: one, or several where pins were promised twice."""
        return frozenset(self._holders.get(device, ()))

    def machine(self, pool: str) -> Machine | None:
        """Return a node's machine, or None while its pool is not complete."""
        found = self._pools.get(pool)
        return found.machine if found is not None else None

    def usable(self, device: Device) -> bool | None:
        """Return whether a device is listed and untainted; None while its pool is not complete."""
        pool = self._pools.get(device[0])
        return device[1] in pool.usable if pool is not None else None

    def _read(self, pool: str) -> None:
        self._dirty.add(pool)
        self._pools.pop(pool, None)
        found = list(self._slices.get(pool, {}).values())
        if not found:
            self._slices.pop(pool, None)
            return
        newest = max(s.spec.pool.generation for s in found)
        current = [s for s in found if s.spec.pool.generation == newest]
        # The scheduler gives away nothing of an incomplete pool, so neither may a pin.
        if len(current) != current[0].spec.pool.resource_slice_count:
            return
        if any(s.spec.node_name != pool for s in current):
            logger.warning("pool %s: its slices are not those of the node of that name; its GPUs are not used", pool)
            return
        try:
            machine = slices.read_machine(current)
        except TopologyError as error:
            logger.warning("pool %s: %s; its GPUs are not placed", pool, error)
            return
        if machine is not None:
            usable = frozenset(d.name for s in current for d in s.spec.devices if not _blocked(d))
            self._pools[pool] = _Pool(machine, usable)

    def _refresh(self, name: str) -> None:
        pool = self._pools.get(name)
        if pool is None:
            self._fleet.remove(name)
            return
        free = [
            gpu.index
            for gpu in pool.machine.gpus
            if (device := slices.device_name(gpu.uuid)) in pool.usable and (name, device) not in self._holders
        ]
        try:
            self._fleet.set_node(name, pool.machine, free)
        except DriverError as error:
            logger.warning("node %s: %s; its GPUs are not placed", name, error)
            self._fleet.remove(name)
            del self._pools[name]


def _blocked(device: SliceDevice) -> bool:
    """Our claims tolerate no taint, so the scheduler would refuse a pin to such a device."""
    return any(taint.blocks for taint in device.taints)
