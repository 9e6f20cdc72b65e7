"""Of machines of AMD and Ascend nothing is said in NVIDIA's words, but for the words of pods."""

from __future__ import annotations

import re

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.cli.explainer.subject import wish
from dradriver.cli.main import main
from dradriver.cli.verifier import machine_checks as verified
from dradriver.topology import profiles
from dradriver.topology.topo_m import topo_m_writer
from dradriver.topology.vendors import VENDORS
from tests.effort import sampled

OTHERS = [name for word in VENDORS if word != "nvidia" for name in profiles.names(word)]
NVIDIAS = re.compile(r"NVLINK|NVLink|NVSwitch|\bNCCL|NVIDIA|nvidia-smi|CUDA|\bNV[0-9#]")


def run(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("output", ["table", "html", "svg"])
@pytest.mark.parametrize("name", sampled(OTHERS, fast=3))
def test_a_machine_is_shown_in_its_vendors_words(name: str, output: str) -> None:
    assert not NVIDIAS.findall(run("topo", "-m", name, "--nccl-version", "2.20", "-o", output))


@pytest.mark.parametrize("gpus", ["1", "2", "8"])
@pytest.mark.parametrize("name", sampled(OTHERS, fast=3))
def test_a_plan_is_told_in_its_vendors_words(name: str, gpus: str) -> None:
    assert not NVIDIAS.findall(run("plan", "-m", name, "--gpus", gpus))


def test_what_a_library_counts_is_the_vendors() -> None:
    assert "24 GB/s, weakest step of the ring, as RCCL counts it in one direction" in run(
        "plan", "-m", "mi250-x4", "--gpus", "3"
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("dgx1-v100", ["  NV#  = Connection traversing a bonded set of # NVLinks"]),
        ("mi250-x4", ["  XGMI#  = Connection traversing a bonded set of # xGMIs"]),
        (
            "ascend-a3-x16",
            [
                "  HCCS = Connection traversing HCCS",
                "  SIO  = Connection traversing SIO, between the two dies of a module",
            ],
        ),
    ],
)
def test_the_legend_explains_the_links(name: str, lines: list[str]) -> None:
    shown = run("topo", "-m", name).splitlines()
    start = shown.index("  PIX  = Connection traversing at most a single PCIe bridge") + 1
    assert shown[start : start + len(lines) + 1] == [*lines, ""]


@pytest.mark.parametrize("name", profiles.names())
def test_every_cell_is_in_the_legend(name: str) -> None:
    machine = profiles.load(name)
    explained = {line.partition("=")[0].strip() for line in topo_m_writer.legend(machine).splitlines() if " = " in line}
    head, *rows = topo_m_writer.cells(machine)
    devices = len(rows)
    cells = {cell.strip() for row in rows for cell in row[1 : 1 + devices]}
    numbered = {re.sub(r"[0-9]+$", "#", cell) for cell in cells}
    assert numbered <= explained, head


def test_as_many_links_as_no_kind_has_are_a_number() -> None:
    machine = profiles.load("ascend-300i-duo-x8")
    links = tuple(tuple(3 * count for count in row) for row in machine.links)
    odd = msgspec.structs.replace(machine, links=links)
    assert topo_m_writer.cells(odd)[1][2] == "HCCS3"
    assert "  HCCS#  = Connection traversing a bonded set of # HCCSs" in topo_m_writer.cell_legend(odd).splitlines()


def test_links_that_differ_from_what_is_published_are_the_vendors() -> None:
    own = profiles.load("mi250-x4", seed="x")
    links = [list(row) for row in own.links]
    links[0][1] = links[1][0] = 1
    found = verified.against_slices(own, msgspec.structs.replace(own, links=tuple(map(tuple, links))), "n", "ours")
    assert "have 4 xGMIs, published are 1" in found.said


@pytest.mark.parametrize(("vendor", "library"), [("nvidia", "NCCL"), ("amd", "RCCL")])
def test_what_a_pod_has_its_library_told_is_explained_by_its_name(vendor: str, library: str) -> None:
    noted = resolved.resolve(Annotations({names.VENDOR: vendor, names.NCCL: "near-nics"}), {"main": 2})
    assert f"{library}: near-nics" in wish(noted).split("; ")
