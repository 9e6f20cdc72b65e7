"""Inferred topology: PCIe paths, switch links and NUMA nodes that a ``topo -m`` text implies but does not contain.

PIX, PXB, PHB, NODE and SYS are the PCIe paths that the text names, nearest first (``PathType``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from dradriver.topology.machine import NumaNode, PathType

_MOST_DIRECT_LINKS = 18  # of any GPU with NVLink (H100, B200); a V100 has 6, an A100 12


def paths(
    visible: Sequence[Sequence[PathType | None]],
    nic_paths: Sequence[Sequence[PathType]],
    numas: Sequence[int | None],
) -> tuple[tuple[PathType, ...], ...]:
    """Return the inferred PCIe paths of all pairs of GPUs, GPUs x GPUs.

    A pair has its visible path, else the nearest path that can be proved.

    The PCI tree gives the proof: two devices are never farther apart than the farthest step of any way between them. So
    a pair is PIX if both are PIX to one NIC, and PHB if one is PIX and the other PHB to it. A common NUMA node counts
    as a step of NODE. If no way is known, the path is SYS.

    Args:
        visible: The path of each pair; None where links hide it.
        nic_paths: (NICs, GPUs), the path from each NIC to each GPU.
        numas: The NUMA node of each GPU; None if it is not known.
    """
    count = len(visible)
    proved_paths = [list(row) for row in visible]

    # Union-find: devices that are joined by steps of at most the current level have the same label.
    label = list(range(count + len(nic_paths)))

    # A step is (path, one device, the other): GPUs come first, then the NICs. Equal NUMA nodes are steps from the first
    # GPU on the node.
    steps = [(p, i, j) for i, row in enumerate(visible) for j, p in enumerate(row[:i]) if p]
    steps += [(p, count + n, j) for n, row in enumerate(nic_paths) for j, p in enumerate(row)]
    steps += [(PathType.NODE, numas.index(node), j) for j, node in enumerate(numas) if node is not None]

    # From near to far, so that each hidden pair gets the nearest level that joins it.
    hidden = [(i, j) for i in range(count) for j in range(i) if visible[i][j] is None]
    for level in (PathType.PIX, PathType.PXB, PathType.PHB, PathType.NODE):
        for path, a, b in steps:
            if path <= level and label[a] != label[b]:
                old_label, new_label = label[a], label[b]
                label = [new_label if value == old_label else value for value in label]
        for i, j in hidden:
            if proved_paths[i][j] is None and label[i] == label[j]:
                proved_paths[i][j] = proved_paths[j][i] = level
    return tuple(tuple(PathType.SYS if p is None else p for p in row) for row in proved_paths)


def switch_links(links: Sequence[Sequence[int]]) -> list[int]:
    """Return how many of each GPU's links end in a switch, inferred from the links that pairs show.

    If the pairs of a GPU show more links in sum than a GPU can have, all its links end in a switch. Through a switch, a
    GPU shows the same links to every other GPU: seven times NV18 are 18 links, not 126. A pair shows the smaller of
    both sides' counts. Four GPUs with NV4, 12 links in a row, are linked directly (Perlmutter). Four GPUs with NV18 are
    not (an NVL72 tray).
    """
    switched = [0] * len(links)
    most = [max(row) for row in links]
    for i, row in enumerate(links):
        members = [i, *(j for j, count in enumerate(row) if count)]
        beyond = any(sum(links[j]) > _MOST_DIRECT_LINKS for j in members)
        if beyond and all(links[a][b] == min(most[a], most[b]) for a, b in combinations(members, 2)):
            switched[i] = most[i]
    return switched if switched == most else [0] * len(links)


def numa_of_gpus(cpus: Sequence[str], numas: Sequence[str], *, has_numa_column: bool) -> list[int | None]:
    """Return each GPU's NUMA node, inferred from its CPU and NUMA affinity.

    An entry is None if the node is not known.

    * If the NUMA affinity is one number, it is the node. In ``0,2-17`` the first number is the node, the others are GPU
      memory (Grace). ``0-1`` and N/A do not show the node.
    * Drivers without the NUMA column print only CPU affinity. If the CPU lists of the GPUs are disjoint, each list is a
      node. The kernel numbers CPUs node by node. So if nodes have equal size, the first CPU gives the number, even if
      nodes without GPUs are between them: 0-7 and 24-31 are nodes 0 and 3. Nodes of different size are numbered in the
      order of their CPUs, which can be wrong.

    Args:
        cpus: The CPU affinity of each GPU.
        numas: The NUMA affinity of each GPU.
        has_numa_column: Whether the text has a column of NUMA affinities.
    """
    if has_numa_column:
        heads = [text.split(",")[0] for text in numas]
        return [int(head) if head.isdigit() else None for head in heads]
    lists = sorted({text for text in cpus if text}, key=lambda text: min(_ranges(text)))
    ranges = sorted(part for text in lists for part in _ranges(text))
    if any(next_first <= last for (_, last), (next_first, _) in pairwise(ranges)):
        return [None] * len(cpus)
    firsts = {text: min(_ranges(text)) for text in lists}
    sizes = {last - first + 1 for first, last in firsts.values()}
    size = sizes.pop() if len(sizes) == 1 else 0
    if size and all(first % size == 0 for first, _ in firsts.values()):
        return [firsts[text][0] // size if text else None for text in cpus]
    return [lists.index(text) if text else None for text in cpus]


def _ranges(cpus: str) -> list[tuple[int, int]]:
    parts = [part.partition("-") for part in cpus.split(",")]
    return [(int(first), int(last or first)) for first, _, last in parts]


def numa_nodes(numas: Sequence[int | None], cpus: Sequence[str]) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of the GPUs.

    The CPU list of a node is that of the first GPU on it.
    """
    nodes: dict[int, str] = {}
    for node, text in zip(numas, cpus, strict=True):
        if node is not None:
            nodes.setdefault(node, text)
    return tuple(NumaNode(id=node, cpus=nodes[node]) for node in sorted(nodes))


def nic_numa(row: Sequence[PathType], numas: Sequence[int | None]) -> int | None:
    """Return the NUMA node of a NIC, inferred from its paths to the GPUs (``row``).

    ``row`` has the path to each GPU, ``numas`` each GPU's NUMA node. The result is None if it is unknown.
    """
    nearest = min(range(len(row)), key=lambda i: row[i])
    return numas[nearest] if row[nearest] <= PathType.NODE else None
