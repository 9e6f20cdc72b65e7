from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from dradriver.topology import nccl, profiles, topo_m


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["nccl", *arguments])


def test_what_is_written_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    assert run("write", "-m", "hgx-h100", "-o", str(file)).output == ""
    assert file.read_text() == run("write", "-m", "hgx-h100").output == nccl.write(profiles.load("hgx-h100"))
    result = run("check", str(file), "-m", "hgx-h100")
    assert (result.exit_code, result.output) == (0, f"{file}: NCCL takes it\n")
    result = run("check", str(file), "-m", "dgx1-v100")
    assert result.exit_code == 0
    assert "GPU0 (0000:06:00.0) is not in the file" in result.output
    assert result.output.endswith(", with 8 warnings\n")
    file.write_text(file.read_text() + '<system version="1"/>')
    assert run("check", str(file)).output.endswith(", with 1 warning\n")


def test_a_rate_that_the_source_does_not_say_is_warned_of(tmp_path: Path) -> None:
    source, file = tmp_path / "source.xml", tmp_path / "topo.xml"
    source.write_text(nccl.write(profiles.load("hgx-h100")).replace("32.0 GT/s PCIe", "Unknown"))
    result = run("write", "-m", str(source), "-o", str(file))
    assert result.exit_code == 0
    assert " more: the source does not say the PCIe rate, so NCCL takes it for Gen 3" in result.stderr
    assert run("check", str(file)).exit_code == 0


def test_a_text_is_written_with_what_it_does_not_say(tmp_path: Path) -> None:
    text, file = tmp_path / "a40.txt", tmp_path / "topo.xml"
    text.write_text(topo_m.write(profiles.load("a40-x8-bridge-pairs")))
    result = run("write", "-m", str(text), "-o", str(file))
    assert result.exit_code == 1
    assert "Name it (--cpu)" in result.stderr
    given = ["write", "-m", str(text), "--product", "a40", "--cpu", "milan", "-o", str(file)]
    assert "made up: give the GPUs' own with --bus-ids" in run(*given).stderr
    ids = [gpu.pci for gpu in profiles.load("a40-x8-bridge-pairs").gpus]
    assert run(*given, "--bus-ids", ",".join(f"0000{busid}" for busid in ids)).stderr == ""
    assert run("check", str(file)).output == f"{file}: NCCL takes it\n"
    machine = nccl.read(file.read_text())
    assert [gpu.pci for gpu in machine.gpus] == ids
    assert (machine.socket_gbps, machine.gpus[0].pcie_gbps) == (16, 24)


def test_what_a_text_does_not_say_of_pcie_and_nics_is_asked_for(tmp_path: Path) -> None:
    server = profiles.load("dgx-a100")
    text, file = tmp_path / "dgx.txt", tmp_path / "topo.xml"
    text.write_text(topo_m.write(server))
    gpus, nics = ([device.pci for device in devices] for devices in (server.gpus, server.nics))
    given = ["write", "-m", str(text), "--cpu", "rome", "-o", str(file)]
    errors = run(*given, "--bus-ids", ",".join(gpus)).stderr
    assert "the source does not say the GPUs' PCIe rate, the file has 24 GB/s: give theirs with --product" in errors
    assert f"{server.nics[0].name}, {server.nics[1].name}" in errors
    assert "give them with --bus-ids behind the GPUs'" in errors
    assert "for each of 8 GPUs, by index, and then for each of" in run(*given, "--bus-ids", gpus[0]).stderr
    assert run(*given, "--product", "A100-SXM4-80GB", "--bus-ids", ",".join([*gpus, *nics])).stderr == ""
    assert run("check", str(file)).output == f"{file}: NCCL takes it\n"
    again, true = nccl.read(file.read_text()), nccl.read(nccl.write(server))
    assert {nic.pci: row for nic, row in zip(again.nics, again.nic_paths, strict=True)} == {
        nic.pci: row for nic, row in zip(true.nics, true.nic_paths, strict=True)
    }


def test_a_virtual_machine_is_written_like_its_server() -> None:
    result = run("write", "-m", "h100-x8-flat-vm", "--like", "hgx-h100")
    text = result.stdout
    assert result.stderr.startswith("warning: hgx-h100 has GPUs on NUMA nodes 0, 1, this machine has 0: ")
    assert text == nccl.write(profiles.load("h100-x8-flat-vm"), like=profiles.load("hgx-h100"))
    assert "ffff:ff:00.0" in text


def test_errors_are_said_by_place_reason_and_cure_with_status_1(tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    file.write_bytes(
        b'<?xml version="1.0"?>\n<system version="1">\n\t<cpu numaid="0" affinity="0-15"/>\n</system>\n\xff'
    )
    result = run("check", str(file))
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == (
        f"{file}:1:1: error: an XML declaration: every NCCL refuses the file; start the file with "
        '<system version="1">  [declaration]'
    )
    assert [[*line.split(": ")[0].rsplit(":", 2)[1:], line.split("[")[-1]] for line in lines[1:]] == [
        ["2", "1", "no-gpu]"], ["3", "1", "tab]"], ["3", "18", "affinity-unused]"], ["5", "1", "text]"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dgx-h100", "No file is needed"),
        ("h100-x8-flat-vm", "A file is worth it"),
        ("mi300x-x8", "No file is needed: these GPUs' jobs bring RCCL"),
    ],
)
def test_explain(name: str, says: str) -> None:
    result = run("explain", "-m", name)
    assert result.exit_code == 0
    assert result.output.startswith(says)


def test_problems_are_one_line_on_stderr(tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text("\tGPU0\nGPU0\t X \n")
    for arguments, says in (
        (["write", "-m", str(text)], "cpu: the CPUs' model is not known"),
        (["check", str(tmp_path / "none.xml")], "cannot be read"),
        (["check", str(tmp_path)], "cannot be read"),
        (["explain", "-m", "dgx9"], "no such profile"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert says in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_file_too_large_for_any_machine_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.xml"
    file.write_bytes(b"<" * ((1 << 20) + 1))
    assert "larger than 1048576 bytes" in run("check", str(file)).stderr
    assert "larger than 1048576 bytes" in run("check", "/dev/zero").stderr
    assert "more than 1048576 bytes" in run("explain", "-m", "/dev/zero").stderr


@pytest.mark.parametrize("arguments", [["check"], ["dump"], ["explain", "extra"]])
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
