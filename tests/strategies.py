"""Hypothesis strategies for random machines that are valid by ``dradriver.topology.check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from dradriver.topology.check import check
from dradriver.topology.machine import Cpu, Gpu, Machine, Nic, NumaNode, PciDevice
from dradriver.topology.pcie_paths import Place, path_matrix
from dradriver.topology.synthetic import synthetic_uuid

Matrix = tuple[tuple[int, ...], ...]


@st.composite
def places(draw: st.DrawFn, *, numa_known: bool) -> Place:
    """Return a place in a small PCIe tree: two sockets, two roots each, up to two levels of switches."""
    numa, root = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    switches = draw(st.sampled_from(((), ("s0",), ("s1",), ("s0", "s2"), ("s0", "s3"))))
    return Place(numa=numa if numa_known else None, root=f"pci0000:{numa}{root}", switches=switches)


@st.composite
def link_matrices(draw: st.DrawFn, *, gpus: int, most: int = 4, counts: Sequence[int] = ()) -> Matrix:
    """Return a symmetric matrix of links: up to ``most`` a pair, or each pair's number one of ``counts``."""
    number = st.sampled_from(counts or (0, 0, *range(1, most + 1)))
    matrix = [[0] * gpus for _ in range(gpus)]
    for i in range(gpus):
        for j in range(i):
            matrix[i][j] = matrix[j][i] = draw(number)
    return tuple(tuple(row) for row in matrix)


def _each(matrix: Matrix, value: Callable[[int, int, int], int]) -> Matrix:
    """Return the matrix with another value for each pair; 0 stays on the diagonal."""
    return tuple(tuple(0 if i == j else value(i, j, n) for j, n in enumerate(row)) for i, row in enumerate(matrix))


@st.composite
def machines(
    draw: st.DrawFn, *, max_gpus: int = 8, min_gpus: int = 1, max_nics: int = 4, mixed: bool = False
) -> Machine:
    """Return a valid machine: no links, direct links of any graph, or a switch fabric, some degraded or with holes.

    With ``mixed`` it may also have direct links beside those to switches, as no server yet has.
    """
    count = draw(st.integers(min_gpus, max_gpus))
    name = draw(st.sampled_from(("box", "node-a", "n0")))
    numa_known = draw(st.booleans())
    gpu_places = tuple(draw(places(numa_known=numa_known)) for _ in range(count))
    nic_places = tuple(draw(places(numa_known=numa_known)) for _ in range(draw(st.integers(0, max_nics))))
    kinds = ("none", "direct", "switched", "holes")
    kind = draw(st.sampled_from((*kinds, "mixed") if mixed else kinds))
    switch_links = [0] * count
    links: Matrix = ((0,) * count,) * count
    if kind == "direct":
        links = draw(link_matrices(gpus=count))
    elif kind == "switched":
        switch_links = draw(st.lists(st.sampled_from((18, 18, 18, 17, 0)), min_size=count, max_size=count))
        links = _each(links, lambda i, j, _: min(switch_links[i], switch_links[j]))
    elif kind == "holes":  # peer-to-peer access fails between some pairs
        switch_links = draw(st.lists(st.sampled_from((18, 18, 14)), min_size=count, max_size=count))
        open_ = draw(link_matrices(gpus=count, counts=(0, 1, 1, 1, 1, 1)))
        links = _each(open_, lambda i, j, n: n * min(switch_links[i], switch_links[j]))
    elif kind == "mixed":
        switch_links = draw(st.lists(st.sampled_from((6, 6, 0)), min_size=count, max_size=count))
        direct = draw(link_matrices(gpus=count, counts=(0, 0, 1, 2)))
        links = _each(direct, lambda i, j, n: n + min(switch_links[i], switch_links[j]))
    indices = sorted(draw(st.sets(st.integers(0, 2 * count), min_size=count, max_size=count)))
    minors = draw(st.permutations(range(count)))
    gpus = tuple(
        Gpu(
            index=index,
            uuid=synthetic_uuid(name, index),
            minor=minors[i],
            pci=f"0000:{i + 1:02x}:00.0",
            pcie_root=place.root,
            numa=place.numa,
            product=draw(st.sampled_from(("", "NVIDIA H100 80GB HBM3", "Ü GPU"))),
            memory_mib=draw(st.integers(0, 1 << 20)),
            pcie_gbps=draw(st.sampled_from((12.0, 24.0, 48.0))),
            switch_links=switch_links[i],
        )
        for i, (index, place) in enumerate(zip(indices, gpu_places, strict=True))
    )
    nics = tuple(
        Nic(name=f"mlx5_{n}", pci=f"0000:{n + 64:02x}:00.0", numa=place.numa, gbps=draw(st.sampled_from((0.0, 50.0))))
        for n, place in enumerate(nic_places)
    )
    cpus = (
        st.none() | st.just(Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1)) | st.just(Cpu(arch="arm64"))
    )
    return check(
        Machine(
            name=name,
            gpus=gpus,
            links=links,
            paths=path_matrix(gpu_places, gpu_places),
            nics=nics,
            nic_paths=path_matrix(nic_places, gpu_places),
            numa=(NumaNode(id=0, cpus="0-7"), NumaNode(id=1, cpus="8-15")) if numa_known else (),
            link_gbps=draw(st.sampled_from((18.0, 20.0, 20.6))) if kind != "none" else 0.0,
            socket_gbps=draw(st.sampled_from((6.0, 10.0, 22.0))),
            nccl_version=draw(st.sampled_from(("", "2.23.4", "2.27"))),
            cpu=draw(cpus),
            pci=draw(pci_trees(gpus=gpus, nics=nics)),
            virtual=draw(st.none() | st.booleans()),
        )
    )


@st.composite
def pci_trees(draw: st.DrawFn, *, gpus: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> tuple[PciDevice, ...]:
    """Return no tree, or one with up to three bridges one below another or side by side, and every device somewhere."""
    if draw(st.booleans()):
        return ()
    tree: list[PciDevice] = []
    for n in range(draw(st.integers(0, 3))):
        parent = draw(st.none() | st.integers(0, n - 1)) if n else None
        numa = draw(st.none() | st.integers(0, 1)) if parent is None else tree[parent].numa
        tree.append(PciDevice(f"0000:{n + 128:02x}:00.0", parent, numa, "0x060400", "1000:c030:1000:0001"))
    bridges = len(tree)
    devices: list[Gpu | Nic] = [*gpus, *nics]
    for device in devices:
        kind = "0x030200" if isinstance(device, Gpu) else "0x020700"
        parent = draw(st.none() | st.integers(0, bridges - 1)) if bridges else None
        speed = draw(st.sampled_from(("", "32.0 GT/s PCIe")))
        tree.append(PciDevice(device.pci, parent, device.numa, kind, "", speed, draw(st.sampled_from((0, 16)))))
    return tuple(tree)
