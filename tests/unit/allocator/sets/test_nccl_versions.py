"""Which NCCL jobs run: what it changes, by hand from its rules, and that the newest is what nothing said means."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from dradriver.allocator import Fleet, Whole, choose, tables_of
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.tables import tables_of_shape
from dradriver.topology import TopologyError, profiles, read_machine
from dradriver.topology.complete import complete
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.nccl_version import NEWEST, release
from tests.fakes import machines
from tests.verdicts import TRAINED, verdict


def running(machine: Machine, version: str) -> Machine:
    return msgspec.structs.replace(machine, nccl_version=version)


def busbw(machine: Machine, *gpus: int) -> float:
    return float(tables_of(machine).busbw[sum(1 << gpu for gpu in gpus)])


def chosen(machine: Machine, free: Collection[int], gpus: int) -> tuple[int, ...]:
    return choose(machine, free, Whole(containers=(gpus,))).gpus


def pairs_of_amd() -> Machine:
    """Two bridged pairs of A40, each below an AMD socket of its own."""
    paths = machines.nested(((0, 0, 1, 1),), (PathType.PHB,), across=PathType.SYS)
    return machines.build(
        "pairs", paths=paths, links={(0, 1): 4, (2, 3): 4}, link_gbps=12.0, pcie_gbps=24.0, socket_gbps=16.0,
        capability="8.6",
    )  # fmt: skip


def torn_row_and_switch() -> Machine:
    """Eight V100: a row 0-1-3-2 of single links over both sockets, and four without links below one switch."""
    paths = machines.nested(((0, 0, 1, 1, 2, 2, 2, 2),), (PathType.PIX,), across=PathType.SYS)
    links = {(0, 1): 1, (1, 3): 1, (2, 3): 1}
    return machines.build("row", paths=paths, links=links, pcie_gbps=24.0, socket_gbps=6.0)


def test_split_domains_have_one_ring_before_2_26() -> None:
    # Of 16 GB/s between AMD sockets one ring gets 15, the next lower speed that is tried; two at least get 4 times 4.
    assert busbw(running(pairs_of_amd(), "2.25.1"), 0, 1, 2, 3) == pytest.approx(15)
    assert busbw(running(pairs_of_amd(), "2.26.2"), 0, 1, 2, 3) == pytest.approx(16)
    # One domain of two GPUs and a GPU without links are not split: there the release makes no difference.
    for version in ("2.25", "2.26", ""):
        assert busbw(running(pairs_of_amd(), version), 0, 1, 2) == pytest.approx(15)


def test_a_torn_row_is_better_than_a_switch_from_2_26_on_alone() -> None:
    machine = torn_row_and_switch()
    # 2.26 tears the row in two domains and takes two rings, so two trees, of 20 each: 0.92 * 40 * 3/4. Before it is one
    # ring there and back, 20. Below the switch two rings of 12 fill a GPU's 24 GB/s with either.
    assert busbw(machine, 0, 1, 2, 3) == pytest.approx(27.6)
    assert busbw(running(machine, "2.25.1"), 0, 1, 2, 3) == pytest.approx(20)
    assert busbw(machine, 4, 5, 6, 7) == busbw(running(machine, "2.25.1"), 4, 5, 6, 7) == pytest.approx(24)
    assert chosen(machine, range(8), 4) == (0, 1, 2, 3)
    assert chosen(running(machine, "2.25.1"), range(8), 4) == (4, 5, 6, 7)


def test_amd_talks_by_way_of_its_cpus_from_2_23_on() -> None:
    # Two A100 a socket, a bridge from 1 to 2 between the sockets. By way of the CPUs all traffic between the sockets
    # takes that bridge and its GPUs' PCIe, 24 GB/s: two rings of 12, two trees of 20. Directly 3 to 0 takes the wires
    # between the sockets, 16 GB/s: one ring of 15.
    paths = machines.nested(((0, 0, 1, 1),), (PathType.NODE,), across=PathType.SYS)
    machine = machines.build(
        "gate", paths=paths, links={(1, 2): 12}, pcie_gbps=24.0, capability="8.0", socket_gbps=16.0
    )
    intel = msgspec.structs.replace(machine, socket_gbps=10.0)
    assert busbw(running(machine, "2.23.4"), 0, 1, 2, 3) == busbw(machine, 0, 1, 2, 3) == pytest.approx(27.6)
    assert busbw(running(machine, "2.22.3"), 0, 1, 2, 3) == pytest.approx(15)
    assert busbw(running(intel, "2.22.3"), 0, 1, 2, 3) == busbw(intel, 0, 1, 2, 3) > 15


def test_sapphire_rapids_is_a_skylake_before_2_26() -> None:
    machine = profiles.load("l40s-x8")  # two of them with 22 GB/s between, four L40S below each
    assert busbw(machine, 0, 4) == pytest.approx(20)
    assert busbw(running(machine, "2.25.1"), 0, 4) == pytest.approx(10)
    # Within a socket it is the host bridge that limits, with either: what is chosen goes by what stays for others, or
    # must not leave the socket.
    free = (0, 1, 2, 3, 4)
    assert busbw(machine, 0, 1, 2) == busbw(machine, 0, 1, 4) == pytest.approx(20)
    assert 4 in chosen(machine, free, 3)
    assert 4 not in chosen(running(machine, "2.25.1"), free, 3)
    # What the wires carry has not changed.
    ring = choose(running(machine, "2.25.1"), (0, 4), Whole(containers=(2,)))
    assert ring.bandwidth_gbps == choose(machine, (0, 4), Whole(containers=(2,))).bandwidth_gbps


def test_nvls_reached_five_sixths_before_2_28() -> None:
    # Each of n channels passes every GPU's 370.8 GB/s once and its own twice: of the speeds that are tried 60 is the
    # highest that fits 5 + 1 times, 40 the highest that fits 8 + 1 times. Twice 5/6 of n times that, times (n - 1)/n;
    # or 0.85 of it, at most the 60 GB/s a channel that the search knows.
    machine = machines.dgx_h100()
    assert busbw(running(machine, "2.27.7"), *range(5)) == pytest.approx(400)
    assert busbw(running(machine, "2.27.7"), *range(8)) == pytest.approx(2 * 5 / 6 * 320 * 7 / 8)
    assert busbw(machine, *range(5)) == pytest.approx(360)  # rings
    assert busbw(machine, *range(8)) == pytest.approx(2 * 0.85 * 320 * 7 / 8)


@pytest.mark.shared_data
def test_every_set_of_an_hgx_h100_is_what_nccl_2_27_7_says() -> None:
    machine = complete(read_machine(TRAINED / "switch-h100-x5-161.xml"), nccl_version="2.27.7")
    for gpus, true in verdict("train/switch-h100-x5-161-2.27.7.csv").items():
        assert busbw(machine, *gpus) == pytest.approx(true, rel=0.002)


@pytest.mark.parametrize(
    ("version", "expected"), [("2.27.7", (360, 360, 360, 400, 416.7, 400)), ("2.28.9", (360, 360, 360, 360, 360, 408))]
)
def test_an_hgx_h100_with_a_gpu_missing_has_what_each_nccl_finds(version: str, expected: tuple[float, ...]) -> None:
    # By the number of GPUs from two on: each release's own search and tuning, run for every set of seven.
    paths = machines.nested((range(7), machines.HALVES), (PathType.PIX, PathType.NODE), across=PathType.SYS)
    machine = machines.build(
        "hgx", paths=paths, switch_links=18, link_gbps=20.6, pcie_gbps=48.0, socket_gbps=22.0, capability="9.0"
    )
    found = [busbw(running(machine, version), *range(gpus)) for gpus in range(2, 8)]
    assert found == pytest.approx(expected, rel=0.001)


def test_releases_that_predict_alike_share_tables_and_the_newest_is_the_default() -> None:
    machine = profiles.load("l40s-x8")
    for versions in (
        ("", "2.28.3", "2.30", "2.31.2", "3.0"),
        ("2.26.2", "2.27.7"),
        ("2.23.4", "2.25.1"),
        ("2.19", "2.22.3"),
    ):
        assert len({shape_of(running(machine, version)) for version in versions}) == 1
    assert len({shape_of(running(machine, version)) for version in ("2.22", "2.25", "2.27", "2.28")}) == 4
    assert tables_of(running(machine, "2.22")) is tables_of_shape(shape_of(running(machine, "2.21.5")))


def test_nodes_of_one_fleet_may_run_different_ones() -> None:
    fleet = Fleet()
    fleet.set_node("old", running(torn_row_and_switch(), "2.21.5"), range(8))
    fleet.set_node("new", torn_row_and_switch(), range(8))
    found = {choice.node: (choice.gpus, choice.busbw_gbps) for choice in fleet.rank(Whole(containers=(4,)))}
    assert found == {"new": ((0, 1, 2, 3), 27.6), "old": ((4, 5, 6, 7), 24.0)}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("", NEWEST), ("2.19", (2, 19)), ("2.23.4", (2, 23)), ("2.30.7", (2, 30)), ("2.100", (2, 100)), ("3.0.1", (3, 0))],
)
def test_versions(version: str, expected: tuple[int, int]) -> None:
    assert release(version) == expected


@pytest.mark.parametrize(
    "version", ["2", "2.18.6", "1.3.4", "0", "v2.23", "2.23.4-1", "2.23 ", "2..3", "٢.٢٣", "newest"]
)
def test_what_is_no_version_is_refused_with_what_to_write(version: str) -> None:
    with pytest.raises(
        TopologyError, match=r"^nccl-version: '.*' is not allowed\. Write 2\.19 or a later version, for example"
    ):
        complete(machines.dgx1(), nccl_version=version)
