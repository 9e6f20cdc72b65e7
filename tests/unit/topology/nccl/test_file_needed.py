"""Who needs a topology file, where it is not known what the machine is, and which GPUs lack links."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec
import pytest

from dradriver.topology import machine_codec, nccl, profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.nccl.file_needed import explain
from tests.paths import SHARED_DATA

REAL = [
    *sorted((SHARED_DATA / "topo_m").glob("*.txt")),
    *sorted((SHARED_DATA / "nccl_xml").glob("*.xml")),
]


def change(machine: Machine, **fields: object) -> Machine:
    return msgspec.structs.replace(machine, **fields)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "needed", "says"),
    [
        ("topo_m/v100x8-vm-phb-p3.16xlarge.txt", None, "If it is: a file is worth it, its PCI tree is flat"),
        (
            "nccl_xml/nebius-h100-vm.xml",
            False,
            "If it is: no file is needed, its PCI tree shows",
        ),
        ("nccl_xml/azure-ncv4-topo.xml", None, "If it is: a file is worth it, its PCI tree is flat"),
    ],
)
def test_what_a_source_does_not_say_is_not_claimed(file: str, needed: bool | None, says: str) -> None:
    machine = read_machine(SHARED_DATA / file)
    assert machine.virtual is None
    advice = explain(machine)
    assert advice.needed is needed
    assert advice.reasons[0].startswith(
        "Whether this is a virtual machine is not known from this source. If it is not: "
    )
    assert says in advice.reasons[0]
    assert "this is no virtual machine" not in " ".join(advice.reasons)


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["aws-p4d-24xl-topo", "azure-ndv4-topo"])
def test_a_tree_with_invented_switches_is_a_files_and_not_that_of_sys(name: str) -> None:
    advice = explain(read_machine(SHARED_DATA / "nccl_xml" / f"{name}.xml"))
    assert advice.needed
    assert "(ffff:ff:…) are in no /sys" in advice.reasons[0]


@pytest.mark.shared_data
def test_nics_of_what_may_be_a_virtual_machine_are_written() -> None:
    machine = read_machine(SHARED_DATA / "nccl_xml" / "nebius-h100-vm.xml")
    again = nccl.read(nccl.write(machine))
    before, after = (dict(zip([nic.pci for nic in m.nics], m.nic_paths, strict=True)) for m in (machine, again))
    assert before == after
    bare = nccl.read(nccl.write(change(machine, virtual=False)))
    assert not bare.nics


def test_not_known_is_left_out_of_the_document_and_no_and_yes_are_in_it() -> None:
    machine = profiles.load("dgx1-v100")
    assert machine.virtual is False
    unknown = change(machine, virtual=None)
    assert '"virtual"' not in machine_codec.encode(unknown)  # readers of the first release know true and false alone
    for one in (unknown, machine, change(machine, virtual=True)):
        assert machine_codec.decode(machine_codec.encode(one)) == one


def weak(machine: Machine) -> str:
    """The GPUs that are said to lack links."""
    found = [reason.partition(": fewer links")[0] for reason in explain(machine).reasons if ": fewer links" in reason]
    return found[0] if found else ""


def switched(counts: Sequence[int]) -> Machine:
    machine = profiles.load("hgx-h100")
    gpus = (msgspec.structs.replace(g, switch_links=n) for g, n in zip(machine.gpus, counts, strict=True))
    links = (tuple(0 if i == j else min(a, b) for j, b in enumerate(counts)) for i, a in enumerate(counts))
    return change(machine, gpus=tuple(gpus), links=tuple(links))


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        ((18,) * 8, ""),
        ((0,) * 8, ""),
        ((0, 18) * 4, "GPU0, GPU2, GPU4, GPU6"),
        ((0,) * 4 + (18,) * 4, "GPU0, GPU1, GPU2, GPU3"),
        ((0,) * 5 + (18,) * 3, "GPU0, GPU1, GPU2, GPU3, GPU4"),
        ((18,) * 7 + (17,), "GPU7"),
    ],
)
def test_gpus_with_fewer_links_to_switches_than_the_best_are_named(counts: tuple[int, ...], lacking: str) -> None:
    assert weak(switched(counts)) == lacking


def without(machine: Machine, *pairs: tuple[int, int]) -> Machine:
    links = [list(row) for row in machine.links]
    for i, j in pairs:
        links[i][j] = links[j][i] = 0
    return change(machine, links=tuple(map(tuple, links)))


def part(machine: Machine, positions: Sequence[int]) -> Machine:
    def rows(matrix: Sequence[Sequence[object]]) -> tuple[tuple[object, ...], ...]:
        return tuple(tuple(matrix[i][j] for j in positions) for i in positions)

    return change(
        machine,
        gpus=tuple(machine.gpus[i] for i in positions),
        links=rows(machine.links),
        paths=rows(machine.paths),
        nics=(),
        nic_paths=(),
    )


@pytest.mark.parametrize(
    ("name", "lost", "lacking"),
    [
        ("dgx1-v100", [(3, j) for j in range(8) if j != 3], "GPU3"),
        ("dgx1-v100", [(0, 3)], "GPU0, GPU3"),
        ("a100-x4-mesh", [(0, 1), (0, 2), (0, 3)], "GPU0"),
        ("a100-pcie-x8-bridge-pairs", [(0, 1)], ""),  # a pair without its bridge is a way to build such a server
    ],
)
def test_lost_direct_links_are_seen(name: str, lost: list[tuple[int, int]], lacking: str) -> None:
    assert weak(without(profiles.load(name), *lost)) == lacking


def test_a_bridge_with_fewer_links_than_the_other_bridges_is_seen() -> None:
    machine = profiles.load("rtx-a6000-x4-pairs")
    links = tuple(tuple(3 if {i, j} == {2, 3} else n for j, n in enumerate(row)) for i, row in enumerate(machine.links))
    assert any(map(any, links))
    assert weak(change(machine, links=links)) == "GPU2, GPU3"


def test_machines_that_are_unequal_by_design_are_not_warned_of() -> None:
    half = part(profiles.load("dgx1-v100"), range(4))  # as clouds sell it: 4, 4, 5 and 5 links among themselves
    assert sorted(sum(row) for row in half.links) == [4, 4, 5, 5]
    assert weak(half) == ""
    mesh = profiles.load("a100-x4-mesh")  # and a display card beside the mesh, as in a workstation
    card = msgspec.structs.replace(mesh.gpus[0], product="NVIDIA DGX Display")
    lone = without(change(mesh, gpus=(card, *mesh.gpus[1:])), (0, 1), (0, 2), (0, 3))
    assert weak(lone) == ""


@pytest.mark.parametrize("name", [name for name in profiles.names("nvidia") if "degraded" not in name])
def test_no_profile_is_warned_of(name: str) -> None:
    assert weak(profiles.load(name)) == ""


@pytest.mark.shared_data
def test_no_healthy_real_machine_is_warned_of() -> None:
    machines = {}
    for path in REAL:
        with contextlib.suppress(TopologyError):  # what is refused, and why, is the readers' tests' concern
            machines[path.stem] = read_machine(path)
    assert len(machines) >= 18
    assert {name: weak(machine) for name, machine in machines.items() if weak(machine)} == {}
