"""The fields of a machine profile: their names and allowed values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_LINKS = 36  # of one GPU; NVML_NVLINK_MAX_LINKS of nvml.h

Architecture = Annotated[str, Meta(pattern=r"\A[a-z0-9]*\Z", examples=["hopper"])]
Capability = Annotated[str, Meta(pattern=r"\A(\d{1,2}\.\d{1,2})?\Z", examples=["8.0"])]
Version = Annotated[str, Meta(pattern=r"\A(\d+(\.\w+)+)?\Z", examples=["580.95.05"])]
Fabric = Annotated[
    str,
    Meta(
        pattern=r"\A([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\d{1,10})?\Z",
        examples=["6c8e2a54-0f3d-4b7e-9a51-3d2f8b6c4e10.1 (clusterUUID.cliqueID)"],
    ),
]
Links = Annotated[int, Meta(ge=0, le=MOST_LINKS)]
_ORDER = "for so many GPUs, how many of a block are free, best first, such as 1: [1, 3, 2, 4]"
_LINKS = "pairs of GPUs and their number of links, such as 0-1: 4"


class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of the GPU model; the fields have the same meaning as in ``Gpu``."""

    name: str
    architecture: Architecture = ""
    compute_capability: Capability = ""
    memory_mib: int = 0
    power_watts: int = 0
    pcie_gbps: float = 12.0
    c2c_gbps: float = 0.0


class GpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU; its index is its position in the list.

    ``switch`` lists the PCIe switches from the root to the GPU: ``s0`` or ``s0/s1``.
    """

    pci: str  # "" where GPUs of several hosts stand for one machine, whose bus ids are the same on each
    root: str | None = None
    switch: str = ""
    numa: int | None = None
    minor: int | None = None  # the index where left out
    switch_links: Links | None = None  # the profile's where left out


class NicEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One NIC.

    Its place in the PCI tree is written as in ``GpuEntry``; ``kind`` and ``gbps`` are as in ``Nic``.
    """

    name: str
    pci: str = ""
    root: str | None = None
    switch: str = ""
    numa: int | None = None
    kind: Literal["", "infiniband", "roce", "efa", "ethernet"] = ""
    gbps: float = 0.0


class NumaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One NUMA node."""

    id: int
    cpus: str = ""


class CpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CPUs' model; the fields have the same meaning as in ``Cpu``."""

    arch: Literal["x86_64", "arm64", "ppc64"]
    vendor: Literal["", "GenuineIntel", "AuthenticAMD", "CentaurHauls", "  Shanghai  "] = ""  # as NCCL spells them
    family: int = 0
    model: int = 0


class BlocksEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The blocks: which GPUs may be used together, as in ``Blocks``.

    ``gpus`` lists the GPUs of each block. In ``order``, the key of each row is its number of requested GPUs.
    """

    gpus: Annotated[tuple[tuple[int, ...], ...], Meta(min_length=1)]
    counts: tuple[int, ...] = ()
    whole: bool = False
    order: Annotated[dict[str, tuple[int, ...]], Meta(description=_ORDER)] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole profile; ``links`` maps a pair such as ``0-1`` to its number of direct links."""

    name: str
    vendor: Literal["nvidia", "amd", "ascend"] = "nvidia"
    product: Product
    gpus: tuple[GpuEntry, ...]
    nics: tuple[NicEntry, ...] = ()
    numa: tuple[NumaEntry, ...] = ()
    links: Annotated[dict[str, Links], Meta(description=_LINKS)] = {}
    switch_links: Links = 0
    link_gbps: float = 0.0
    socket_gbps: float = 10.0
    driver_version: Version = ""
    cuda_version: Version = ""
    nccl_version: str = msgspec.field(name="nccl-version", default="")
    fabric: Fabric = ""
    cpu: CpuEntry | None = None
    virtual: bool = False
    blocks: BlocksEntry | None = None
