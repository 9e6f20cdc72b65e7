"""The distance of two GPUs, within a server and between servers, in one order of steps.

Within a server the steps are links and what ``nvidia-smi topo -m`` tells of PCIe; between servers, what the switches of
the network have in common. Each step belongs to one of the levels L0 to L4 in which articles on GPU scheduling speak.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from dradriver.topology.machine import Machine, PathType

# Signalling rate of one link by the bandwidth that NCCL counts for it, GB/s in one direction (data sheets of P100,
# V100/A100, A40/RTX 3090, H100, B200). NCCL's figure is what 128-byte packets leave of it.
_LINE_GBPS = {18.0: 20.0, 20.0: 25.0, 12.0: 14.0625, 20.6: 25.0, 40.1: 50.0}
# The same of AMD's by RCCL's figure: MI50 to MI100, MI200, MI300 (which is what RCCL takes MI350 for, too).
_LINE_GBPS |= {24.0: 46.0, 36.0: 50.0, 48.0: 64.0}


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


# Levels of the network by name, nearest first, in a cluster that says nothing of its own; below them is the node, above
# them the cluster.
FABRIC = "fabric"
LEVELS = (FABRIC, "leaf", "spine", "zone")
NODE, CLUSTER = "node", "cluster"

Domain: TypeAlias = tuple[str, ...]
"""A part of the network by its name, after the names of the parts around it, the widest first."""


class Location(msgspec.Struct, frozen=True):
    """Where a server stands in the network.

    Attributes:
        domains: Its part of the network at each level of its cluster, nearest first; None where it is in none.
        gbps: Bandwidth of the server's network, one direction, GB/s; 0 where it is unknown.
    """

    domains: tuple[Domain | None, ...] = ()
    gbps: float = 0.0


def location(*, zone: str = "", spine: str = "", leaf: str = "", fabric: str = "", gbps: float = 0.0) -> Location:
    """Return where a server stands in a cluster with ``LEVELS``; an empty name is an unknown one.

    A leaf's name counts within its spine and zone, and a spine's within its zone: racks of two zones may both be called
    ``rack1``.

    Args:
        zone: Zone or site.
        spine: Spine switch or block of leaf switches.
        leaf: Leaf switch or rack.
        fabric: ``Machine.fabric``: a multi-node NVLink fabric, wherever it is. Its servers are one rack, so they are
            near each other; but containers on two of them reach each other over NVLink only with an IMEX channel, which
            nothing here gives them: between them is the network.
        gbps: As ``Location.gbps``.
    """
    every = (fabric,), (zone, spine, leaf), (zone, spine), (zone,)
    return Location(domains=tuple(names if names[-1] else None for names in every), gbps=gbps)


def topology_level(step: Step) -> int:
    """Return the level of distance: 0 for links, 1 below PCIe switches, 2 in a NUMA node, 3 in a server."""
    return _TOPOLOGY_LEVEL[step]


def step(machine: Machine, i: int, j: int) -> Step:
    """Return the way between the GPUs at two different positions: their links if they have any, else the path."""
    return Step.NVLINK if machine.links[i][j] else Step(machine.paths[i][j])


def step_gbps(machine: Machine, i: int, j: int) -> float:
    """Return what NCCL counts for the way between two GPUs, GB/s in one direction, if nobody else uses it.

    Links add up; over PCIe the slower of both GPUs' own links counts, between sockets at most what these have. A DGX-1
    gives 40 for two links of 20, 12 below one switch and 6 between sockets (the E5's QPI).
    """
    if machine.links[i][j]:
        return round(machine.links[i][j] * machine.link_gbps, 3)
    pcie = min(machine.gpus[i].pcie_gbps, machine.gpus[j].pcie_gbps)
    return min(pcie, machine.socket_gbps) if machine.paths[i][j] is PathType.SYS else pcie


def line_gbps(link_gbps: float) -> float:
    """Return the signalling rate of a link that NCCL counts as ``link_gbps``: 20 gives 25 (V100), 20.6 25 (H100)."""
    return _LINE_GBPS.get(round(link_gbps, 2), link_gbps)


def line_rate_gbps(links: int, link_gbps: float) -> int:
    """Return the line rate of so many links in one direction, whole GB/s.

    It is what wishes of least bandwidth are about, and whole because attributes of devices are: what one way of asking
    has and another has not must not hang on a fraction.
    """
    return int(links * line_gbps(link_gbps) + 1e-6)
