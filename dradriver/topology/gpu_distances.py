"""The distance of two GPUs of a machine: the kind of connection that traffic between them uses (a *step*).

A step is a direct link, or one of the PCIe paths of ``nvidia-smi topo -m``. Each step belongs to one of the levels L0
to L3, which articles on GPU scheduling use. L4 is between servers; ``network_levels`` divides it further.
"""

from __future__ import annotations

import enum

from dradriver.topology.machine import Machine, PathType


class Step(enum.IntEnum):
    """The kinds of connection between two GPUs, nearest first.

    The numbers from ``PIX`` to ``SYS`` are those of ``PathType``.
    """

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
    """Return the level of a step, which is the connection between two GPUs.

    Level 0 is a direct link, 1 is below PCIe switches, 2 is in a NUMA node, and 3 is in a server.
    """
    return _TOPOLOGY_LEVEL[step]


def step(machine: Machine, i: int, j: int) -> Step:
    """Return the step (kind of connection) between the GPUs at positions ``i`` and ``j``.

    This is a direct link if they have any, else their PCIe path.
    """
    return Step.NVLINK if machine.links[i][j] else Step(machine.paths[i][j])


def step_gbps(machine: Machine, i: int, j: int) -> float:
    """Return the bandwidth that NCCL counts between two GPUs, GB/s in one direction.

    The GPUs are at the positions ``i`` and ``j``, and carry no other traffic. The bandwidths of several links of a pair
    are added. Over PCIe, the slower of the two GPUs' own PCIe links counts. Between sockets, the bandwidth is at most
    the bandwidth between the sockets. Worked example: on a DGX-1 the result is 40 for two links of 20, 12 below one
    switch, and 6 between sockets (the QPI of its E5 CPUs).
    """
    if machine.links[i][j]:
        return round(machine.links[i][j] * machine.link_gbps, 3)
    pcie = min(machine.gpus[i].pcie_gbps, machine.gpus[j].pcie_gbps)
    return min(pcie, machine.socket_gbps) if machine.paths[i][j] is PathType.SYS else pcie
