"""Reads the devices of a ResourceSlice: the GPU or fraction that a device stands for, and how it can be divided.

A *share* is a fraction of a GPU without MIG. A ``Ledger`` describes the driver that allocates the GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import Ledger
from dradriver.api.base.dra_objects import Device
from dradriver.api.base.errors import WordError
from dradriver.api.claims import pins
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary import values
from dradriver.topology.machine import Machine

_ADDRESS: Final = "pci/"  # before a bus id: a GPU that is passed through to a virtual machine has a made-up uuid


class PartsOf(msgspec.Struct, frozen=True, kw_only=True):
    """How a device can be allocated in fractions.

    Attributes:
        shared: Whether shares of it can be allocated.
        sliced: Whether MIG slices of it can be allocated, which are created on demand.
        only: Whether it cannot be allocated as a whole.
        exclusive: Whether its fractions are for one namespace at a time.
        memory_mib: The memory that its shares can have together, in MiB; 0 if it is not published.
        equal: The number of equal shares that it is divided into; 0 for shares of any size.
    """

    shared: bool
    sliced: bool
    only: bool
    exclusive: bool
    memory_mib: int = 0
    equal: int = 0


class OwnSlice(msgspec.Struct, frozen=True):
    """A MIG slice that is a device of its own.

    Attributes:
        counted: Whether it is only a possible placement, for which counters of its GPU must have room; else it is an
            existing instance.
        exclusive: Whether all slices of its GPU are for one namespace at a time.
    """

    counted: bool
    exclusive: bool


def is_gpu(device: Device, ledger: Ledger) -> bool:
    """Return whether another driver's device is a whole GPU. ``ledger`` describes that driver."""
    return device.text("type") == ledger.gpu_type and device.text(ledger.identity_key) != ""


def identity(device: Device, ledger: Ledger) -> str:
    """Return the identity of the GPU behind another driver's device: uuid or PCI address.

    The PCI address, ``pci/`` and the bus id, is used if the device does not have its GPU's uuid. The result is empty if
    it has neither. ``gpu_names`` translates it into our device name. ``ledger`` describes the other driver.
    """
    if is_gpu(device, ledger) and not ledger.by_address:
        return device.text(ledger.identity_key)
    address = device.text(names.PCI_BUS_ID)
    return device.text("parentUUID") or (f"{_ADDRESS}{address}" if address else "")


def gpu_names(said: Mapping[str, str], machine: Machine | None) -> dict[str, str]:
    """Return our own device name of the GPU behind each device of another driver.

    Args:
        said: What ``identity`` returned for each device, by the other driver's device name.
        machine: The machine with these devices; None if it is not known.

    Returns:
        Our device names by the other driver's device names.
    """
    addresses = {} if machine is None else {f"{_ADDRESS}{gpu.pci}": gpu.uuid for gpu in machine.gpus if gpu.pci}
    return {
        name: resource_slices.device_name(uuid)
        for name, identity in said.items()
        if (uuid := addresses.get(identity) if identity.startswith(_ADDRESS) else identity)
    }


def parts_of(device: Device) -> PartsOf | None:
    """Return how a device can be allocated in fractions; None if it is allocated only as a whole."""
    if not device.allow_multiple_allocations:
        return None
    equal = device.number("equalShares") or 0
    return _parts_of(
        device.attributes.get("shareable", {}).get("bool") is True,
        device.text("mig") == "dynamic",
        device.text("type") in ("mig", "share"),
        device.text("exclusiveTo") == "namespace",
        str(device.capacity.get(names.CAPACITY_MEMORY, {}).get("value", "")),
        equal if 0 < equal <= pins.ALL_CORES else 0,
    )


_OWN_SLICES: Final = [[OwnSlice(counted, exclusive) for exclusive in (False, True)] for counted in (False, True)]


def own_slice(device: Device) -> OwnSlice | None:
    """Return the kind of MIG slice that a device is; None for any other device."""
    if device.text("type") != "mig" or device.allow_multiple_allocations:
        return None
    return _OWN_SLICES[bool(device.consumes_counters)][device.text("exclusiveTo") == "namespace"]


def slice_words(device: Device) -> str:
    """Return a MIG slice as text in the form of pod annotations, such as ``1g.10gb@6``.

    Empty for any device that is not a MIG slice.
    """
    profile, start = device.text("profile"), device.number("placement")
    return f"{profile}@{start}" if profile and start is not None else ""


@functools.lru_cache(maxsize=256)  # 5,000 nodes have a few kinds of GPUs, which are shared in a few ways
def _parts_of(shared: bool, sliced: bool, only: bool, exclusive: bool, memory: str, equal: int) -> PartsOf | None:
    if not (shared or sliced):
        return None
    try:
        memory_mib = quantity.whole(memory) >> 20
    except WordError:
        memory_mib = 0
    return PartsOf(
        shared=shared,
        sliced=sliced,
        only=only,
        exclusive=exclusive,
        memory_mib=max(0, min(memory_mib, values.MOST_MEMORY_MIB)),
        equal=equal,
    )
