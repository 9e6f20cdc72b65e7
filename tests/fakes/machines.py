"""Machines of the field, built by hand from published facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dradriver.topology.machine import Gpu, Machine, Nic, NumaNode, PathType

Pairs = Mapping[tuple[int, int], int]

# Every pair of a DGX-1 with V100 that is joined, and by how many NVLinks.
DGX1_LINKS: Pairs = {
    **dict.fromkeys(((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)), 1),
    **dict.fromkeys(((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)), 2),
}


def build(
    name: str,
    *,
    paths: Sequence[Sequence[PathType]],
    links: Pairs | None = None,
    numa: Sequence[int | None] | None = None,
    roots: Sequence[str | None] | None = None,
    link_gbps: float = 20.0,
    pcie_gbps: float = 12.0,
    socket_gbps: float = 10.0,
    capability: str = "7.0",
    switch_links: Sequence[int] | int = 0,
    nic_paths: Sequence[Sequence[PathType]] = (),
    product: str = "Tesla V100-SXM2-16GB",
) -> Machine:
    """A machine from its matrices; GPUs are numbered by position."""
    count = len(paths)
    own = [switch_links] * count if isinstance(switch_links, int) else list(switch_links)
    matrix = [[0] * count for _ in range(count)]
    for (a, b), number in (links or {}).items():
        matrix[a][b] = matrix[b][a] = number
    if any(own):
        matrix = [[min(own[a], own[b]) if a != b else 0 for b in range(count)] for a in range(count)]
    nodes = list(numa) if numa is not None else [None] * count
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-00000000-0000-0000-0000-{index:012x}",
            minor=index,
            pci=f"0000:{index + 4:02x}:00.0",
            pcie_root=roots[index] if roots is not None else None,
            numa=nodes[index],
            product=product,
            compute_capability=capability,
            pcie_gbps=pcie_gbps,
            switch_links=own[index],
        )
        for index in range(count)
    )
    return Machine(
        name=name,
        gpus=gpus,
        links=tuple(tuple(row) for row in matrix),
        paths=tuple(tuple(row) for row in paths),
        nics=tuple(Nic(name=f"mlx5_{number}") for number in range(len(nic_paths))),
        nic_paths=tuple(tuple(row) for row in nic_paths),
        numa=tuple(NumaNode(id=node) for node in sorted({node for node in nodes if node is not None})),
        link_gbps=link_gbps if any(map(any, matrix)) else 0.0,
        socket_gbps=socket_gbps,
    )


def nested(groups: Sequence[Sequence[int]], within: Sequence[PathType], *, across: PathType) -> list[list[PathType]]:
    """Paths of GPUs in nested groups: ``groups[i][gpu]`` is its group, joined by ``within[i]``; nearest first."""
    count = len(groups[0])

    def path(a: int, b: int) -> PathType:
        if a == b:
            return PathType.SELF
        for group, kind in zip(groups, within, strict=True):
            if group[a] == group[b]:
                return kind
        return across

    return [[path(a, b) for b in range(count)] for a in range(count)]


PAIRS = (0, 0, 1, 1, 2, 2, 3, 3)
HALVES = (0, 0, 0, 0, 1, 1, 1, 1)


def dgx1() -> Machine:
    """DGX-1 with eight V100: hybrid cube mesh, two sockets, a NIC at every second PCIe switch pair."""
    paths = nested((PAIRS, HALVES), (PathType.PIX, PathType.PHB), across=PathType.SYS)
    nics = [[PathType.PIX if PAIRS[gpu] == nic else paths[2 * nic][gpu] for gpu in range(8)] for nic in range(4)]
    return build("dgx1", paths=paths, links=DGX1_LINKS, numa=HALVES, socket_gbps=6.0, nic_paths=nics)


def dgx_h100(*, switch_links: Sequence[int] | int = 18) -> Machine:
    """DGX H100: eight H100 behind NVSwitch."""
    return build(
        "dgx-h100",
        paths=nested((range(8), HALVES), (PathType.PIX, PathType.NODE), across=PathType.SYS),
        numa=HALVES,
        switch_links=switch_links,
        link_gbps=20.6,
        pcie_gbps=48.0,
        socket_gbps=22.0,
        capability="9.0",
        product="NVIDIA H100 80GB HBM3",
    )


def bridge_pairs(count: int = 8) -> Machine:
    """A100 PCIe cards joined in pairs by NV12 bridges; half of them on each socket."""
    halves = [2 * gpu // count for gpu in range(count)]
    return build(
        "bridge-pairs",
        paths=nested((halves,), (PathType.PHB,), across=PathType.SYS),
        links={(gpu, gpu + 1): 12 for gpu in range(0, count, 2)},
        numa=halves,
        pcie_gbps=24.0,
        capability="8.0",
        product="NVIDIA A100 80GB PCIe",
    )


def pcie_box() -> Machine:
    """Eight RTX 4090 under two PCIe switches, one on each socket, without links."""
    return build(
        "pcie-box",
        paths=nested((HALVES,), (PathType.PIX,), across=PathType.SYS),
        numa=HALVES,
        roots=[f"pci0000:{half:02x}" for half in HALVES],
        pcie_gbps=24.0,
        capability="8.9",
        product="NVIDIA GeForce RTX 4090",
    )


def direct_mesh(count: int = 16) -> Machine:
    """Every pair joined by one direct link, no switch."""
    return build(
        "direct-mesh",
        paths=nested((range(count),), (PathType.SELF,), across=PathType.PHB),
        links={(a, b): 1 for b in range(count) for a in range(b)},
    )


def double_cube() -> Machine:
    """Two hybrid cube meshes of eight, each GPU with one link to its counterpart."""
    links = {(a + offset, b + offset): count for (a, b), count in DGX1_LINKS.items() for offset in (0, 8)}
    links |= {(gpu, gpu + 8): 1 for gpu in range(8)}
    halves = [gpu // 8 for gpu in range(16)]
    return build("double-cube", paths=nested((halves,), (PathType.PHB,), across=PathType.SYS), links=links, numa=halves)


def renumbered(machine: Machine, order: Sequence[int]) -> Machine:
    """The same machine with position ``order[i]`` in place ``i``; GPUs are numbered by place."""
    gpus = [machine.gpus[place] for place in order]
    return Machine(
        name=machine.name,
        gpus=tuple(
            Gpu(
                index=index, uuid=gpu.uuid, minor=index, pci=gpu.pci, pcie_root=gpu.pcie_root, numa=gpu.numa,
                product=gpu.product, architecture=gpu.architecture, compute_capability=gpu.compute_capability,
                memory_mib=gpu.memory_mib, power_watts=gpu.power_watts, pcie_gbps=gpu.pcie_gbps,
                switch_links=gpu.switch_links,
            )
            for index, gpu in enumerate(gpus)
        ),
        links=tuple(tuple(machine.links[a][b] for b in order) for a in order),
        paths=tuple(tuple(machine.paths[a][b] for b in order) for a in order),
        nics=machine.nics,
        nic_paths=tuple(tuple(row[place] for place in order) for row in machine.nic_paths),
        numa=machine.numa,
        link_gbps=machine.link_gbps,
        socket_gbps=machine.socket_gbps,
    )  # fmt: skip
