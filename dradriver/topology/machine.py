"""The model of a GPU server, which every reader produces and every decision uses.

It does not depend on the vendor: ``links`` counts direct GPU-to-GPU links of any kind (NVLink, xGMI, HCCS). All
bandwidths are GB/s in one direction, as NCCL counts them (``topo.h``), not as data sheets add them up.

A source is the place that a machine comes from: a real server, a profile, or the text of a tool, such as ``nvidia-smi
topo -m`` (below: topo -m).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from dradriver.topology.vendors import AMD, NVIDIA, VENDORS, Vendor

_AS_AMD_WRITES = str.maketrans({" ": "_", "(": None, ")": None})  # pkg/amdgpu/amdgpu.go of its DRA driver


class PathType(enum.IntEnum):
    """The PCIe path between two devices, nearest first, by the names of ``nvidia-smi topo -m``."""

    SELF = 0
    PIX = 1  # at most one PCIe switch
    PXB = 2  # several PCIe switches, not the host bridge
    PHB = 3  # the host bridge
    NODE = 4  # between host bridges of one NUMA node
    SYS = 5  # between NUMA nodes


class MigDevice(msgspec.Struct, frozen=True, array_like=True):
    """One MIG device (a compute instance in a GPU instance).

    It is an array in JSON, to save space.

    Attributes:
        slot: The device's number on its GPU, as in ``nvidia-smi -L``.
        uuid: ``MIG-`` and a lower-case UUID.
        gpu_instance: Number of its GPU instance.
        compute_instance: Number of its compute instance in the GPU instance.
        profile: ``1g.10gb``; empty if the driver does not give it.
        memory_mib: Its memory in MiB.
        profile_id: Id of the GPU instance's profile; None if the driver does not give it.
        start: First memory slice of the GPU instance; None if the driver does not give it.
    """

    slot: int
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str = ""
    memory_mib: int = 0
    profile_id: int | None = None
    start: int | None = None


class MigProfile(msgspec.Struct, frozen=True, array_like=True):
    """One size that MIG instances of a GPU can have, as NVML reports it.

    It is an array in JSON, to save space.

    Attributes:
        id: The id in NVML and ``nvidia-smi mig -lgip``, different for each profile of a GPU.
        name: ``1g.10gb``, ``1g.10gb+me``.
        compute: Number of compute slices.
        memory_mib: Its memory in MiB.
        most: How many instances of this profile a GPU can have at a time.
        starts: First memory slice of each possible placement, ascending.
        size: Number of memory slices.
        engines: How many engines of each type an instance has, in the order of ``mig_limits.ENGINES``; empty if the
            source does not give it.
    """

    id: int
    name: str
    compute: int
    memory_mib: int
    most: int
    starts: tuple[int, ...]
    size: int
    engines: tuple[int, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU.

    Attributes:
        index: The machine's own number of the GPU. A node agent assigns it and keeps it in a table, so it stays the
            same when other GPUs are lost. In data from agents of older releases it is the driver's number.
        uuid: The GPU's identity, in its vendor's form (NVIDIA's is ``GPU-`` and a lower-case UUID). In lower case it is
            a DNS label. It is unique in the machine.
        minor: N of ``/dev/nvidiaN``; not always the index.
        pci: Bus id as /sys writes it: ``0000:06:00.0``; empty if the source does not give it (topo -m).
        pcie_root: Root complex, ``pci0000:00``; None if it is not known.
        numa: NUMA node, or None if it is not known (/sys has -1).
        product: Full product name, exactly as NVML gives it; for AMD the product that the device id stands for.
        board: The name of the board in AMD's driver (``AMD Instinct MI300X OAM``), which also identifies the product;
            empty if it equals ``product``, or is not known.
        architecture: ``volta``, ``ampere``, ``hopper``, …
        compute_capability: ``7.0``.
        memory_mib: Memory in MiB.
        power_watts: The default power limit of the product, not the current one.
        pcie_gbps: Bandwidth of the GPU's own PCIe link (x16 Gen3 12, Gen4 24, Gen5 48).
        switch_links: Links that end in a switch (NVSwitch); 0 on machines with direct links.
        c2c_gbps: Bandwidth of the coherent link to the GPU's own CPU (Grace), all its lanes; 0 without one.
        fabric: ``clusterUUID.cliqueID`` of the multi-node NVLink fabric that it has joined; empty without one.
        mig: The MIG devices that exist on it; None with MIG mode off. In MIG mode it cannot be used as a whole.
        profiles: The MIG profiles that it supports, whether or not MIG mode is on; empty without MIG, or if the source
            does not give them.
        vendor: Its vendor: the ``word`` of a ``Vendor``. Old data lacks it, because old releases knew only NVIDIA's
            GPUs.
        driver_index: The number that the GPU driver's own tools use now (NVML's index), if it differs from ``index``.
        has_slot: False if it is not known in which slot of the machine the GPU is. Its ``index`` then only
            distinguishes it from other GPUs. Left out of the JSON if the slot is known.
    """

    index: int
    uuid: str
    minor: int
    pci: str
    pcie_root: str | None = None
    numa: int | None = None
    product: str = ""
    board: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_mib: int = 0
    power_watts: int = 0
    pcie_gbps: float = 12.0
    switch_links: int = 0
    c2c_gbps: float = 0.0
    fabric: str = ""
    mig: tuple[MigDevice, ...] | None = None
    profiles: tuple[MigProfile, ...] = ()
    vendor: str = NVIDIA.word
    driver_index: int | msgspec.UnsetType = msgspec.UNSET
    has_slot: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def label(self) -> str:
        """Return the name of a GPU for people, such as ``GPU3``.

        The 3 is ``index``. The GPU driver's own tools, such as ``nvidia-smi``, can use another number, because the
        driver numbers the remaining GPUs again after a GPU was lost. Then the name has that number, too: ``GPU3 (driver
        index 2)``.
        """
        is_other = self.current_driver_index != self.index
        return f"GPU{self.index} (driver index {self.current_driver_index})" if is_other else f"GPU{self.index}"

    @property
    def current_driver_index(self) -> int:
        """Return the number that the GPU driver's tools, such as ``nvidia-smi``, use for the GPU now."""
        return self.index if self.driver_index is msgspec.UNSET else self.driver_index

    @property
    def products(self) -> tuple[str, ...]:
        """Return all product names of the GPU: product, board, and the name in AMD's DRA driver.

        A GPU of another vendor has only ``product``.
        """
        if self.vendor != AMD.word:
            return (self.product,)
        named = self.board or self.product
        return self.product, named, named.translate(_AS_AMD_WRITES)

    def of_product(self, globs: Iterable[str]) -> bool:
        """Return whether the GPU has one of the products that ``globs`` select.

        ``globs`` are product names or globs; case matters.
        """
        return any(fnmatchcase(name, glob) for glob in globs for name in self.products)


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One network card that GPUs can talk through.

    Attributes:
        name: The RDMA device's name (``mlx5_0``), else the interface's (``eth0``).
        pci: Bus id as /sys writes it; empty if the source does not give it, and for a bond.
        numa: NUMA node, or None if it is not known.
        kind: ``infiniband``, ``roce``, ``efa``, ``ethernet``; empty if it is not known.
        gbps: Line rate, GB/s in one direction (400 Gbit/s is 50); 0 if it is not known.
        parent: Name of the physical function that this virtual or scalable function belongs to, its bus id if it has
            no name; empty for others.
        members: Names of the interfaces that this bond consists of; empty for others.
    """

    name: str
    pci: str = ""
    numa: int | None = None
    kind: str = ""
    gbps: float = 0.0
    parent: str = ""
    members: tuple[str, ...] = ()


class NumaNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One NUMA node.

    Attributes:
        id: N of ``/sys/devices/system/node/nodeN``.
        cpus: Its CPUs as the kernel lists them (``0-19,40-59``); empty for a node of memory only, or if not known.
        cpumap: The same as the kernel's hex mask (``000000ff,fff00000``); empty if it is not known.
    """

    id: int
    cpus: str = ""
    cpumap: str = ""


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs' model, in the numbers of ``/proc/cpuinfo``.

    All sockets of a server have the same model.

    Attributes:
        arch: ``x86_64``, ``arm64`` or ``ppc64``.
        vendor: ``GenuineIntel``, ``AuthenticAMD``, …; empty for ARM and POWER.
        family: Decimal, base and extended family as ``/proc/cpuinfo`` adds them up; 0 if there is none.
        model: Decimal, base and extended model; 0 if there is none.
    """

    arch: str
    vendor: str = ""
    family: int = 0
    model: int = 0


class PciDevice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One GPU, NIC or bridge of the PCI tree as NCCL lists it from /sys.

    It is an array in JSON, to save space.

    Attributes:
        busid: ``0000:06:00.0``.
        parent: Position in ``Machine.pci`` of the bridge above, which is a lower position; None below a root complex.
        numa: NUMA node, or None if /sys has -1.
        kind: PCI class as /sys writes it: ``0x030200`` GPU, ``0x020700`` InfiniBand, ``0x060400`` bridge; empty if it
            is not known.
        ids: ``vendor:device:subsystem_vendor:subsystem_device`` in hex without 0x (``10de:2335:10de:18be``); empty if
            they are not known.
        link_speed: The slower of the device's and its port's ``max_link_speed``, as the kernel writes it
            (``32.0 GT/s PCIe``); empty if it is not known.
        link_width: The smaller of the device's and its port's ``max_link_width``. An unreadable width counts as 0 (NCCL
            takes 0 for x16).
    """

    busid: str
    parent: int | None
    numa: int | None
    kind: str
    ids: str = ""
    link_speed: str = ""
    link_width: int = 0


