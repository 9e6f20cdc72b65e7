"""Damage of one card's files leaves what is read and said of all others as it was."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.node.nics import ports, troubles
from tests.effort import examples
from tests.fakes.nic_tree import DOWN, NicTree

HURT = 3
FILES = (
    "hca_type", "board_id", "fw_ver", "ports/1/state", "ports/1/phys_state", "ports/1/rate", "ports/1/link_layer",
    "ports/1/counters/symbol_error", "ports/1/gids/0", "ports/1/gids/3", "ports/1/gid_attrs/types/3",
    "ports/1/gid_attrs/ndevs/0", "../../net/eth3/flags", "../../class", "../../vendor",
)  # fmt: skip
DAMAGE = st.one_of(
    st.binary(max_size=64),
    st.just(b"1" * 200_000),
    st.just(b""),
    st.sampled_from([b"4: ACTIVE\n", b"1: DOWN\n", b"Ethernet\n", b"-1\n", b"\xff\xfe", b"10 Gb/sec (4X SDR)\n"]),
    st.sampled_from(["gone", "folder", "circle"]),
)


@pytest.fixture(scope="module", params=["InfiniBand", "Ethernet"])
def tree(request: pytest.FixtureRequest) -> Iterator[NicTree]:
    folder = Path(tempfile.mkdtemp())
    written = NicTree(folder)
    for number in range(6):
        written.card(number, layer=request.param, port=DOWN if number == 5 else {**PORT})
    yield written
    shutil.rmtree(folder)


PORT = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}


def said(tree: NicTree) -> tuple[list[ports.NicState], list[troubles.Trouble]]:
    found = ports.read(tree.root)
    others = [nic for nic in found if nic.name != f"mlx5_{HURT}"]
    return others, [one for one in troubles.troubles(found) if one.at.nic != f"mlx5_{HURT}"]


def hurt(file: Path, damage: bytes | str) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage == "folder":
        file.mkdir()
    elif damage == "circle":
        file.symlink_to(file.name)


@settings(max_examples=examples(60), deadline=None)
@given(damages=st.dictionaries(st.sampled_from(FILES), DAMAGE, min_size=1, max_size=6))
def test_damage_of_one_card_changes_nothing_of_others(tree: NicTree, damages: dict[str, bytes | str]) -> None:
    layer = "Ethernet" if (tree.port(0) / "gids").exists() else "InfiniBand"
    tree.card(HURT, layer=layer, port=PORT)
    nics, found = said(tree)
    assert [one.kind for one in found] == ["down"]
    for name, damage in damages.items():
        file = tree.device(HURT) / f"infiniband/mlx5_{HURT}" / name
        if file.parent.exists():
            hurt(file, damage)
    assert said(tree) == (nics, found)
