"""Whether cards reach GPUs' memory, from the files that NCCL and RCCL ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node.nics import gpudirect
from dradriver.topology.vendors import AMD, ASCEND, NVIDIA, Vendor
from tests.fakes.nic_tree import NicTree

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: gcc 13"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\nGCC version: gcc 13"
AMD_CONFIG = "# x\nCONFIG_DMABUF_MOVE_NOTIFY=y\nCONFIG_PCI_P2PDMA=y"


def word(tree: NicTree, vendor: Vendor) -> str:
    found = gpudirect.answer(tree.root, vendor)
    assert found is not None
    assert bool(found.cure) == (found.word == "no")
    return found.word


@pytest.fixture
def tree(tmp_path: Path) -> NicTree:
    return NicTree(tmp_path)


@pytest.mark.parametrize(
    ("vendor", "file"),
    [
        (NVIDIA, "sys/module/nvidia_peermem/version"),
        (NVIDIA, "sys/kernel/mm/memory_peers/nv_mem/version"),
        (NVIDIA, "sys/kernel/mm/memory_peers/nv_mem_nc/version"),
        (AMD, "sys/kernel/mm/memory_peers/amdkfd/version"),
        (AMD, "sys/kernel/memory_peers/amdkfd/version"),
        (AMD, "sys/memory_peers/amdkfd/version"),
    ],
)
def test_yes_where_the_vendors_peer_memory_is_there(tree: NicTree, vendor: Vendor, file: str) -> None:
    assert word(tree, vendor) == "no"
    tree.file(file, "1.0")
    assert word(tree, vendor) == "yes"
    other = AMD if vendor is NVIDIA else NVIDIA
    assert word(tree, other) == "no"


@pytest.mark.parametrize(
    ("module", "kernel", "cards", "expected"),
    [
        (OPEN, "6.8.0-47-generic", True, "likely"),
        (OPEN, "5.12.0", True, "likely"),
        (OPEN, "5.4.0-1103-azure", True, "no"),
        (OPEN, "5.9.16", True, "no"),
        (CLOSED, "6.8.0-47-generic", True, "no"),
        (OPEN, "6.8.0-47-generic", False, "no"),
        (OPEN, "newest", True, "no"),
    ],
)
def test_likely_by_dma_buf(tree: NicTree, module: str, kernel: str, cards: bool, expected: str) -> None:
    tree.file("proc/driver/nvidia/version", module)
    tree.file("proc/sys/kernel/osrelease", kernel)
    if cards:
        tree.file("sys/module/mlx5_ib/refcnt", "8")
    assert word(tree, NVIDIA) == expected


def test_rccls_own_ways(tree: NicTree) -> None:
    tree.file("proc/sys/kernel/osrelease", "6.8.0-47-generic")
    tree.file("boot/config-6.8.0-47-generic", "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set")
    assert word(tree, AMD) == "no"
    tree.file("boot/config-6.8.0-47-generic", AMD_CONFIG)
    assert word(tree, AMD) == "likely"
    filler = "0000000000000000 t nothing_to_see\n" * 40_000  # more than is read at once
    tree.file("proc/kallsyms", filler)
    assert word(tree, AMD) == "likely"
    tree.file("proc/kallsyms", f"{filler}0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n{filler}")
    assert word(tree, AMD) == "yes"


def test_a_release_is_no_path(tree: NicTree) -> None:
    tree.file("proc/sys/kernel/osrelease", "6.8/../../x")
    tree.file("x", AMD_CONFIG)
    (tree.root / "boot/config-6.8").mkdir(parents=True)
    assert word(tree, AMD) == "no"


def test_folders_where_files_are_meant_answer_nothing(tree: NicTree) -> None:
    for file in ("sys/module/nvidia_peermem/version", "proc/kallsyms", "proc/sys/kernel/osrelease"):
        (tree.root / file).mkdir(parents=True)
    assert word(tree, NVIDIA) == word(tree, AMD) == "no"


def test_of_others_nothing_is_known(tree: NicTree) -> None:
    assert gpudirect.answer(tree.root, ASCEND) is None
