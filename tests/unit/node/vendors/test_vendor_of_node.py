"""Whose GPUs a node publishes, by its PCI devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node import agent_options
from dradriver.node.hardware import backend
from dradriver.node.vendors.vendor_of_node import look
from dradriver.topology.vendors import AMD, NVIDIA, Vendor

NVIDIA_H100 = ("0x10de", "0x2330", "0x030200")
RTX_4090 = ("0x10de", "0x2684", "0x030000")
MI300X = ("0x1002", "0x74a1", "0x120000")
MI210 = ("0x1002", "0x740f", "0x038000")
RAPHAEL = ("0x1002", "0x164e", "0x030000")  # of a CPU
RADEON = ("0x1002", "0x744c", "0x030000")
ASPEED = ("0x1a03", "0x2000", "0x030000")  # of a management controller
AUDIO = ("0x1002", "0xab30", "0x040300")
HYGON_DCU = ("0x1d94", "0x6210", "0x038000")
HYGON_CRYPTO = ("0x1d94", "0x1456", "0x108000")
EPYC_CRYPTO = ("0x1022", "0x1456", "0x108000")


@pytest.mark.parametrize(
    ("devices", "vendor"),
    [
        ((), NVIDIA),
        ((ASPEED,), NVIDIA),
        ((NVIDIA_H100, ASPEED), NVIDIA),
        ((MI300X, ASPEED, EPYC_CRYPTO), AMD),
        ((MI210,), AMD),
        ((RADEON,), AMD),
        ((NVIDIA_H100, RAPHAEL), NVIDIA),
        ((RTX_4090, RAPHAEL), NVIDIA),
        ((RTX_4090, RADEON), NVIDIA),
        ((MI210, RTX_4090), AMD),
        ((NVIDIA_H100, AUDIO), NVIDIA),
        ((HYGON_DCU, HYGON_DCU), NVIDIA),  # as a node without GPUs
        ((HYGON_DCU, MI210), AMD),
        ((HYGON_DCU, RTX_4090), NVIDIA),
    ],
)
def test_the_vendor_with_gpus_for_data_centres_is_published(
    devices: tuple[tuple[str, str, str], ...], vendor: Vendor, tmp_path: Path
) -> None:
    found = look(host(tmp_path, *devices))
    assert (found.vendor, found.refused) == (vendor, None)


def test_where_two_vendors_have_some_nothing_is_and_the_words_say_what_to_do(tmp_path: Path) -> None:
    refused = look(host(tmp_path, NVIDIA_H100, MI300X)).refused
    assert refused is not None
    assert "discovery: nvml or amd" in refused


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((), None),
        ((NVIDIA_H100, ASPEED), None),
        ((MI210, MI300X), None),
        (
            (NVIDIA_H100, NVIDIA_H100, RAPHAEL),
            "1 device of amd left out next to 2 of nvidia, which are for data centres",
        ),
        ((MI300X, RTX_4090, RTX_4090), "2 devices of nvidia left out next to 1 of amd, which are for data centres"),
        ((HYGON_DCU, HYGON_DCU, HYGON_CRYPTO), "2 devices of Hygon (1d94) left out: they are not AMD's"),
        ((HYGON_DCU, MI210), "1 device of Hygon (1d94) left out: they are not AMD's"),
        ((HYGON_CRYPTO, NVIDIA_H100), None),
        ((RTX_4090, RADEON), "1 device of amd left out next to 1 of nvidia, for a node publishes one vendor's only"),
    ],
)
def test_gpus_of_the_other_vendor_are_left_out_with_words(
    devices: tuple[tuple[str, str, str], ...], words: str | None, tmp_path: Path
) -> None:
    told = look(host(tmp_path, *devices)).left_out
    assert told is None if words is None else str(told).startswith(words)


@pytest.mark.parametrize(("discovery", "lines"), [("auto", 1), ("amd", 0)])
def test_an_agent_says_once_what_it_leaves_out(
    discovery: str, lines: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = host(tmp_path / "host", MI300X, RTX_4090)
    arguments = f"--node-name n --discovery {discovery} --host-root {root} --state-dir {tmp_path / 'state'}"
    found = backend(agent_options.parse(arguments.split()), lambda: None, prepares=False)
    for _ in range(2):
        assert not found.discovery.read().gpus
    told = [record.getMessage() for record in caplog.records if "left out next to" in record.getMessage()]
    assert len(told) == lines
    assert found.vendor is AMD


def host(root: Path, *devices: tuple[str, str, str]) -> Path:
    for n, (vendor, device, kind) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:{n:02x}:00.0"
        folder.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            (folder / name).write_text(text + "\n")
    return root
