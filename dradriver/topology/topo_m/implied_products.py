"""The products that a ``nvidia-smi topo -m`` text implies by its links and PCIe paths, without naming them.

PHB and NODE are PCIe paths in the text. PHB goes through one host bridge, NODE through several host bridges of one NUMA
node.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dradriver.topology.amd import amd_products
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.vendors import AMD, NVIDIA, Vendor


class Implied(msgspec.Struct, frozen=True):
    """The most likely facts of a machine; bandwidths in GB/s and one direction, as NCCL counts them (topo.h).

    Attributes:
        capability: The compute capability, ``7.0``; empty if nothing implies it.
        pcie_gbps: Bandwidth of a GPU's PCIe link.
        link_gbps: Bandwidth of one link; 0 without links.
        socket_gbps: Bandwidth between sockets.
        socket_gbps_or: Bandwidth between sockets if the machine has the other kind of CPUs with which these GPUs are
            sold; 0 if there is no other kind.
    """

    capability: str
    pcie_gbps: float
    link_gbps: float
    socket_gbps: float
    socket_gbps_or: float


# Between sockets: P100 is of Broadwell's years, V100 of Skylake's and Broadwell's. PCIe 4 came with AMD's CPUs, then
# with Ice Lake; PCIe 5 with Sapphire Rapids and AMD's.
_P100 = Implied("6.0", 12.0, 18.0, 6.0, 0.0)
_V100 = Implied("7.0", 12.0, 20.0, 10.0, 6.0)
_A100 = Implied("8.0", 24.0, 20.0, 16.0, 10.0)
_GA102 = Implied("8.6", 24.0, 12.0, 16.0, 10.0)  # A40, RTX A6000, RTX 3090
_HOPPER = Implied("9.0", 48.0, 20.6, 22.0, 16.0)
_NO_LINKS = Implied("", 24.0, 0.0, 10.0, 16.0)  # with PCIe 4 every step farther is slower, with either kind of CPU
_SWITCHED = Implied("", 12.0, 20.0, 10.0, 0.0)  # all GPUs are equal, so CPUs decide nothing
_ASCEND = Implied("", 24.0, 0.0, 10.0, 0.0)
# Between sockets of CPUs with several x16 ports below one host bridge: Broadwell has one bridge a socket, AMD's one for
# two ports. From Skylake on each x16 port of Intel's has its own.
_PORTS_SHARE_A_BRIDGE = (6.0, 16.0)


def implied(
    links: Sequence[Sequence[int]], paths: Sequence[Sequence[PathType]], *, switched: bool, vendor: Vendor = NVIDIA
) -> Implied:
    """Return the likely GPU and CPU products of a machine, from its ``topo -m`` text.

    The GPU model follows from its links:

    * A bridge joins a GPU to one other GPU. The bridge has 4 links for a GA102 (3 if one is down), 2 for a V100, 12 for
      an A100, more for a Hopper.
    * Direct links to several GPUs: a P100 has 4 in all, a V100 6, an A100 12, a Hopper 18.
    * Links to switches: a V100 has 6, an A100 12 (an A800 8), a Hopper or Blackwell 18.
    * More than 12 links show a Hopper or a newer GPU; ``assumed`` warns of this.

    Each GPU model is sold with two kinds of CPU. If two GPUs show PHB, several x16 ports share a host bridge: the CPU
    is likely Broadwell (DGX-1) or AMD. With Intel's CPUs from Skylake on, the GPUs show NODE. The other kind stays
    possible, because a virtual machine can show PHB on any CPU.

    Args:
        links: GPUs x GPUs, number of links of each pair.
        paths: GPUs x GPUs, PCIe paths. If links hide a path, it is the nearest path that other cells prove.
        switched: Whether links end in switches.
        vendor: The GPUs' vendor. The rules above are NVIDIA's. For AMD, ``amd_products.likely`` has the rules. For
            Ascend, the result does not depend on the links.
    """
    if vendor is AMD:
        link_gbps, pcie_gbps = amd_products.likely(links)
        return Implied(
            capability="",
            pcie_gbps=pcie_gbps,
            link_gbps=link_gbps if any(map(any, links)) else 0.0,
            socket_gbps=amd_products.SOCKET_GBPS,
            socket_gbps_or=0.0,  # no second possibility
        )

    # There are three vendors: the third is Ascend.
    if vendor is not NVIDIA:
        return _ASCEND
    likely = _of_links(links, switched=switched)

    # The product is sold with two kinds of CPU. They change places if only the second one can show PHB.
    shares_a_bridge = any(PathType.PHB in row for row in paths)
    if (
        shares_a_bridge
        and likely.socket_gbps_or in _PORTS_SHARE_A_BRIDGE
        and likely.socket_gbps not in _PORTS_SHARE_A_BRIDGE
    ):
        return msgspec.structs.replace(likely, socket_gbps=likely.socket_gbps_or, socket_gbps_or=likely.socket_gbps)
    return likely


def assumed(machine: Machine) -> str:
    """Return a warning if the GPUs were taken for Hopper but may be newer; else an empty text.

    Args:
        machine: A machine from any source. If its GPUs have names or bus ids, the product was not assumed.
    """
    named = any(gpu.product or gpu.pci for gpu in machine.gpus)
    if named or machine.vendor is not NVIDIA or machine.link_gbps != _HOPPER.link_gbps:
        return ""
    most = max(gpu.switch_links or sum(row) for gpu, row in zip(machine.gpus, machine.links, strict=True))
    return (
        f"the text does not name the GPUs, which have up to {most} links: they are taken for Hopper (compute "
        f"capability 9.0, {machine.link_gbps:g} GB/s a link, PCIe 5), but may be newer: name them with --product, as "
        "H200 or B200"
    )


def _of_links(links: Sequence[Sequence[int]], *, switched: bool) -> Implied:
    most, total = max(map(max, links)), max(map(sum, links))
    if switched:
        if most > 12:
            return msgspec.structs.replace(_SWITCHED, pcie_gbps=48.0, link_gbps=20.6)
        return msgspec.structs.replace(_SWITCHED, pcie_gbps=24.0) if most > 6 else _SWITCHED
    if most == 0:
        return _NO_LINKS
    if total > 12:
        return _HOPPER
    if total > 6:
        return _A100
    if all(sum(count > 0 for count in row) <= 1 for row in links):
        return _GA102 if most in (3, 4) else _V100
    return _V100 if total > 4 else _P100
