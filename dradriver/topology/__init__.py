"""A machine: GPUs, links, NUMA, PCIe, NICs; its readers and writers. A library of its own.

machine       the model that every reader produces and every decision is made from
identifiers   how GPUs, PCI devices, MIG devices and MIG profiles are named
check         what every machine must satisfy
load          a machine from a profile's name or a file of any kind
machine_codec  a machine as JSON
complete      what a machine's source leaves out, given by hand
nccl_version  which NCCL runs on it
versions      versions of drivers and of CUDA, compared
profiles      machines as data, one YAML file each
topo_m        the text of ``nvidia-smi topo -m``
nccl          NCCL's topology files
amd           AMD's parts, and the texts of their tools
ascend        Ascend's products, and the texts of ``npu-smi``
vendors       whose GPUs a machine has
pcie_paths    PCIe paths from places in the PCI tree
peer_access   linked GPUs that refuse each other peer access, and which of them pods must not have
link_rings    which sets have a ring of direct links, and how strong its weakest step can be
link_rates    what a direct link carries by data sheet
groups        disjoint groups of well linked GPUs, and an order in which good sets are neighbours
gpu_distances  how far two GPUs of a server are from each other
network_levels  the levels of a cluster's network, and where nodes stand in them, by their labels
cpulist       sets of CPUs as the kernel writes them: lists and masks
mig_limits    what MIG instances of a GPU run out of in addition to memory slices: engines, compute slices
natural       names sorted by their numbers, as people count
synthetic     GPU identifiers for machines that have none
errors        what is wrong with a description
"""

from typing import TYPE_CHECKING

from dradriver import lazy

if TYPE_CHECKING:
    from dradriver.topology.errors import TopologyError
    from dradriver.topology.load import read_machine
    from dradriver.topology.machine import (
        Blocks,
        Cpu,
        Gpu,
        Machine,
        MigDevice,
        MigProfile,
        Nic,
        NumaNode,
        PathType,
        PciDevice,
    )
    from dradriver.topology.network_levels import Location, location

__all__ = [
    "Blocks",
    "Cpu",
    "Gpu",
    "Location",
    "Machine",
    "MigDevice",
    "MigProfile",
    "Nic",
    "NumaNode",
    "PathType",
    "PciDevice",
    "TopologyError",
    "location",
    "read_machine",
]

__getattr__ = lazy.exports(
    __name__,
    {
        "errors": ("TopologyError",),
        "network_levels": ("Location", "location"),
        "load": ("read_machine",),
        "machine": (
            "Blocks",
            "Cpu",
            "Gpu",
            "Machine",
            "MigDevice",
            "MigProfile",
            "Nic",
            "NumaNode",
            "PathType",
            "PciDevice",
        ),
    },
)


def __dir__() -> list[str]:
    return __all__
