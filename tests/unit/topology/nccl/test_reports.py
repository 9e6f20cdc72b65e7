"""NCCL's files of machines that people reported, with what is right of each."""

from __future__ import annotations

import pytest

from dradriver.allocator.sets.tables import tables_of
from dradriver.topology import nccl
from dradriver.topology.load import read_machine
from dradriver.topology.machine import PathType
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "reports"
pytestmark = pytest.mark.shared_data


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("15-gb10-dump", "net"),
        ("22-dgx1v-dump-of-four-of-eight", "dropped"),
        ("26-two-sockets-with-one-mask", "affinity-shared"),
        ("37-pcilink-between-switches", "own-note"),
    ],
)
def test_what_nccl_takes_has_warnings_alone(name: str, rule: str) -> None:
    found = nccl.check((FOLDER / f"{name}.xml").read_text())
    assert not [finding for finding in found if finding.error]
    assert rule in {finding.rule for finding in found}


def test_what_is_written_of_a_file_with_other_words_is_taken() -> None:
    text = (FOLDER / "20-h100-link-speed-without-pcie.xml").read_text()
    for speed in ("32.0 GT/s", "Gen5", "Unknown"):
        for vendor in ("GenuineIntel", "AMD"):
            changed = text.replace("32.0 GT/s", speed).replace("GenuineIntel", vendor)
            written = nccl.write(nccl.read(changed))
            assert not [finding for finding in nccl.check(written) if finding.error]
            assert written.count('link_speed="32.0 GT/s PCIe"') == (0 if speed == "Unknown" else 8)


def test_gpus_of_two_linked_switches_are_pxb_and_as_fast_as_below_one() -> None:
    machine = read_machine(FOLDER / "37-pcilink-between-switches.xml")
    assert machine.paths[0][1] is PathType.PXB
    assert tables_of(machine).busbw_gbps(0b11) == 48.0
