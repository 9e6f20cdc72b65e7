"""A machine: GPUs, links, NUMA, PCIe, NICs; its readers and writers. This package is an independent library.

machine       the model that every reader produces and every decision uses
identifiers   the forms of identifiers of GPUs, PCI devices, MIG devices and MIG profiles
check         the rules that every machine must satisfy
load          a machine from a profile's name or a file of any kind
machine_codec  a machine as JSON
complete      facts that a machine's source lacks, given by hand
nccl_version  the NCCL release that runs on a machine
versions      versions of drivers and of CUDA, compared
profiles      machines as data, one YAML file each
topo_m        the text of ``nvidia-smi topo -m``
nccl          NCCL's topology files
amd           AMD's products, and the texts of their tools
ascend        Ascend's products, and the texts of ``npu-smi``
vendors       the GPU vendors, with their links, resources and variables
pcie_paths    PCIe paths from places in the PCI tree
peer_access   linked GPUs that refuse each other peer access, and which of them to keep off pods
link_rings    the sets of GPUs with a ring of direct links, and the fewest links between two neighbours in it
link_rates    the data-sheet bandwidth of a direct link
groups        disjoint groups of well linked GPUs, and an order in which good sets are neighbours
gpu_distances  the distance of two GPUs of a server
network_levels  the levels of a cluster's network, and the location of nodes in them, by their labels
cpulist       sets of CPUs as the kernel writes them: lists and masks
mig_limits    resources that limit MIG instances in addition to memory slices: engines, compute slices
natural       names sorted by the numbers in them
synthetic     GPU identifiers for machines that have none
errors        the error about a description that cannot be used
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
