"""Whose devices they are: what tells one driver's slices, claims and pins from another's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api import names


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One driver's books.

    Attributes:
        driver: The driver's name, in slices and in allocations.
        device_class: The DeviceClass that whole GPUs are asked for by.
        attribute_domain: The domain of the attribute that names a GPU.
        uuid_attribute: That attribute, without its domain.
        config_kind: The kind of the driver's own configuration that is for whole GPUs.
    """

    driver: str
    device_class: str
    attribute_domain: str
    uuid_attribute: str
    config_kind: str


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
)
"""NVIDIA's own DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go).

It names a GPU ``gpu-<minor>``, so a name is another GPU's once one is lost; the attribute stays.
"""

LEDGERS: Final[Mapping[str, Ledger]] = MappingProxyType({one.driver: one for one in (OURS, NVIDIA)})
"""By the driver's name, as the processes' option ``--ledger`` has it."""