class Blocks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sets of GPUs that may be used together, if the maker limits them.

    GPUs are in blocks of one size. If a block can hold a set, the set must be within one block. A larger set uses as
    few blocks as possible, and takes equally many GPUs from each block that it uses. If ``whole`` is set, sets of
    several GPUs consist of whole blocks instead.

    Attributes:
        of: Per GPU, the number of its block.
        counts: The numbers of GPUs that a pod may have, ascending; empty for any number.
        whole: Whether sets of several GPUs consist of whole blocks.
        order: Which block a set of ``k`` GPUs is taken from: entry ``k - 1`` lists numbers of free GPUs. A block with
            the first of these numbers of free GPUs is best, then one with the second, and so on. If no block has a
            listed number, the block with the fewest sufficient free GPUs is best.
    """

    of: tuple[int, ...]
    counts: tuple[int, ...] = ()
    whole: bool = False
    order: tuple[tuple[int, ...], ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One server. Positions in every matrix are positions in ``gpus`` (sorted by index) and ``nics``.

    Attributes:
        name: The profile's or product's name (``dgx1-v100``).
        gpus: All GPUs, by index.
        links: g x g, number of direct links between two GPUs (over a switch: the smaller of both sides' links),
            symmetric, 0 on the diagonal.
        paths: g x g, PCIe path between two GPUs, whether or not they are also linked, symmetric.
        nics: Network cards, in ``NICn`` order.
        nic_paths: nics x g, PCIe path from each NIC to each GPU.
        nic_pairs: nics x nics, PCIe path between two NICs, symmetric; None if the source does not give it (all but
            topo -m).
        numa: NUMA nodes by id.
        link_gbps: Bandwidth of one link, one direction, as NCCL or RCCL counts it (V100 20, H100 20.6, MI300X 48); 0
            without links, and for links whose bandwidth is not published (HCCS).
        socket_gbps: Bandwidth between CPU sockets (Intel Broadwell 6, Skylake 10, Sapphire Rapids 22, AMD 16).
        socket_gbps_or: A second possible value of ``socket_gbps``, if the source does not name the CPUs (topo -m); 0 if
            it does.
        driver_version: The GPU driver's version; empty if it is not known.
        cuda_version: Newest CUDA version that the driver supports, ``13.0``; empty if it is not known.
        nccl_version: The NCCL version that jobs bring, ``2.23`` or ``2.23.4``; empty for the newest one. Predictions
            for sets of GPUs depend on it.
        cpu: The CPUs' model; None if the source does not give it.
        pci: The PCI tree of GPUs, NICs and the bridges above them, parents first; empty if the source has none. It has
            only every second level of bridges, counted from the device up, as NCCL counts (``xml.cc``,
            ``ncclTopoGetXmlFromSys``): a switch's upstream port is in it, its downstream ports and the root port are
            not.
        virtual: True in a virtual machine, whose PCI tree can differ from the server's; None if the source does not say
            (topo -m texts and most NCCL files).
        blocks: The GPUs that may be used together; None if any may.
    """

    name: str
    gpus: tuple[Gpu, ...]
    links: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[PathType, ...], ...]
    nics: tuple[Nic, ...] = ()
    nic_paths: tuple[tuple[PathType, ...], ...] = ()
    nic_pairs: tuple[tuple[PathType, ...], ...] | None = None
    numa: tuple[NumaNode, ...] = ()
    link_gbps: float = 0.0
    socket_gbps: float = 10.0
    socket_gbps_or: float = 0.0
    driver_version: str = ""
    cuda_version: str = ""
    nccl_version: str = ""
    cpu: Cpu | None = None
    pci: tuple[PciDevice, ...] = ()
    virtual: bool | None = None
    blocks: Blocks | None = None

    def subset(self, positions: Sequence[int]) -> Machine:
        """Return the machine with only the GPUs at these positions.

        The GPUs keep their numbers, and the PCI tree is not changed.
        """
        blocks = self.blocks
        if blocks is not None:
            blocks = msgspec.structs.replace(blocks, of=tuple(blocks.of[i] for i in positions))
        return msgspec.structs.replace(
            self,
            blocks=blocks,
            gpus=tuple(self.gpus[i] for i in positions),
            links=tuple(tuple(self.links[i][j] for j in positions) for i in positions),
            paths=tuple(tuple(self.paths[i][j] for j in positions) for i in positions),
            nic_paths=tuple(tuple(row[j] for j in positions) for row in self.nic_paths),
        )

    @property
    def vendor(self) -> Vendor:
        """Return the vendor of the machine's GPUs; ``check`` refuses machines with two vendors."""
        return VENDORS[self.gpus[0].vendor] if self.gpus else NVIDIA

    @property
    def product(self) -> str:
        """Return the product name of the machine's GPUs; different products are joined by a slash."""
        return " / ".join(sorted({gpu.product or "GPU" for gpu in self.gpus}))

    @property
    def fabric(self) -> str:
        """Return the multi-node NVLink fabric of the machine's GPUs.

        The result is empty if the GPUs have none, or are in several. GPUs without a fabric are ignored.
        """
        joined = {gpu.fabric for gpu in self.gpus if gpu.fabric}
        return joined.pop() if len(joined) == 1 else ""

    @property
    def switched(self) -> bool:
        """Return whether the links of the machine's GPUs end in switches (NVSwitch).

        The switches join all GPUs, so all sets of one size are equally good.
        """
        return any(gpu.switch_links for gpu in self.gpus)
