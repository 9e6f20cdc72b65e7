"""Whose GPUs a machine has, and what follows from it for who asks for them, places them and prepares them.

One vendor a machine, and one a pod. What reads and prepares a vendor's GPUs has a room in ``dradriver/node/vendors``.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class LinkKind(msgspec.Struct, frozen=True):
    """A kind of direct link that a vendor's tools call by a name, without a number.

    Attributes:
        cell: What stands in a matrix.
        links: The number of links that compares it with other kinds.
        meaning: What a legend says of it.
    """

    cell: str
    links: int
    meaning: str


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One maker of GPUs.

    Attributes:
        word: What stands in ``Gpu.vendor``.
        link: What its direct links are called.
        cell: The same before their number in a matrix: ``NV4``.
        kinds: Links that stand there by a name instead, by whose number nothing is said but which carries more.
        library: The collective library that its jobs bring.
        predicted: Whether the all-reduce bandwidth of sets can be predicted. The model here is NCCL's; RCCL and HCCL
            search otherwise, and a figure of theirs would be invented.
        rated: Whether what one link carries is published.
        device_class: The DeviceClass that its whole GPUs are asked for by.
        resources: Extended resources that ask for whole GPUs of it, as limits, and by which its device plugins hand
            them out; first the one of any product.
        offered: How the names begin by which its device plugins hand out parts of its GPUs, or GPUs of one product.
        parts: Whether there are shares and slices of its GPUs.
        hides: Variables that choose among a container's GPUs, by which a pod's author may hide some.
        injects: Variables by which the vendor's own container runtime adds devices that no claim gives.
    """

    word: str
    link: str
    cell: str
    kinds: tuple[LinkKind, ...] = ()
    library: str
    predicted: bool = False
    rated: bool = True
    device_class: str
    resources: tuple[str, ...]
    offered: tuple[str, ...]
    parts: bool = False
    hides: tuple[str, ...]
    injects: tuple[str, ...]

    def link_cell(self, links: int) -> str:
        """Return how the vendor's matrix shows so many links of a pair, one or more."""
        return next((kind.cell for kind in self.kinds if kind.links == links), f"{self.cell}{links}")

    @property
    def type(self) -> str:
        """Return the attribute ``type`` of the vendor's whole GPUs: ``gpu`` is NVIDIA's alone.

        DeviceClasses of releases that knew no vendor select that, and after a rollback they are back.
        """
        return "gpu" if self.word == "nvidia" else f"{self.word}-gpu"


NVIDIA: Final = Vendor(
    word="nvidia",
    link="NVLink",
    cell="NV",
    library="NCCL",
    predicted=True,
    device_class="gpu.topology",
    resources=("nvidia.com/gpu",),
    offered=("nvidia.com/mig-",),
    parts=True,
    hides=("CUDA_VISIBLE_DEVICES",),
    injects=("NVIDIA_VISIBLE_DEVICES",),
)
AMD: Final = Vendor(
    word="amd",
    link="xGMI",
    cell="XGMI",
    library="RCCL",
    device_class="amd.gpu.topology",
    resources=("amd.com/gpu",),
    offered=tuple(f"amd.com/{mode}_" for mode in ("spx", "dpx", "tpx", "qpx", "cpx")),
    hides=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    injects=("AMD_VISIBLE_DEVICES",),
)
ASCEND: Final = Vendor(
    word="ascend",
    link="HCCS",
    cell="HCCS",
    kinds=(
        LinkKind("HCCS", 1, "Connection traversing HCCS"),
        LinkKind("SIO", 2, "Connection traversing SIO, between the two dies of a module"),
    ),
    library="HCCL",
    rated=False,
    device_class="ascend.gpu.topology",
    resources=("huawei.com/npu", "huawei.com/Ascend910", "huawei.com/Ascend310P", "huawei.com/Ascend310"),
    offered=("huawei.com/Ascend", "huawei.com/npu-"),
    hides=("ASCEND_RT_VISIBLE_DEVICES",),
    injects=("ASCEND_VISIBLE_DEVICES",),
)
VENDORS: Final = {vendor.word: vendor for vendor in (NVIDIA, AMD, ASCEND)}


_KINDS: Final = {kind.cell: (vendor, kind.links) for vendor in VENDORS.values() for kind in vendor.kinds}
_NUMBERED: Final = re.compile(f"({'|'.join(vendor.cell for vendor in VENDORS.values())})([1-9][0-9]?)")
_OF_CELL: Final = {vendor.cell: vendor for vendor in VENDORS.values()}


def links_of(cell: str) -> tuple[Vendor, int] | None:
    """Return which vendor's links a matrix's cell stands for, and how many; None if it is no such cell."""
    match = _NUMBERED.fullmatch(cell)
    return (_OF_CELL[match[1]], int(match[2])) if match else _KINDS.get(cell)
