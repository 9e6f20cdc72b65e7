from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from dradriver.topology import machine_codec, profiles, read_machine, topo_m
from dradriver.topology.machine import MigDevice
from tests.fakes.commands import Terminal
from tests.paths import REPO


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["topo", *arguments], env=env)


@pytest.mark.slow
@pytest.mark.parametrize("name", profiles.names("nvidia"))
def test_the_table_reads_as_nvidia_smi_does_and_is_read_back(name: str) -> None:
    result = run("--machine", name)
    assert result.exit_code == 0
    machine = profiles.load(name)
    again = topo_m.read(result.output, name=name)
    assert again.links == machine.links
    assert again.nic_paths == machine.nic_paths
    assert [gpu.numa for gpu in again.gpus] == [gpu.numa for gpu in machine.gpus]
    assert [nic.name for nic in again.nics] == [nic.name for nic in machine.nics]


def test_the_table_tells_groups_order_and_numa_nodes() -> None:
    output = run("-m", "dgx1-v100").output
    assert "Machine: dgx1-v100, 8 x Tesla V100-SXM2-32GB" in output
    assert "  SIZE  GROUP  MEMBERS                                  LINE RATE  NCCL COUNTS\n" in output
    assert "  2     1      GPU1 GPU2                                50 GB/s    40 GB/s\n" in output
    assert "  4     1      GPU4 GPU5 GPU6 GPU7                      25 GB/s    20 GB/s\n" in output
    assert "order: GPU0 GPU3 GPU1 GPU2 GPU4 GPU7 GPU5 GPU6\n" in output
    assert "  1     GPU4 GPU5 GPU6 GPU7 mlx5_2 mlx5_3  20-39,60-79" in output
    assert "  8            none\n" in run("-m", "rtx4090-x8").output
    assert "  L0 NVLINK     16  25 to 50 GB/s  20 to 40 GB/s\n  L3 SYS        12                 6 GB/s\n" in output
    assert "  not known  mlx5_8 mlx5_9\n" in run("-m", "dgx-a100").output


def test_json_and_yaml_hold_machine_and_groups(tmp_path: Path) -> None:
    output = run("-m", "dgx1-v100", "-o", "json").output
    document = json.loads(output)
    assert document["domains"] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert {"size": 4, "gpus": [4, 5, 6, 7], "bandwidth_gbps": 25, "gbps": 20.0} in document["groups"]
    assert document["order"] == [0, 3, 1, 2, 4, 7, 5, 6]
    assert machine_codec.decode(output) == profiles.load("dgx1-v100")
    assert yaml.safe_load(run("-m", "dgx1-v100", "-o", "yaml").output) == document
    file = tmp_path / "saved.json"
    file.write_text(output)
    assert run("-m", str(file), "-o", "json").output == output


def test_list_names_every_profile() -> None:
    result = run("--list")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == list(profiles.names())
    assert any(line.endswith("8 x NVIDIA H100 80GB HBM3") for line in lines)


def test_a_problem_is_one_line_on_stderr_and_status_1(tmp_path: Path) -> None:
    file = tmp_path / "glued.txt"
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tSYSSYS\n")
    for source, says in ((str(file), "line 2, column 10: 'SYSSYS' is SYS and SYS"), ("dgx9", "no such profile")):
        result = run("-m", source)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert says in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--machine"], ["-m", "dgx1-v100", "-o", "xml"], ["extra"]])
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["tpo"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "env", "coloured"),
    [
        ([], {"NO_COLOR": ""}, True),
        (["--no-color"], {"NO_COLOR": ""}, False),
        ([], {"NO_COLOR": "1"}, False),
    ],
)
def test_colours_on_a_terminal_only_where_they_are_wanted(
    arguments: list[str], env: dict[str, str], coloured: bool
) -> None:
    line = ["topo", "-m", "dgx1-v100", *arguments]
    output = Terminal().invoke(main, line, env=env).output
    assert ("\x1b[" in output) is coloured
    assert "\x1b[" not in CliRunner().invoke(main, line, env=env).output, "it is no terminal"
    assert topo_m.read(output).links == profiles.load("dgx1-v100").links


