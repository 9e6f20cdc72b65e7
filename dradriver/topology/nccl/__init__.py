"""NCCL's topology files: read as machines, written from them, and checked against what NCCL accepts.

xml           NCCL's dialect of XML
tree          the devices of a file, each with its place
links         NVLink counts
pcilinks      links between PCIe switches
facts         how NCCL counts bandwidth
reader        from a file to a machine
writer        from a machine to a file
invent        a PCI tree for a machine of which only the paths are known
like          a virtual machine with the paths of the server below it
limits        how many children an element may have
checker       what NCCL would make of a file
rules         everything that some NCCL refuses, in words
device_rules  the rules for PCI devices, GPUs, links and NICs
notes         findings: places that break a rule
tuning        variables for a kind of machine
explain       whether a machine needs a file at all
"""

from typing import TYPE_CHECKING

from dradriver import lazy

if TYPE_CHECKING:
    from dradriver.topology.nccl.checker import check
    from dradriver.topology.nccl.reader import read
    from dradriver.topology.nccl.writer import write

__all__ = ["check", "read", "write"]

__getattr__ = lazy.exports(__name__, {"checker": ["check"], "reader": ["read"], "writer": ["write"]})
