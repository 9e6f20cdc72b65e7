from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.topology import machine_codec, nccl, profiles, topo_m
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.pcie_paths import Place, path_matrix, pcie_path

PROFILE = "name: one\nproduct: {name: NVIDIA X}\ngpus:\n  - {pci: 0000:01:00.0}\n"


def test_a_profiles_name() -> None:
    assert read_machine("dgx1-v100", seed="a") == profiles.load("dgx1-v100", seed="a")


@pytest.mark.parametrize("suffix", ["", ".txt", ".json", ".yaml"])
def test_a_files_content_decides_what_it_is(tmp_path: Path, suffix: str) -> None:
    machine = profiles.load("dgx-h100", seed="a")
    file = tmp_path / f"box{suffix}"
    file.write_text(machine_codec.encode(machine))
    assert read_machine(file) == machine
    file.write_text(topo_m.write(machine))
    assert read_machine(str(file)).links == machine.links
    assert read_machine(file).name == "box"
    file.write_text(PROFILE)
    assert read_machine(file).name == "one"


TOPO_M = "\tGPU{0}\tGPU{1}\tCPU Affinity\nGPU{0}\t X \tNV4\t0-1\nGPU{1}\tNV4\t X \t0-1\n"
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = links\n\nNIC Legend:\n"


@pytest.mark.parametrize("text", [PROFILE, machine_codec.encode(profiles.load("dgx1-v100")), TOPO_M.format(0, 1)])
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "box"
    file.write_text(text)
    plain = read_machine(file)
    file.write_text("\ufeff" + text, "utf-8")
    assert read_machine(file) == plain


def test_a_byte_order_mark_before_an_nccl_file(tmp_path: Path) -> None:
    file = tmp_path / "box"
    machine = profiles.load("dgx-h100")
    file.write_text("\ufeff" + nccl.write(machine), "utf-8")
    assert len(read_machine(file).gpus) == 8


@pytest.mark.parametrize(
    "text",
    [
        TOPO_M.format(1, 3) + LEGEND,
        "\n\n" + TOPO_M.format(1, 3) + LEGEND,
        "$ nvidia-smi topo -m\n" + TOPO_M.format(0, 1).replace("\t", "    "),
        "[root@gpu-7 ~]# nvidia-smi topo -m\n" + TOPO_M.format(0, 1) + LEGEND,
        TOPO_M.format(0, 1).replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("Affinity\n", "Affinity\x1b[0m\n"),
        TOPO_M.format(2, 5).replace("\tGPU2", "GPU2", 1) + LEGEND,
        "host: node-a\n" + TOPO_M.format(0, 1),
        "> a: b\n" + TOPO_M.format(0, 1).replace("GPU0\t X", "> GPU0\t X").replace("GPU1\tNV4", "> GPU1\tNV4"),
        "".join(f"2026-01-01T00:00:00Z [a/b] {line}\n" for line in TOPO_M.format(0, 1).splitlines()),
        "".join(f"| {line}\n" for line in TOPO_M.format(0, 1).splitlines()),
        "{code}\n" + TOPO_M.format(0, 1) + "{code}\n",
        "<pre>\n" + TOPO_M.format(0, 1) + "</pre>\n",
        TOPO_M.format(0, 1).replace("\n", "\r\n"),
    ],
    ids=[
        *("subset", "blank lines", "prompt", "prompt in brackets", "colour", "no tab", "a line before"),
        *("quoted", "kubectl logs", "strokes", "markup", "HTML", "carriage returns"),
    ],
)
def test_a_line_of_gpus_makes_a_topo_m_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "box"
    file.write_text(text)
    assert read_machine(file).links == ((0, 4), (4, 0))


@pytest.mark.parametrize("comment", ["# as GPU0 and GPU1", "  # GPU0 GPU1", "nics: []  # beside GPU0"])
def test_a_profile_may_speak_of_gpus(tmp_path: Path, comment: str) -> None:
    file = tmp_path / "box"
    file.write_text(comment + "\n" + PROFILE)
    assert read_machine(file).name == "one"


def test_another_seed_means_other_uuids_for_every_kind_of_file(tmp_path: Path) -> None:
    machine = profiles.load("dgx1-v100")
    file = tmp_path / "box"
    for text in (machine_codec.encode(machine), topo_m.write(machine), PROFILE):
        file.write_text(text)
        every = [{g.uuid for g in read_machine(file, seed=seed).gpus} for seed in ("a", "b")]
        assert not every[0] & every[1]
        assert read_machine(file, seed="a") == read_machine(file, seed="a")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no header"),
        (b"<system version='1'/>", "box: NCCL XML, line 1, column 1: no GPU"),
        (b'{"version": 3}', "box: machine JSON, version 1: Invalid enum value 3"),
        (b"name: x\n", "box:1: $: Object missing required field `product`"),
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
        (b"x" * (2 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_machine(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "box"
    file.write_bytes(content)
    with pytest.raises(TopologyError) as caught:
        read_machine(file)
    assert says in str(caught.value)
    assert "box" in str(caught.value)


def test_neither_file_nor_profile(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"there is no such file and no such profile\. Profiles: .*dgx1-v100"):
        read_machine("dgx2")
    with pytest.raises(TopologyError, match="cannot be read"):
        read_machine(tmp_path)
    with pytest.raises(TopologyError, match="cannot be read"):
        read_machine("a\0b")


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        (Place(0, "r", ("s",)), Place(0, "r", ("s",)), "PIX"),
        (Place(0, "r", ("s", "t")), Place(0, "r", ("s",)), "PXB"),
        (Place(0, "r", ("s", "t")), Place(0, "r", ("s", "u")), "PXB"),
        (Place(0, "r", ("s",)), Place(0, "r", ("u",)), "PHB"),
        (Place(0, "r"), Place(0, "r"), "PHB"),
        (Place(None, "r"), Place(None, "r"), "PHB"),
        (Place(0, "r"), Place(0, "q"), "NODE"),
        (Place(0, "r"), Place(1, "q"), "SYS"),
        (Place(None, "r"), Place(None, "q"), "SYS"),
        (Place(None), Place(None), "SYS"),
        (Place(0), Place(0), "NODE"),
    ],
)
def test_pcie_paths(a: Place, b: Place, path: str) -> None:
    assert pcie_path(a, b).name == pcie_path(b, a).name == path


def test_two_devices_in_one_place_are_not_the_same_device() -> None:
    place, twin = Place(0, "r", ("s",)), Place(0, "r", ("s",))
    matrix = path_matrix((place, twin), (place, twin))
    assert [[path.name for path in row] for row in matrix] == [["SELF", "PIX"], ["PIX", "SELF"]]
