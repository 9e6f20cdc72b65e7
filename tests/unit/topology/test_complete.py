"""What links imply of a machine whose source does not name it, and what is added by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.allocator.sets.tables import tables_of
from dradriver.topology import profiles, read_machine, topo_m
from dradriver.topology.complete import CPUS, PRODUCTS, complete, with_bus_ids
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import PathType
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.topo_m.implied_products import implied
from tests.fakes import machines
from tests.paths import SHARED_DATA


def links(count: int, pairs: dict[tuple[int, int], int]) -> list[list[int]]:
    out = [[0] * count for _ in range(count)]
    for (a, b), number in pairs.items():
        out[a][b] = out[b][a] = number
    return out


@pytest.mark.parametrize(
    ("given", "capability", "pcie_gbps", "link_gbps"),
    [
        (links(4, {(0, 1): 4, (2, 3): 4}), "8.6", 24.0, 12.0),  # A40, RTX A6000
        (links(2, {(0, 1): 3}), "8.6", 24.0, 12.0),  # RTX 3090 with a link down
        (links(4, {(0, 3): 12}), "8.0", 24.0, 20.0),  # A100 PCIe
        (links(4, {(0, 3): 18}), "9.0", 48.0, 20.6),  # H100 PCIe
        (links(4, {(0, 1): 2}), "7.0", 12.0, 20.0),  # V100 PCIe
        (links(4, dict.fromkeys(((0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)), 4)), "8.0", 24.0, 20.0),  # Perlmutter
        (links(4, dict.fromkeys(((0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)), 6)), "9.0", 48.0, 20.6),  # H100, NV6
        (links(3, dict.fromkeys(((0, 1), (1, 2), (0, 2)), 9)), "9.0", 48.0, 20.6),
        (links(4, {(0, 1): 6, (1, 2): 6, (2, 3): 6, (0, 3): 6, (0, 2): 1}), "9.0", 48.0, 20.6),  # with links down
        (machines.dgx1().links, "7.0", 12.0, 20.0),
        (
            links(4, dict.fromkeys(((0, 1), (1, 2), (2, 3), (0, 3)), 2)),
            "6.0",
            12.0,
            18.0,
        ),  # no V100 leaves two links free
        (links(4, {}), "", 24.0, 0.0),
    ],
)
def test_links_imply_the_product(given: list[list[int]], capability: str, pcie_gbps: float, link_gbps: float) -> None:
    found = implied(given, two_nodes(PathType.NODE), switched=False)
    assert (found.capability, found.pcie_gbps, found.link_gbps) == (capability, pcie_gbps, link_gbps)


def two_nodes(inside: PathType) -> list[list[PathType]]:
    """Four GPUs, two on each of two NUMA nodes."""
    return machines.nested(((0, 0, 1, 1),), (inside,), across=PathType.SYS)


@pytest.mark.parametrize(
    ("given", "shared", "apart"),
    [
        (links(4, {(0, 2): 2}), (6, 10), (10, 6)),  # V100: Broadwell, Skylake
        (links(4, {(0, 2): 12}), (16, 10), (16, 10)),  # A100: AMD, Ice Lake; both may show NODE, PHB AMD alone
        (links(4, {(0, 2): 18}), (16, 22), (22, 16)),  # Hopper: AMD, Sapphire Rapids
        (links(4, {}), (16, 10), (10, 16)),  # AMD, Ice Lake
        (links(4, dict.fromkeys(((0, 1), (1, 2), (2, 3), (0, 3)), 1)), (6, 0), (6, 0)),  # P100: Broadwell
    ],
)
def test_gpus_below_one_host_bridge_imply_cpus_whose_ports_share_one(
    given: list[list[int]], shared: tuple[float, float], apart: tuple[float, float]
) -> None:
    for inside, expected in ((PathType.PHB, shared), (PathType.NODE, apart), (PathType.PIX, apart)):
        found = implied(given, two_nodes(inside), switched=False)
        assert (found.socket_gbps, found.socket_gbps_or) == expected


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "socket_gbps"),
    [
        ("dgx1v-v100x8-mlx5x4", 6.0),  # Broadwell (Xeon E5-2698 v4): its GPUs are PHB to the NICs of other switches
        ("v100x8-sxm2-dgx1like-nic0", 10.0),  # NODE to the NIC
    ],
)
def test_posted_texts_imply_their_cpus(name: str, socket_gbps: float) -> None:
    assert read_machine(SHARED_DATA / "topo_m" / f"{name}.txt").socket_gbps == socket_gbps


@pytest.mark.parametrize(
    ("name", "pcie_gbps", "link_gbps"),
    [("dgx2-v100", 12.0, 20.0), ("dgx-a100", 24.0, 20.0), ("hgx-h100", 48.0, 20.6), ("hgx-b200", 48.0, 20.6)],
)
def test_links_to_switches_imply_pcie(name: str, pcie_gbps: float, link_gbps: float) -> None:
    machine = topo_m.read(topo_m.write(profiles.load(name)))
    assert machine.switched
    assert ({gpu.pcie_gbps for gpu in machine.gpus}, machine.link_gbps) == ({pcie_gbps}, link_gbps)
    assert profiles.load(name).gpus[0].pcie_gbps == pcie_gbps


def test_profiles_and_products_agree() -> None:
    for name in profiles.names():
        gpu = profiles.load(name).gpus[0]
        if gpu.product in PRODUCTS:
            sm, pcie_gbps = PRODUCTS[gpu.product]
            assert (gpu.compute_capability, gpu.pcie_gbps) == (f"{sm // 10}.{sm % 10}", pcie_gbps), name


def test_a_product_and_a_cpu_complete_a_text() -> None:
    text = topo_m.write(profiles.load("a40-x8-bridge-pairs"))
    machine = complete(topo_m.read(text, name="text"), product="a40", cpu="Ice Lake")
    gpu = machine.gpus[0]
    assert (gpu.product, gpu.compute_capability, gpu.architecture) == ("NVIDIA A40", "8.6", "ampere")
    assert (gpu.pcie_gbps, machine.link_gbps, machine.socket_gbps, machine.socket_gbps_or) == (24.0, 12.0, 10.0, 0.0)
    assert machine.cpu == CPUS["icelake"]
    assert complete(machine, cpu="AuthenticAMD 25 17").socket_gbps == 16.0
    assert complete(topo_m.read(topo_m.write(profiles.load("l40s-x8"))), product="l40s").link_gbps == 0


def test_every_cpu_has_the_bandwidth_that_nccl_counts() -> None:
    found = {name: nccl_bandwidths.socket_gbps(cpu) for name, cpu in CPUS.items()}
    assert found == {
        "broadwell": 6, "skylake": 10, "cascadelake": 10, "icelake": 10, "sapphirerapids": 22, "emeraldrapids": 40,
        "rome": 16, "milan": 16, "genoa": 16, "turin": 16, "grace": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("product", "cpu", "says"),
    [
        ("a41", "", "is not a known product. Write one of: Tesla P100"),
        ("nvidia", "", "matches several products. Write one of: NVIDIA A100-SXM4-80GB"),
        ("", "pentium", "Write one of: broadwell"),
        ("", "GenuineIntel 6", "GenuineIntel 6 85"),
    ],
)
def test_words_that_are_not_known_are_refused(product: str, cpu: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        complete(machines.pcie_box(), product=product, cpu=cpu)


def test_bus_ids_by_hand_and_made_up() -> None:
    machine = topo_m.read(topo_m.write(machines.pcie_box()), name="text")
    ids = [f"0000:{number:02x}:00.0" for number in range(1, 9)]
    assert [gpu.pci for gpu in complete(machine, bus_ids=ids).gpus] == ids
    made_up = [gpu.pci for gpu in with_bus_ids(machine).gpus]
    assert len(set(made_up)) == 8
    assert made_up[:2] == ["0000:10:00.0", "0000:18:00.0"]
    with pytest.raises(TopologyError, match="each of 8 GPUs"):
        complete(machine, bus_ids=ids[:3])


def test_of_equal_sets_the_one_that_no_cpu_makes_worse_is_worth_more() -> None:
    machine = topo_m.read(topo_m.write(machines.bridge_pairs()), name="text")
    assert machine.socket_gbps_or
    unsure, amd = tables_of(machine), tables_of(complete(machine, cpu="rome"))
    intel = tables_of(complete(machine, cpu="icelake"))
    sets = unsure.members(4)
    for one in sets[:20]:
        for other in sets[:20]:
            never_worse = amd.busbw[one] >= amd.busbw[other] and intel.busbw[one] >= intel.busbw[other]
            if never_worse:
                assert unsure.worth[one] >= unsure.worth[other] * (1 - 1e-6)


@pytest.mark.shared_data
def test_every_whole_text_can_be_read_and_completed() -> None:
    broken = {"b200x8-4numa-SYSSYS-glitch-partial.txt", "topo-mp-h800x8-nonvlink-partial.txt"}
    texts: list[Path] = sorted((SHARED_DATA / "topo_m").glob("*.txt"))
    for path in texts:
        if path.name not in broken:
            assert complete(read_machine(path), cpu="rome").cpu == CPUS["rome"]
