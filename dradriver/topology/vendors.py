"""Whose GPUs a machine has, and what follows from it for placement. One vendor a machine."""

from __future__ import annotations

from typing import Final

import msgspec


class Vendor(msgspec.Struct, frozen=True):
    """One maker of GPUs.

    Attributes:
        word: What stands in ``Gpu.vendor``.
        link: What its direct links are called.
        cell: The same before their number in a matrix: ``NV4``.
        library: The collective library that its jobs bring.
        predicted: Whether the all-reduce bandwidth of sets can be predicted. The model here is NCCL's; RCCL and HCCL
            search otherwise, and a figure of theirs would be invented.
        rated: Whether what one link carries is published.
    """

    word: str
    link: str
    cell: str
    library: str
    predicted: bool = False
    rated: bool = True


NVIDIA: Final = Vendor("nvidia", "NVLink", "NV", "NCCL", predicted=True)
AMD: Final = Vendor("amd", "xGMI", "XGMI", "RCCL")
ASCEND: Final = Vendor("ascend", "HCCS", "HCCS", "HCCL", rated=False)
VENDORS: Final = {vendor.word: vendor for vendor in (NVIDIA, AMD, ASCEND)}
