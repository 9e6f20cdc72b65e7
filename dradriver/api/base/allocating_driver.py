"""Which DRA driver allocates the GPUs, and the names in its slices and claims.

Each process has one allocating driver, from the option ``--allocating-driver``: this project's driver by default, or
NVIDIA's or AMD's. In the code, this driver is called the *ledger*, and the function ``current_ledger`` returns it. The
driver is kept in a context variable (``contextvars``). A task has the driver that was bound when the task was created.
A new thread has the default, unless ``asyncio.to_thread`` started the thread.
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
    """The driver that allocates the GPUs, with its names in slices, claims and attributes.

    Attributes:
        driver: The driver's name, in slices and in allocations.
        device_class: The DeviceClass of whole GPUs.
        attribute_domain: The domain of the driver's own attributes.
        identity: The full name of the attribute that identifies a GPU on its node: the uuid, or the PCI address.
        gpu_type: The value of the attribute ``type`` for a whole GPU.
        config_kind: The kind of the driver's own configuration for whole GPUs.
        vendor: The vendor of the GPUs (``topology.vendors``). Empty if the driver supports several vendors, so that
            each pod names one.
    """

    driver: str
    device_class: str
    attribute_domain: str
    identity: str
    gpu_type: str
    config_kind: str
    vendor: str = ""

    def class_of(self, vendor: str) -> str:
        """Return the DeviceClass for the whole GPUs of a vendor, which claims name.

        If the allocating driver supports only one vendor, the argument is ignored.
        """
        return self.device_class if self.vendor else VENDORS[vendor].device_class

    @property
    def vendor_of(self) -> Mapping[str, str]:
        """Return the GPU vendor by DeviceClass, for the classes of whole GPUs of the allocating driver."""
        return {self.device_class: self.vendor} if self.vendor else _VENDOR_OF

    @property
    def by_address(self) -> bool:
        """Return whether the allocating driver identifies GPUs by PCI address, because it publishes no uuids."""
        return self.identity == names.PCI_BUS_ID

    @property
    def identity_key(self) -> str:
        """Return the name of the attribute that identifies a GPU, without the driver's own domain."""
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
    """Return the driver that allocates GPUs in this process; this project's driver if none was bound."""
    return _CURRENT.get()


def bind(ledger: Ledger) -> None:
    """Set the driver that allocates GPUs, for the current task and all tasks that it creates later.

    Args:
        ledger: The driver.
    """
    _CURRENT.set(ledger)


@contextlib.contextmanager
def bound(ledger: Ledger) -> Iterator[None]:
    """Set the driver that allocates GPUs while the body of ``with`` runs.

    Tasks that are created in the body have it, too.

    Args:
        ledger: The driver.
    """
    token = _CURRENT.set(ledger)
    try:
        yield
    finally:
        _CURRENT.reset(token)
