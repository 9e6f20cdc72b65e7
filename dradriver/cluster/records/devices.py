"""What a device of a slice says: which GPU it is or is a part of, and how that may be had in parts."""

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
    """How a device may be had in parts.

    Attributes:
        shared: In shares.
        sliced: In MIG slices, made where they are wanted.
        only: Never whole.
        exclusive: Its parts are of one namespace at a time.
        memory_mib: How much memory its shares together may have; 0 where that is not said.
        equal: In how many equal shares it is had; 0 for shares of any size.
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
        counted: It is one of a GPU's placements, which share counters; else an instance that is there already.
        exclusive: All slices of its GPU are of one namespace at a time.
    """

    counted: bool
    exclusive: bool


def is_gpu(device: Device, ledger: Ledger) -> bool:
    """Return whether another driver's device is a GPU, and no part of one."""
    return device.text("type") == ledger.gpu_type and device.text(ledger.identity_key) != ""


def identity(device: Device, ledger: Ledger) -> str:
    """Return which GPU another driver's device is or is a part of, for ``gpu_names``; empty if it does not say.

    That is the uuid or, of a device without its GPU's, ``pci/`` and the bus id.
    """
    if is_gpu(device, ledger) and not ledger.by_address:
        return device.text(ledger.identity_key)
    address = device.text(names.PCI_BUS_ID)
    return device.text("parentUUID") or (f"{_ADDRESS}{address}" if address else "")


def gpu_names(said: Mapping[str, str], machine: Machine | None) -> dict[str, str]:
    """Return our device names of the GPUs that another driver's devices are or are parts of.

    Args:
        said: The ``identity`` of each, by its name.
        machine: The machine that they are in, None where it is not known.
    """
    addresses = {} if machine is None else {f"{_ADDRESS}{gpu.pci}": gpu.uuid for gpu in machine.gpus if gpu.pci}
    return {
        name: resource_slices.device_name(uuid)
        for name, identity in said.items()
        if (uuid := addresses.get(identity) if identity.startswith(_ADDRESS) else identity)
    }


def parts_of(device: Device) -> PartsOf | None:
    """Return how a device may be had in parts; None for one that one claim has for itself."""
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
    """Return which MIG slice a device is; None for any other."""
    if device.text("type") != "mig" or device.allow_multiple_allocations:
        return None
    return _OWN_SLICES[bool(device.consumes_counters)][device.text("exclusiveTo") == "namespace"]


def slice_words(device: Device) -> str:
    """Return a MIG slice in the words of pods, ``1g.10gb@6``; empty for any other device."""
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
