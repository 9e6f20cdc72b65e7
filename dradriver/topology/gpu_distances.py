"""The distance of two GPUs of a machine, as one of the steps that traffic between them takes.

The steps are links and what ``nvidia-smi topo -m`` tells of PCIe. Each step belongs to one of the levels L0 to L3 in
which articles on GPU scheduling speak. L4 is between servers; of these ``network_levels`` says more.
"""

from __future__ import annotations

import enum

from dradriver.topology.machine import Machine, PathType


class Step(enum.IntEnum):
    """The way between two GPUs, nearest first; up to ``SYS`` the numbers are those of ``PathType``."""

    NVLINK = 0  # links or switches
    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5


_TOPOLOGY_LEVEL = {
    Step.NVLINK: 0,
    Step.PIX: 1,
    Step.PXB: 1,
    Step.PHB: 2,
    Step.NODE: 2,
    Step.SYS: 3,
}


def topology_level(step: Step) -> int:
    """Return the level of two GPUs' distance: 0 for links, 1 below PCIe switches, 2 in a NUMA node, 3 in a server."""
    return _TOPOLOGY_LEVEL[step]


def step(machine: Machine, i: int, j: int) -> Step:
    """Return the distance of the GPUs at two positions of a machine: their links if they have any, else the path."""
    return Step.NVLINK if machine.links[i][j] else Step(machine.paths[i][j])


def step_gbps(machine: Machine, i: int, j: int) -> float:
    """Return the bandwidth that NCCL counts for two GPUs at their distance, GB/s in one direction, if unshared.

    Links add up; over PCIe the slower of both GPUs' own links counts, between sockets at most what these have. A DGX-1
    gives 40 for two links of 20, 12 below one switch and 6 between sockets (the E5's QPI).
    """
    if machine.links[i][j]:
        return round(machine.links[i][j] * machine.link_gbps, 3)
    pcie = min(machine.gpus[i].pcie_gbps, machine.gpus[j].pcie_gbps)
    return min(pcie, machine.socket_gbps) if machine.paths[i][j] is PathType.SYS else pcie
