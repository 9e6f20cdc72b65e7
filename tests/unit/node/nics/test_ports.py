"""Ports of RDMA devices, read from trees that are written by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dradriver.node.nics import ports
from tests.fakes.nic_tree import DOWN, IPV4, LINK_LOCAL, UP, NicTree, eight


@pytest.fixture
def tree(tmp_path: Path) -> NicTree:
    return NicTree(tmp_path)


def only(tree: NicTree) -> ports.Port:
    (nic,) = ports.read(tree.root)
    (port,) = nic.ports
    return port


def test_a_port_that_is_up(tree: NicTree) -> None:
    tree.card(0)
    (nic,) = ports.read(tree.root)
    assert (nic.name, nic.pci, nic.product) == ("mlx5_0", "0000:00:00.0", "MT4129")
    assert (nic.board, nic.firmware, nic.function) == ("MT_0000000838", "28.39.1002", False)
    (port,) = nic.ports
    assert (port.number, port.state, port.phys, port.layer) == (1, "ACTIVE", "LinkUp", "InfiniBand")
    assert (port.gbit, port.lanes, port.up, port.ipv4) == (400.0, "4X NDR", True, None)
    assert port.errors == {"symbol_error": 7, "link_downed": 1, "port_rcv_errors": 0}


def test_a_port_that_is_down_has_no_rate_even_if_it_says_one(tree: NicTree) -> None:
    tree.card(0, port=DOWN)
    port = only(tree)
    assert (port.state, port.phys, port.gbit, port.lanes, port.up) == ("DOWN", "Polling", 0.0, "", False)
    assert not port.off
    assert not port.away


@pytest.mark.parametrize(
    ("gids", "has"),
    [
        ((LINK_LOCAL, LINK_LOCAL, IPV4, IPV4), True),
        ((LINK_LOCAL, LINK_LOCAL), False),
        ((LINK_LOCAL, LINK_LOCAL, IPV4), False),  # RoCE v1 alone has it
        ((LINK_LOCAL, "0000:0000:0000:0000:0000:ffff:0000:0000"), False),
        ((), False),
    ],
)
def test_a_gid_with_an_ipv4_address_by_which_nccl_finds_its_way(
    tree: NicTree, gids: tuple[str, ...], has: bool
) -> None:
    tree.card(0, layer="Ethernet", gids=gids)
    assert only(tree).ipv4 is has


def test_what_is_no_reading_of_an_ethernet_port(tree: NicTree) -> None:
    """mlx5 says Disabled of every Ethernet port that is not up; whether it was meant says the interface alone."""
    down = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
    tree.card(0, layer="Ethernet", port=down)
    tree.card(1, layer="Ethernet", port=down, flags="0x1002")
    tree.card(2, layer="Ethernet", port=down, interface=None)
    tree.card(3, port=down)
    seen = [(nic.ports[0].off, nic.ports[0].away, nic.ports[0].ipv4) for nic in ports.read(tree.root)]
    assert seen == [(False, False, None), (True, False, None), (False, True, None), (True, False, None)]


def test_a_virtual_function_is_known_and_lacks_what_it_lacks(tree: NicTree) -> None:
    tree.card(0)
    tree.card(1, parent=0, counters={}, board_id="")
    assert [(nic.function, nic.board, dict(nic.ports[0].errors)) for nic in ports.read(tree.root)] == [
        (False, "MT_0000000838", {"symbol_error": 7, "link_downed": 1, "port_rcv_errors": 0}),
        (True, "", {}),
    ]


def test_other_makers_cards_are_known_by_their_pci_ids(tree: NicTree) -> None:
    tree.card(0, hca_type="", board_id="", fw_ver="")
    (nic,) = ports.read(tree.root)
    assert (nic.product, nic.board, nic.firmware) == ("0x15b3:0x1021", "", "")


def test_nccl_may_use_the_active_ports_of_infiniband_and_ethernet(tree: NicTree) -> None:
    tree.card(0, ports=2)
    tree.card(1, port=DOWN)
    tree.card(2, layer="Ethernet")
    tree.card(3, layer="Unspecified")
    tree.card(4, port=UP | {"state": "5: ACTIVE_DEFER"})
    assert ports.active(ports.read(tree.root)) == {"mlx5_0": (1, 2), "mlx5_2": (1,)}


def test_without_any_device_there_is_nothing(tmp_path: Path) -> None:
    assert ports.read(tmp_path) == ()
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("no folder")
    assert ports.read(tmp_path) == ()


def test_one_that_vanishes_while_it_is_read_is_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = eight(tmp_path)
    first = ports._nic

    def vanishing(folder: Path, name: str) -> ports.NicState:
        if name == "mlx5_3":
            shutil.rmtree(tree.device(3))
        return first(folder, name)

    monkeypatch.setattr(ports, "_nic", vanishing)
    found = ports.read(tmp_path)
    assert [(nic.name, len(nic.ports)) for nic in found if nic.name != "mlx5_3"] == [
        (f"mlx5_{n}", 1) for n in range(8) if n != 3
    ]
    assert found[3] == ports.NicState(name="mlx5_3", pci="0000:03:00.0")


def test_there_are_never_more_than_can_be_told(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    tree.card(0, ports=20)
    folder = tmp_path / "sys/class/infiniband"
    for n in range(1, 300):
        (folder / f"mlx5_{n}").mkdir()
    found = ports.read(tmp_path)
    assert len(found) == 256
    assert len(found[0].ports) == 16


def test_whole_cards_are_read_with_any_crowd_of_functions(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    tree.card(0)
    for number in range(300):
        tree.scalable(number + 1, of=0)
    tree.rename(0, "rocep0s0")
    read = ports.read(tree.root)
    assert ports.count(tree.root) == 301
    assert (len(read), read[0].name, read[0].function) == (256, "rocep0s0", False)
    assert all(nic.function for nic in read[1:])
    assert {nic.pci for nic in read} == {"0000:00:00.0"}
