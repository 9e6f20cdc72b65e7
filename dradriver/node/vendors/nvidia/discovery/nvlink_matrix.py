"""The matrix of NVLinks between GPUs, from each GPU's own links by NVML.

Two GPUs have peer access if each can read and write the other GPU's memory directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dradriver.node.discovery.problem import Problem
from dradriver.node.vendors.nvidia.discovery.failed_queries import NEWER, Answers, NvmlQuery
from dradriver.node.vendors.nvidia.discovery.gpu_facts import GpuFacts, Link
from dradriver.node.vendors.nvidia.discovery.nvml_interface import REMOTE_GPU, REMOTE_SWITCH, REMOTE_UNKNOWN, Nvml
from dradriver.topology.peer_access import Pair

Matrix = tuple[tuple[int, ...], ...]

# NCCL's bandwidth of one link by its signalling rate in MB/s (nccl topo.h beside nvidia-smi nvlink -s): GA10x 14062,
# P100 20000, A100 25000, V100 25781, H100 26562, B200 53125.
_RATES = ((16_000, 12.0), (22_000, 18.0), (26_000, 20.0), (40_000, 20.6))


def switch_links(gpus: Sequence[GpuFacts], *, pci_class: Callable[[str], str]) -> tuple[int, ...]:
    """Return for each GPU how many of its NVLinks end in a switch.

    Args:
        gpus: All GPUs.
        pci_class: Returns the PCI class of a bus id from /sys; empty if /sys does not have the bus id. With a driver
            that does not tell what a link ends in, the class shows whether the other end is a GPU.
    """
    here = {gpu.pci for gpu in gpus if gpu.pci}
    return tuple(sum(_ends_in_switch(link, here, pci_class) for link in gpu.links) for gpu in gpus)


def _ends_in_switch(link: Link, here: set[str], pci_class: Callable[[str], str]) -> bool:
    if link.ends_in != REMOTE_UNKNOWN:
        return link.ends_in == REMOTE_SWITCH
    # Drivers before 460 do not say. As NCCL: what is no GPU is a switch, one that /sys does not show (in a virtual
    # machine) included. A GPU that does not answer is in /sys still.
    return bool(link.remote) and link.remote not in here and not pci_class(link.remote).startswith("0x03")


def link_matrix(
    nvml: Nvml, gpus: Sequence[GpuFacts], switched: Sequence[int], problems: list[Problem], answers: Answers
) -> tuple[Matrix, list[Pair]]:
    """Return a matrix with the number of NVLinks between each two GPUs, and the pairs without peer access.

    If the links go through switches, the GPU with fewer links to switches determines the number. A pair without peer
    access has 0. Reasons for this are a fault, MIG mode, or a fabric manager that does not run or has other partitions.
    """
    # Of each GPU, how many links lead to each bus id.
    direct = [Counter(link.remote for link in _to_gpus(gpu)) for gpu in gpus]
    matrix = [[0] * len(gpus) for _ in gpus]
    refused: list[Pair] = []
    for i in range(len(gpus)):
        for j in range(i):
            query = of_two(gpus[j], gpus[i], problems, answers)

            # The links that either side counts to the other; they differ if one side does not say where its links end.
            sides = _agreed(_side(direct[j], gpus[i]), _side(direct[i], gpus[j]))
            if sides[0] != sides[1]:
                query.note(
                    "NVLink", f"{sides[0]} links from one side, {sides[1]} from the other. The smaller value counts"
                )
            count = min(sides) + min(switched[i], switched[j])

            # NVML says that the pair cannot reach each other: NCCL would not use these links.
            ends = gpus[j].handle, gpus[i].handle
            if count and not query.ask(nvml.nvlink_p2p, *ends, default=True, quiet=NEWER):
                query.note(
                    "nvmlDeviceGetP2PStatus",
                    f"the GPUs have no peer access over NVLink, so their {count} links do not count",
                )
                refused.append((j, i))
                count = 0
            matrix[i][j] = matrix[j][i] = count
    return tuple(tuple(row) for row in matrix), refused


def of_two(one: GpuFacts, other: GpuFacts, problems: list[Problem], answers: Answers) -> NvmlQuery:
    """Return an ``NvmlQuery`` that asks NVML about a pair of GPUs, with the pair's answers of earlier readings.

    ``one`` and ``other`` are the GPUs. Failed queries are added to ``problems``.
    """
    return NvmlQuery(f"GPU {one.index} - GPU {other.index}", problems, answers, who=f"{one.uuid} {other.uuid}")


def _side(direct: Counter[str], other: GpuFacts) -> tuple[int, int]:
    """Return a GPU's number of links to the other GPU, and to unknown ends.

    Args:
        direct: By bus id of the other end, the number of the first GPU's links. The bus id is empty for links with an
            unknown end.
        other: The other GPU.
    """
    return direct[other.pci] if other.pci else 0, direct[""]


def _agreed(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the number of links between two GPUs, as each of the two counts.

    A GPU's links with an unknown end are counted, as far as the other GPU reports links to it. The first GPU's number
    comes first. If the two numbers differ, the answer of one GPU is wrong.

    Args:
        one: For the first GPU: its number of links to the other GPU, and its number of links with an unknown end.
        other: The same two numbers for the second GPU.
    """
    return min(sum(one), max(one[0], other[0])), min(sum(other), max(one[0], other[0]))


def _to_gpus(gpu: GpuFacts) -> list[Link]:
    return [link for link in gpu.links if link.ends_in in (REMOTE_GPU, REMOTE_UNKNOWN)]


def link_gbps_by_rate(mbps: int) -> float:
    """Return the bandwidth of one NVLink in GB/s, as NCCL counts it, for a signalling rate in MB/s."""
    return next((gbps for below, gbps in _RATES if mbps < below), 40.1)
