"""Commands about the machine that they run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.topology import profiles, topo_m
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.paths import REPO


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dradriver.cli.main import main; main()", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    return Server("dgx1-v100", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_topo_shows_this_machine(installed: bool, dgx1: Server) -> None:
    library = {"LD_LIBRARY_PATH": str(nvml.compiled() / "usr/lib64")} if installed else {}
    words = [] if installed else ["--driver-root", str(nvml.compiled())]
    done = run("topo", *words, **dgx1.environment(), **library)
    assert topo_m.read(done.stdout).links == dgx1.machine.links


@pytest.mark.slow
def test_what_cannot_be_read_is_a_warning(dgx1: Server) -> None:
    dgx1.table["lost 3"] = "0"
    done = run("topo", "--driver-root", str(nvml.compiled()), **dgx1.environment())
    assert "warning: GPU 3: nvmlDeviceGetHandleByIndex: GPU is lost (15)\n" in done.stderr
    assert [gpu.index for gpu in topo_m.read(done.stdout).gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_nccl_explains_this_machine(dgx1: Server) -> None:
    done = run("nccl", "explain", "--driver-root", str(nvml.compiled()), **dgx1.environment())
    assert (done.returncode, "NCCL" in done.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["topo"], ["nccl", "explain"], ["nccl", "write"]])
def test_without_a_driver_it_says_what_to_give(words: list[str], tmp_path: Path) -> None:
    done = run(*words, "--driver-root", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "Error: The GPUs of this machine cannot be read: dlopen: there is no libnvidia-ml.so.1 below "
    )
    assert done.stderr.endswith("add --machine FILE|PROFILE (gputopo topo --list prints the profiles).\n")
    assert len(done.stderr.splitlines()) == 1


TEXTS = (
    "nvidia-smi topo -m", "amd-smi topology", "rocm-smi --showtopo", "npu-smi info -t topo", "npu-smi info", "RCCL",
)  # fmt: skip


@pytest.mark.parametrize("command", [("topo",), ("plan",), ("slices",), ("nccl", "explain"), ("nccl", "write")])
def test_help_and_page_name_every_text_that_is_taken(command: tuple[str, ...]) -> None:
    helped = " ".join(
        CliRunner().invoke(main, [*command, "--help"], terminal_width=1000, max_content_width=1000).output.split()
    )
    page = (REPO / "docs" / "tasks" / "profiles.md").read_text()
    for text in TEXTS:
        assert text in helped
        assert text in page


@pytest.mark.parametrize("words", [["topo"], ["plan", "--gpus", "4"]])
def test_what_is_assumed_of_gpus_that_a_text_does_not_name_is_a_warning(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "h100.txt"
    mesh = topo_m.write(profiles.load("a100-x4-mesh"))
    file.write_text(mesh.replace("NV4", "NV6"))
    found = CliRunner().invoke(main, [*words, "-m", str(file)])
    assert found.exit_code == 0
    assert "do not name" not in found.stdout
    assert found.stderr.startswith(
        "warning: the text does not name the GPUs, which have up to 18 links: they are taken for"
    )
    assert "Hopper (compute capability 9.0, 20.6 GB/s a link, PCIe 5), but may be newer: name them with" in found.stderr
    file.write_text(mesh)
    assert CliRunner().invoke(main, [*words, "-m", str(file)]).stderr == ""
    assert CliRunner().invoke(main, [*words, "-m", "hgx-h100"]).stderr == ""


def test_nothing_is_assumed_of_gpus_that_the_user_names(tmp_path: Path) -> None:
    file = tmp_path / "h100.txt"
    file.write_text(topo_m.write(profiles.load("hgx-h100")))
    for words in (["topo"], ["plan", "--gpus", "4"]):
        assert CliRunner().invoke(main, [*words, "-m", str(file), "--product", "NVIDIA B200"]).stderr == ""
