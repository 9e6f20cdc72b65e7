"""Network cards that pods have taken: the machine has them still, and nothing that is published changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from dradriver.node.discovery.kept_nics import FoundNic, KeptNics
from dradriver.node.discovery.nic_discovery import read_nics
from dradriver.node.discovery.pci import PciTree
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, Nic
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.nic_tree import NicTree
from tests.fakes.server import complete


@pytest.fixture(params=["hgx-h100", "dgx1-v100"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(request.param, tmp_path)


@pytest.fixture
def hardware(server: Server) -> Iterator[Hardware]:
    with patch.dict(os.environ, server.environment()):
        yield agent(server, server.sys.root / "nics.json")


def agent(server: Server, file: Path | None, boot: str = "boot-1") -> Hardware:
    return Hardware(
        driver_root=nvml.compiled(), host_root=server.sys.root, nics=KeptNics(file, boot=boot) if file else None
    )


def take(server: Server, nic: Nic) -> Path:
    """Have a pod take a card, as RDMA's exclusive mode does; where its folder is now."""
    folder = server.sys.device(nic.pci) / "infiniband"
    moved = server.sys.root / nic.name
    (server.sys.root / "sys/class/infiniband" / nic.name).unlink()
    shutil.move(folder, moved)
    return moved


def back(server: Server, nic: Nic, moved: Path) -> None:
    folder = server.sys.device(nic.pci) / "infiniband"
    shutil.move(moved, folder)
    link = server.sys.root / "sys/class/infiniband" / nic.name
    link.symlink_to(os.path.relpath(folder / nic.name, link.parent))


@pytest.mark.slow
def test_a_card_that_comes_and_goes_with_pods_changes_nothing(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    assert whole.nics
    first, last = whole.nics[0], whole.nics[-1]
    for _ in range(2):
        asides = [take(server, nic) for nic in (first, last)]
        assert [hardware.read() for _ in range(5)] == [whole] * 5
        for nic, moved in zip((first, last), asides, strict=True):
            back(server, nic, moved)
        assert [hardware.read() for _ in range(5)] == [whole] * 5


@pytest.mark.slow
def test_all_cards_in_pods_do_not_make_it_a_machine_without_rdma(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    server.sys._interface("eth0", server.sys.device(whole.nics[0].pci), speed=100_000)
    for nic in whole.nics:
        take(server, nic)
    assert [hardware.read() for _ in range(5)] == [whole] * 5


@pytest.mark.slow
def test_the_next_agent_knows_them_and_the_next_boot_does_not(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    file = server.sys.root / "nics.json"
    take(server, whole.nics[1])
    assert agent(server, file).read() == whole
    left = agent(server, file, boot="boot-2").read()
    assert [nic.name for nic in left.nics] == [nic.name for nic in whole.nics if nic is not whole.nics[1]]


def down(server: Server, nic: Nic) -> None:
    for name, text in (("state", "1: DOWN"), ("rate", "10 Gb/sec (4X SDR)")):
        server.sys.file(f"sys/class/infiniband/{nic.name}/ports/1/{name}", text)


@pytest.mark.slow
def test_a_card_has_the_best_rate_that_any_reading_saw(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    nic, file = whole.nics[0], server.sys.root / "nics.json"
    assert nic.gbps > 0
    down(server, nic)
    assert [hardware.read() for _ in range(5)] == [whole] * 5
    assert agent(server, file).read() == whole, "the next agent, while the port is down"
    take(server, whole.nics[1])
    assert agent(server, file).read() == whole
    assert agent(server, file, boot="boot-2").read().nics[0].gbps == 0
    twice = f"{nic.gbps * 16:g} Gb/sec (8X NDR)"
    for name, text in (("state", "4: ACTIVE"), ("rate", twice)):
        server.sys.file(f"sys/class/infiniband/{nic.name}/ports/1/{name}", text)
    assert agent(server, file).read().nics[0].gbps == 2 * nic.gbps


def test_a_rate_is_that_of_the_card_and_not_of_another_under_its_name(server: Server, tmp_path: Path) -> None:
    tree = PciTree(server.sys.root)
    (first, *_) = read_nics(server.sys.root, tree, [])
    other = msgspec.structs.replace(first.nic, pci="0000:fe:00.0", gbps=first.nic.gbps * 2)
    kept = KeptNics()
    kept.keep([FoundNic(other, (other.pci,))])
    assert read_nics(server.sys.root, tree, [], kept)[0] == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"boot": "boot-1", "nics": [{"nic": {"name": ""}, "busids": ["0000:01:00.0"]}]}',
        '{"boot": "boot-1", "nics": [{"nic": {"name": "x", "gbps": -1}, "busids": ["0000:01:00.0"]}]}',
        '{"boot": "boot-1", "nics": [{"nic": {"name": "x"}, "busids": []}]}',
        '{"boot": "boot-1", "nics": [{"nic": {"name": "x"}, "busids": ["0000:01:00.0"], "scalable": "../../x"}]}',
        '{"boot": "boot-1", "nics": [{"nic": {"name": "x"}, "busids": ["../../etc"]}]}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_a_damaged_file_is_no_machine(server: Server, hardware: Hardware, text: str) -> None:
    whole = hardware.read()
    file = server.sys.root / "nics.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert agent(server, file).read() == whole
    file.unlink()
    file.mkdir()
    assert agent(server, file).read() == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"gbps": 1e300},
        {"gbps": 1e400},
        {"numa": 10**12},
        {"name": "mlx5_0 \ud800"},
    ],
)
def test_a_file_that_says_what_no_card_is_costs_no_reading(
    server: Server, hardware: Hardware, change: dict[str, object]
) -> None:
    whole = hardware.read()
    gone = whole.nics[1]
    take(server, gone)
    written(server, {"name": gone.name, "pci": gone.pci} | change, pci=gone.pci)
    read = agent(server, server.sys.root / "nics.json").read()
    assert [nic.name for nic in read.nics] == [nic.name for nic in whole.nics if nic is not gone]


