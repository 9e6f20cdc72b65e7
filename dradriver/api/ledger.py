"""Whose devices a process hands out: what tells one driver's slices, claims and pins from another's.

That is one fact of a process, said by its option ``--ledger``: who needs it asks ``current_ledger``. It is kept in a
context variable, so tasks have what was bound where they were created; threads that ``asyncio.to_thread`` did not start
begin with this driver's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api import names
from dradriver.topology import vendors
from dradriver.topology.vendors import VENDORS

_VENDOR_OF: Final = MappingProxyType({vendor.device_class: vendor.word for vendor in VENDORS.values()})


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One driver's books.

    Attributes:
        driver: The driver's name, in slices and in allocations.
        device_class: The DeviceClass that whole GPUs are asked for by.
        attribute_domain: The domain of the attribute that names a GPU.
        uuid_attribute: That attribute, without its domain.
        config_kind: The kind of the driver's own configuration that is for whole GPUs.
        vendor: Whose GPUs they are, where they are all of one vendor; empty where a driver has those of several.
    """

    driver: str
    device_class: str
    attribute_domain: str
    uuid_attribute: str
    config_kind: str
    vendor: str = ""

    def class_of(self, vendor: str) -> str:
        """Return the DeviceClass that a vendor's whole GPUs are asked for by."""
        return self.device_class if self.vendor else VENDORS[vendor].device_class

    @property
    def vendor_of(self) -> Mapping[str, str]:
        """Whose GPUs are asked for by a DeviceClass of whole ones."""
        return {self.device_class: self.vendor} if self.vendor else _VENDOR_OF


OURS: Final = Ledger(
    driver=names.DRIVER,
    device_class=names.DEVICE_CLASS,
    attribute_domain=names.ATTRIBUTE_DOMAIN,
    uuid_attribute="uuid",
    config_kind=names.CONFIG_KIND,
)

NVIDIA: Final = Ledger(
    driver="gpu.nvidia.com",
    device_class="gpu.nvidia.com",
    attribute_domain="gpu.nvidia.com",
    uuid_attribute="uuid",
    config_kind="GpuConfig",
    vendor=vendors.NVIDIA.word,
)
"""NVIDIA's own DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go).

It names a GPU ``gpu-<minor>``, so a name is another GPU's once one is lost; the attribute stays.
"""

LEDGERS: Final[Mapping[str, Ledger]] = MappingProxyType({one.driver: one for one in (OURS, NVIDIA)})
"""By the driver's name, as the processes' option ``--ledger`` has it."""

_CURRENT: Final = ContextVar("ledger", default=OURS)


def current_ledger() -> Ledger:
    """Return the ledger of the driver whose devices are handed out here: this driver's where none was bound."""
    return _CURRENT.get()


def bind(ledger: Ledger) -> None:
    """Hand out a driver's devices from now on, here and in tasks that are created later: once, as a process starts."""
    _CURRENT.set(ledger)


@contextlib.contextmanager
def bound(ledger: Ledger) -> Iterator[None]:
    """Hand out a driver's devices for the length of the block, and in tasks that are created in it."""
    token = _CURRENT.set(ledger)
    try:
        yield
    finally:
        _CURRENT.reset(token)
