"""One model of a GPU server: what every reader produces and every decision is made from.

Vendor-neutral: ``links`` counts direct GPU-to-GPU links of whatever kind the machine has (NVLink here). All bandwidths
are GB/s in one direction, as NCCL counts them (``topo.h``), not as data sheets add them up.
"""

from __future__ import annotations

import enum

import msgspec


class PathType(enum.IntEnum):
    """How two devices reach each other over PCIe, nearest first; the tokens of ``nvidia-smi topo -m``."""

    SELF = 0
    PIX = 1  # at most one PCIe switch
    PXB = 2  # several PCIe switches, not the host bridge
    PHB = 3  # the host bridge
    NODE = 4  # between host bridges of one NUMA node
    SYS = 5  # between NUMA nodes


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        index: The machine's own number of the GPU (NVML index, PCI order).
        uuid: ``GPU-`` and a lower-case UUID: the GPU's identity.
        minor: N of ``/dev/nvidiaN``; not always the index.
        pci: Bus id as /sys writes it: ``0000:06:00.0``; empty where the source does not say (topo -m).
        pcie_root: Root complex, ``pci0000:00``; None where it is not known.
        numa: NUMA node, or None where the machine does not say (/sys says -1).
        product: Full product name, exactly as NVML gives it.
        architecture: ``volta``, ``ampere``, ``hopper``, …
        compute_capability: ``7.0``.
        memory_mib: Memory in MiB.
        power_watts: Power limit.
        pcie_gbps: Bandwidth of the GPU's own PCIe link (x16 Gen3 12, Gen4 24, Gen5 48).
        switch_links: Links that end in a switch (NVSwitch); 0 on machines with direct links.
    """

    index: int
    uuid: str
    minor: int
    pci: str
    pcie_root: str | None = None
    numa: int | None = None
    product: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_mib: int = 0
    power_watts: int = 0
    pcie_gbps: float = 12.0
    switch_links: int = 0


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """One network card that GPUs can talk through: ``name`` is the RDMA device's (``mlx5_0``)."""

    name: str
    pci: str = ""
    numa: int | None = None


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node: ``cpus`` is a list in the kernel's form (``0-19,40-59``)."""

    id: int
    cpus: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One server. Positions in every matrix are positions in ``gpus`` (sorted by index) and ``nics``.

    Attributes:
        name: The profile's or product's name (``dgx1-v100``).
        gpus: All GPUs, by index.
        links: g x g, number of direct links between two GPUs (over a switch: the smaller of both sides' links),
            symmetric, 0 on the diagonal.
        paths: g x g, PCIe path between two GPUs, whether or not they are also linked, symmetric.
        nics: Network cards, in ``NICn`` order.
        nic_paths: nics x g, PCIe path from each NIC to each GPU.
        numa: NUMA nodes by id.
        link_gbps: Bandwidth of one link, one direction, as NCCL counts it (V100 20, H100 20.6); 0 without links.
        socket_gbps: Bandwidth between CPU sockets (Intel Broadwell 6, Skylake 10, Sapphire Rapids 22, AMD 16).
        driver_version: Of the GPU driver; empty where not known.
        fabric: ``clusterUUID.cliqueID`` of a multi-node NVLink fabric; empty without one.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[PathType, ...], ...]
    nics: tuple[Nic, ...] = ()
    nic_paths: tuple[tuple[PathType, ...], ...] = ()
    numa: tuple[NumaNode, ...] = ()
    link_gbps: float = 0.0
    socket_gbps: float = 10.0
    driver_version: str = ""
    fabric: str = ""

    @property
    def switched(self) -> bool:
        """True where GPUs are joined by switches (NVSwitch), so that all sets of one size are equal."""
        return any(gpu.switch_links for gpu in self.gpus)
