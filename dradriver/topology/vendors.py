"""The GPU vendors, and their differences for requests, placement and preparation of GPUs.

A machine has one vendor, and so has a pod. ``dradriver/node/vendors`` has the code that reads and prepares a vendor's
GPUs.

A matrix is the table of links and paths that a vendor's tool prints, such as ``nvidia-smi topo -m``. A cell is one
entry of it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class LinkKind(msgspec.Struct, frozen=True):
    """A kind of direct link that a vendor's tools show by a name, without a number.

    Attributes:
        cell: The text in a matrix.
        links: A number of links that stands for this kind, to compare it with other kinds.
        meaning: The text in a legend.
    """

    cell: str
    links: int
    meaning: str


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One maker of GPUs.

    Attributes:
        word: The value of ``Gpu.vendor``.
        link: The name of its direct links.
        cell: The text before the number of links in a matrix: ``NV`` in ``NV4``.
        kinds: Kinds of links that the matrix shows by a name without a number; ``LinkKind.links`` ranks their
            bandwidths.
        library: The collective library that its jobs bring.
        predicted: Whether the all-reduce bandwidth of sets of GPUs can be predicted. This DRA driver has a model of
            NCCL only. RCCL and HCCL search in other ways, and a figure for them would be invented.
        rated: Whether the bandwidth of one link is published.
        device_class: The DeviceClass by which pods request its whole GPUs.
        resources: Extended resources by which pods request its whole GPUs as limits, and which its device plugins
            offer. The first one is for GPUs of any product.
        offered: Prefixes of the resource names by which its device plugins offer fractions of its GPUs, or GPUs of one
            product.
        parts: Whether its GPUs can be divided into shares and slices.
        hides: Environment variables that choose among a container's GPUs. A pod's author may hide some GPUs with them.
        injects: Environment variables by which the vendor's own container runtime adds devices that no claim gives.
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
        """Return the text in the vendor's matrix for a pair of GPUs with ``links`` links (at least one)."""
        return next((kind.cell for kind in self.kinds if kind.links == links), f"{self.cell}{links}")

    @property
    def type(self) -> str:
        """Return the value of the device attribute ``type`` for the vendor's whole GPUs.

        Only NVIDIA's is ``gpu``. The DeviceClasses of old releases, which knew no other vendor, select ``gpu``. After a
        rollback they are in force again, and must not select GPUs of other vendors.
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
    """Return the vendor and number of the links that a matrix's cell shows.

    The result is None if the cell does not show links.
    """
    match = _NUMBERED.fullmatch(cell)
    return (_OF_CELL[match[1]], int(match[2])) if match else _KINDS.get(cell)