def test_a_file_that_has_a_card_twice_is_not_believed(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    gone = whole.nics[1]
    take(server, gone)
    written(server, {"name": gone.name}, {"name": gone.name}, pci=gone.pci)
    read = agent(server, server.sys.root / "nics.json").read()
    assert [nic.name for nic in read.nics] == [nic.name for nic in whole.nics if nic is not gone]


def written(server: Server, *cards: dict[str, object], pci: str) -> None:
    """Write cards at a PCI function into the agent's file, as damage may."""
    text = json.dumps({"boot": "boot-1", "nics": [{"nic": card, "busids": [pci]} for card in cards]})
    (server.sys.root / "nics.json").write_text(text)


def test_a_card_whose_pci_function_is_gone_is_gone(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    gone = whole.nics[2]
    take(server, gone)
    link = server.sys.root / "sys/bus/pci/devices" / gone.pci
    folder = link.resolve()
    link.unlink()
    shutil.rmtree(folder)
    read = [hardware.read() for _ in range(5)][-1]
    assert [nic.name for nic in read.nics] == [nic.name for nic in whole.nics if nic is not gone]


@pytest.mark.slow
def test_a_card_under_another_name_is_not_there_twice(server: Server, hardware: Hardware) -> None:
    whole = hardware.read()
    nic = whole.nics[0]
    moved = take(server, nic)
    renamed = msgspec.structs.replace(nic, name="rocep1s0")
    os.rename(moved / nic.name, moved / renamed.name)
    back(server, renamed, moved)
    read = [hardware.read() for _ in range(5)][-1]
    assert {one.pci for one in read.nics} == {one.pci for one in whole.nics}
    assert len(read.nics) == len(whole.nics)
    assert "rocep1s0" in {one.name for one in read.nics}


def test_a_function_whose_parent_is_in_a_pod_has_it_still(tmp_path: Path) -> None:
    machine = complete(profiles.load("hgx-h100"))
    pf, vf = machine.nics[0], machine.nics[1]
    nics = (pf, msgspec.structs.replace(vf, parent=pf.name), *machine.nics[2:])
    server = Server(msgspec.structs.replace(machine, nics=nics), tmp_path)
    kept = KeptNics()

    def read() -> tuple[FoundNic, ...]:
        return read_nics(server.sys.root, PciTree(server.sys.root), [], kept)

    whole = read()
    assert {card.nic.name: card.nic.parent for card in whole if card.nic.parent} == {vf.name: pf.name}
    take(server, pf)
    assert read() == whole


def test_scalable_functions_and_their_card_are_kept_apart(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    tree.card(0)
    for number in (1, 2):
        tree.scalable(number, of=0)
    file = tmp_path / "nics.json"

    def read() -> tuple[FoundNic, ...]:
        return read_nics(tmp_path, PciTree(tmp_path), [], KeptNics(file, boot="boot-1"))

    whole = read()
    assert [(card.nic.name, card.nic.parent) for card in whole] == [
        ("mlx5_0", ""),
        ("mlx5_1", "mlx5_0"),
        ("mlx5_2", "mlx5_0"),
    ]
    for number in (0, 1):
        (tmp_path / f"sys/class/infiniband/mlx5_{number}").unlink()  # a pod has it
        assert read() == whole
    (tmp_path / "sys/bus/auxiliary/devices/mlx5_core.sf.1").unlink()
    assert [card.nic.name for card in read()] == ["mlx5_0", "mlx5_2"]


def test_interfaces_that_pods_have_are_kept_too(tmp_path: Path) -> None:
    machine: Machine = complete(profiles.load("hgx-h100"))
    nics = tuple(msgspec.structs.replace(nic, kind="ethernet") for nic in machine.nics)
    server = Server(msgspec.structs.replace(machine, nics=nics), tmp_path)
    kept = KeptNics()

    def read() -> tuple[FoundNic, ...]:
        return read_nics(server.sys.root, PciTree(server.sys.root), [], kept)

    whole = read()
    assert len(whole) == len(nics)
    (server.sys.root / "sys/class/net" / nics[3].name).unlink()
    assert read() == whole


def test_a_file_that_cannot_be_written_is_said_once(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("")
    kept = KeptNics(tmp_path / "a file/nics.json", boot="b")
    tree = PciTree(server.sys.root)
    first = [read_nics(server.sys.root, tree, [], kept) for _ in range(3)]
    assert first[0]
    assert caplog.text.count("cannot be written") == 1
