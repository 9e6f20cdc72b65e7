"""Which DRA driver allocates the GPUs: what tells its slices, claims and pins from another driver's.

That is one fact of a process, said by its option ``--allocating-driver``: who needs it asks ``current_ledger``. It is
kept in a context variable, so tasks have what was bound where they were created; threads that ``asyncio.to_thread`` did
not start begin with this driver's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.topology import vendors
from dradriver.topology.vendors import VENDORS

_VENDOR_OF: Final = MappingProxyType({vendor.device_class: vendor.word for vendor in VENDORS.values()})


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One driver's books.

    Attributes:
        driver: The driver's name, in slices and in allocations.
        device_class: The DeviceClass that whole GPUs are asked for by.
        attribute_domain: The domain of the driver's own attributes.
        identity: The attribute that tells a GPU from all others of its node, with its domain: of the uuid, or of the
            address on the PCI bus.
        gpu_type: What the attribute ``type`` says of a whole GPU.
        config_kind: The kind of the driver's own configuration that is for whole GPUs.
        vendor: The GPUs' vendor (``topology.vendors``); empty if each pod names it.
    """

    driver: str
    device_class: str
    attribute_domain: str
    identity: str
    gpu_type: str
    config_kind: str
    vendor: str = ""

    def class_of(self, vendor: str) -> str:
        """Return the DeviceClass by which the allocating driver's claims request a vendor's whole GPUs."""
        return self.device_class if self.vendor else VENDORS[vendor].device_class

    @property
    def vendor_of(self) -> Mapping[str, str]:
        """Return whose whole GPUs a DeviceClass of the allocating driver is for."""
        return {self.device_class: self.vendor} if self.vendor else _VENDOR_OF

    @property
    def by_address(self) -> bool:
        """Return whether the allocating driver's GPUs have no uuids and are identified by PCI address."""
        return self.identity == names.PCI_BUS_ID

    @property
    def identity_key(self) -> str:
        """Return the identity attribute as the allocating driver's slices have it: without the driver's own domain."""
        return self.identity.removeprefix(f"{self.driver}/")


OURS: Final = Ledger(
    driver=names.DRIVER,
    device_class=names.DEVICE_CLASS,
    attribute_domain=names.ATTRIBUTE_DOMAIN,
    identity=f"{names.ATTRIBUTE_DOMAIN}/uuid",
    gpu_type="gpu",
    config_kind=names.CONFIG_KIND,
)

NVIDIA: Final = Ledger(
    driver="gpu.nvidia.com",
    device_class="gpu.nvidia.com",
    attribute_domain="gpu.nvidia.com",
    identity="gpu.nvidia.com/uuid",
    gpu_type="gpu",
    config_kind="GpuConfig",
    vendor=vendors.NVIDIA.word,
)
"""NVIDIA's own DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go).

It names a GPU ``gpu-<minor>``, so a name is another GPU's once one is lost; the attribute stays.
"""

AMD: Final = Ledger(
    driver="gpu.amd.com",
    device_class="gpu.amd.com",
    attribute_domain="gpu.amd.com",
    identity=names.PCI_BUS_ID,
    gpu_type="amdgpu",
    config_kind="GpuConfig",
    vendor=vendors.AMD.word,
)
"""AMD's DRA driver (ROCm/k8s-gpu-dra-driver, docs/driver-attributes.md).

It names a GPU ``gpu-<card>-<render>``, which may be another after a reboot, and publishes neither a uuid nor links.
Partitions, and a GPU as it is passed through to a virtual machine, have the same address and another type.
"""

OTHERS: Final = (NVIDIA, AMD)
"""Drivers beside which this one can choose."""

LEDGERS: Final[Mapping[str, Ledger]] = MappingProxyType({one.driver: one for one in (OURS, *OTHERS)})
"""By the driver's name, as the processes' option ``--allocating-driver`` has it."""

_CURRENT: Final = ContextVar("ledger", default=OURS)


def current_ledger() -> Ledger:
    """Return the driver that allocates GPUs in this process: this driver if none was bound."""
    return _CURRENT.get()


def bind(ledger: Ledger) -> None:
    """Set the driver that allocates GPUs in this process, also in tasks that are created later."""
    _CURRENT.set(ledger)


@contextlib.contextmanager
def bound(ledger: Ledger) -> Iterator[None]:
    """Set the driver that allocates GPUs for the length of the block, and in tasks that are created in it."""
    token = _CURRENT.set(ledger)
    try:
        yield
    finally:
        _CURRENT.reset(token)
