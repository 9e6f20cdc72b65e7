"""What is wrong with a port, by what its siblings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dradriver.node.nics import ports, troubles
from dradriver.node.nics.troubles import At
from tests.fakes.nic_tree import DOWN, INIT, LINK_LOCAL, UP, NicTree, eight

HDR = UP | {"rate": "200 Gb/sec (4X HDR)"}
NARROW = UP | {"rate": "100 Gb/sec (1X NDR)"}


def found(tree: NicTree, **more: Any) -> list[tuple[str, int, str]]:
    return [(one.at.nic, one.at.port, one.kind) for one in troubles.troubles(ports.read(tree.root), **more)]


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_nothing_is_wrong_with_cards_that_are_alike(tmp_path: Path, layer: str) -> None:
    assert found(eight(tmp_path, layer=layer)) == []


def test_one_that_is_down_where_its_siblings_are_active(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    tree.card(3, port=DOWN)
    assert found(tree) == [("mlx5_3", 1, "down")], "and not slow: it says 10 Gb/s"
    (one,) = troubles.troubles(ports.read(tmp_path))
    assert one.said == "port 1 of mlx5_3 is DOWN (Polling)"
    assert "cable" in one.cure


def test_all_that_are_down_have_no_other_to_compare_with_unless_they_were_seen_active(tmp_path: Path) -> None:
    tree = eight(tmp_path, port=DOWN)
    assert found(tree) == []
    assert found(tree, known_up={At("mlx5_2", 1)}) == [("mlx5_2", 1, "down")]


def test_a_link_that_is_up_and_waits_for_a_subnet_manager(tmp_path: Path) -> None:
    tree = eight(tmp_path, port=INIT)
    assert found(tree) == [(f"mlx5_{n}", 1, "down") for n in range(8)]
    assert "subnet manager" in troubles.troubles(ports.read(tmp_path))[0].cure


@pytest.mark.parametrize("slower", [HDR, NARROW])
def test_one_that_is_slower_than_its_siblings(tmp_path: Path, slower: dict[str, str]) -> None:
    tree = eight(tmp_path)
    tree.card(5, port=slower)
    assert found(tree) == [("mlx5_5", 1, "slow")]
    (one,) = troubles.troubles(ports.read(tmp_path))
    assert "its siblings at 400 Gb/s (4X NDR)" in one.said


def test_other_products_boards_and_link_layers_are_no_siblings(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    tree.card(8, port=HDR, hca_type="MT4125")
    tree.card(9, port=HDR, board_id="MT_0000000001")
    tree.card(10, port=HDR, layer="Ethernet")
    tree.card(11, port=DOWN, hca_type="MT4119")
    assert found(tree) == []


def test_cards_whose_product_cannot_be_read_have_no_siblings(tmp_path: Path) -> None:
    tree = eight(tmp_path, hca_type="")
    for number in range(8):
        (tree.device(number) / "vendor").unlink()
    tree.file("sys/devices/pci0000:01/0000:01:00.0/infiniband/mlx5_1/ports/1/rate", HDR["rate"])
    tree.file("sys/devices/pci0000:02/0000:02:00.0/infiniband/mlx5_2/ports/1/state", DOWN["state"])
    assert found(tree) == []


def test_one_that_was_switched_off_or_is_in_a_pod_is_not_broken(tmp_path: Path) -> None:
    tree = eight(tmp_path, layer="Ethernet")
    down = DOWN | {"phys_state": "3: Disabled"}
    tree.card(0, layer="Ethernet", port=down, flags="0x1002")
    tree.card(1, layer="Ethernet", port=down, interface=None)
    tree.card(2, layer="Ethernet", port=down)
    assert found(tree) == [("mlx5_2", 1, "down")]
    states = [troubles.state_of(nic.ports[0]) for nic in ports.read(tmp_path)[:4]]
    assert states == ["off", "away", "down", "active"]
    infiniband = eight(tmp_path / "ib")
    infiniband.card(0, port=down)
    assert found(infiniband) == []


@pytest.mark.parametrize("interfaces", [False, True])
def test_ports_of_functions_in_switchdev_mode_are_not_broken(tmp_path: Path, interfaces: bool) -> None:
    tree = eight(tmp_path, layer="Ethernet")
    tree.vports(0, 5, up="3", interfaces=interfaces)
    assert found(tree) == []
    states = [troubles.state_of(port) for port in ports.read(tmp_path)[0].ports]
    assert states == ["active", "away", "active", "away", "away"]
    tree.card(0, layer="Ethernet", port=DOWN)
    tree.vports(0, 5, interfaces=interfaces)
    assert found(tree) == [("mlx5_0", 1, "down")], "the card's own is judged"


def test_a_card_in_a_pod_of_which_representors_stay_is_not_broken(tmp_path: Path) -> None:
    tree = eight(tmp_path, layer="Ethernet")
    tree.card(3, layer="Ethernet", port=DOWN, interface=None)
    tree.representor(3, "eth3_0", "pf0vf0")
    tree.representor(3, "eth3_1", "c1pf0sf88")
    assert found(tree) == []
    tree.card(4, layer="Ethernet", port=DOWN)
    tree.representor(4, "eth4_0", "pf0vf0")
    assert found(tree) == [("mlx5_4", 1, "down")], "its own interface is there"


@pytest.mark.parametrize("flags", ["0x1003", "0x1002"])
def test_one_port_of_two_that_is_down_is_judged_by_its_own_interface(tmp_path: Path, flags: str) -> None:
    tree = NicTree(tmp_path)
    for number in range(4):
        tree.card(number, layer="Ethernet", ports=2)
    for file, text in DOWN.items():
        (tree.port(2, 2) / file).write_text(text)
    (tree.port(2, 2) / "gid_attrs/ndevs/0").write_text("eth2p2")
    tree.file(f"{tree.device(2).relative_to(tmp_path)}/net/eth2p2/flags", flags)
    assert found(tree) == ([("mlx5_2", 2, "down")] if flags == "0x1003" else [])


def test_a_port_of_several_on_infiniband_is_judged(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for number in range(4):
        tree.card(number, ports=2)
    for file, text in DOWN.items():
        (tree.port(2, 2) / file).write_text(text)
    assert found(tree) == [("mlx5_2", 2, "down")]


def test_a_card_with_a_port_on_each_link_layer_has_one_on_ethernet(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for number in range(4):
        tree.card(number, layer="Ethernet", ports=2, gids=())
        (tree.port(number, 1) / "link_layer").write_text("InfiniBand")
    for file, text in DOWN.items():
        (tree.port(2, 2) / file).write_text(text)
    assert ("mlx5_2", 2, "down") in found(tree)


def test_functions_are_neither_judged_nor_compared_with(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    tree.card(8, port=DOWN, parent=0)
    tree.card(9, port=UP | {"rate": "800 Gb/sec (8X NDR)"}, parent=0)
    tree.card(10, fw_ver="1.0.0", parent=0)
    tree.scalable(11, of=0, port=DOWN)
    tree.scalable(12, of=0, port=UP | {"rate": "800 Gb/sec (8X NDR)"})
    assert found(tree) == []


def test_an_ethernet_port_without_an_ipv4_gid_and_other_firmware_are_said(tmp_path: Path) -> None:
    tree = eight(tmp_path, layer="Ethernet")
    tree.card(1, layer="Ethernet", gids=(LINK_LOCAL, LINK_LOCAL))
    tree.card(2, layer="Ethernet", fw_ver="28.37.1014")
    tree.card(6, layer="Ethernet", board_id="MT_0000000001", fw_ver="28.37.1014")
    assert found(tree) == [("mlx5_1", 1, "gid"), ("mlx5_2", 1, "firmware")]


def test_what_cannot_be_read_is_no_fault(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    for file in ("state", "rate", "link_layer"):
        (tree.port(4) / file).unlink()
    (tree.port(5) / "rate").write_text("full speed")
    (tree.port(6) / "state").write_text("Maybe")
    assert found(tree) == []