@pytest.mark.slow
def test_nothing_is_imported_that_is_not_needed(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(machine_codec.encode(profiles.load("dgx1-v100")))
    script = (
        "import sys; from dradriver.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'numpy', 'kubernetes', 'aiohttp', 'grpc', 'rich'} & set(sys.modules)\n"
        "if sys.argv[-1].endswith('.json'): heavy |= {'yaml', 'dradriver.topology.nccl'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert sys.argv[1] == 'topo' or 'dradriver.cli.topo' not in sys.modules\n"
    )
    for arguments in (["--help"], ["topo", "-m", "dgx-h100"], ["topo", "-m", str(saved)]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=REPO, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "topo" in done.stdout or "GPU0" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("output", ["table", "json", "yaml", "svg", "html"])
@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", "a\x9b31mb", "a\u202eb", "a\x85\u2028b"])
def test_text_of_a_file_cannot_steer_a_terminal(name: str, output: str, tmp_path: Path) -> None:
    machine = profiles.load("dgx1-v100")
    gpus = tuple(msgspec.structs.replace(gpu, product=name) for gpu in machine.gpus)
    nics = (msgspec.structs.replace(machine.nics[0], name=name), *machine.nics[1:])
    file = tmp_path / "evil.json"
    file.write_text(machine_codec.encode(msgspec.structs.replace(machine, name=name, gpus=gpus, nics=nics)))
    result = run("-m", str(file), "-o", output)
    assert result.exit_code == 0
    assert {c for c in result.output if not c.isprintable()} == {"\n"}
    if output in ("json", "yaml"):
        assert yaml.safe_load(result.output)["name"] == name


@pytest.mark.parametrize("arguments", [["topo", "-m"], ["nccl", "check"], ["plan", "--gpus", "1", "-m"]])
def test_text_of_an_error_cannot_steer_a_terminal(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "topo\x1b[2J.xml"
    file.write_text('<system version="1"><cpu numaid="0" affinity="\x9b31m"><x\u202ey/></cpu></system>')
    result = CliRunner().invoke(main, [*arguments, str(file)])
    assert result.exit_code == 1
    assert {c for c in result.output if not c.isprintable()} == {"\n"}
    assert "topo\ufffd[2J.xml" in result.output


def test_gpus_in_mig_mode_are_told_of(tmp_path: Path) -> None:
    machine = profiles.load("hgx-h100")
    sliced = MigDevice(0, "MIG-00000000-aaaa-5555-8888-000000000002", 1, 0, "3g.40gb", 40192)
    migs: dict[int, tuple[MigDevice, ...]] = {2: (sliced,), 5: ()}
    gpus = tuple(msgspec.structs.replace(gpu, mig=migs.get(gpu.index)) for gpu in machine.gpus)
    file = tmp_path / "sliced.json"
    file.write_text(machine_codec.encode(msgspec.structs.replace(machine, gpus=gpus)))
    lines = run("-m", str(file)).output.splitlines()
    assert [line for line in lines if "MIG" in line] == [
        "  GPU2 is in MIG mode:  3g.40gb",
        "  GPU5 is in MIG mode:  empty",
    ]


def test_an_older_nccl_stays_with_a_machine_that_is_saved(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["topo", "-m", "l40s-x8", "--nccl-version", "2.23", "-o", "json"])
    saved = tmp_path / "saved.json"
    saved.write_text(shown.output)
    assert read_machine(saved).nccl_version == "2.23"
    refused = CliRunner().invoke(main, ["topo", "-m", "l40s-x8", "--nccl-version", "2.3.4"])
    assert refused.stderr == (
        "Error: nccl-version: '2.3.4' is not allowed. Write 2.19 or a later version, for example 2.23 or 2.23.4.\n"
    )
    assert CliRunner().invoke(main, ["topo", "--cluster", "--nccl-version", "2.23"]).exit_code == 2
