"""NCCL's topology files: read as machines, written from them, and checked against the rules of NCCL's parser.

xml           NCCL's dialect of XML: elements and attributes
device_tree   the devices of a file, each with its place
nvlink_elements  NVLink counts of GPUs
pcilinks      links between PCIe switches
nccl_bandwidths  the bandwidths that NCCL counts
nccl_file_reader  converts a file to a machine
nccl_file_writer  converts a machine to a file
invented_switches  a PCI tree for a machine of which only the paths are known
host_paths    a virtual machine with the paths of its host
child_limits  the limit on the children of an element
checker       the check of a file: elements, CPUs, and the comparison with a machine
checker_rules  the text of all rules of the checker
device_rules  the checker for PCI devices, GPUs, links and NICs
findings      findings: places that break a rule
tuning        variables of ``nccl.conf`` for a kind of machine
file_needed   whether a machine needs a file
"""

from typing import TYPE_CHECKING

from dradriver import lazy

if TYPE_CHECKING:
    from dradriver.topology.nccl.checker import check
    from dradriver.topology.nccl.nccl_file_reader import read
    from dradriver.topology.nccl.nccl_file_writer import write

__all__ = ["check", "read", "write"]

__getattr__ = lazy.exports(
    __name__, {"checker": ["check"], "nccl_file_reader": ["read"], "nccl_file_writer": ["write"]}
)
