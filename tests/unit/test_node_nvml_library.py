"""The driver library: found, too old, missing, opened anew for every reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dradriver.topology import codec
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.paths import REPO


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    return Server("dgx1-v100", tmp_path)


READ = """
import sys
from pathlib import Path
from dradriver.node.discovery import hardware
from dradriver.topology import codec
root = Path(sys.argv[1]) if sys.argv[1] else None
reading = hardware.read(driver_root=root, host_root=Path(sys.argv[2]))
print(codec.encode(reading.machine))
print([str(problem) for problem in reading.problems])
"""


def in_another_process(server: Server, *, driver_root: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", READ, driver_root, str(server.sys.root)]
    environment = {**os.environ, "PYTHONPATH": str(REPO), **server.environment(), **variables}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_linker_finds_the_library_where_it_is_installed(dgx1: Server) -> None:
    done = in_another_process(dgx1, LD_LIBRARY_PATH=str(nvml.compiled() / "usr/lib64"))
    assert codec.decode(done.stdout.splitlines()[0]) == dgx1.machine


@pytest.mark.parametrize("name", ["dgx1-v100", "hgx-h100"])
def test_a_driver_that_lacks_newer_functions_says_links_and_paths_all_the_same(name: str, tmp_path: Path) -> None:
    server = Server(name, tmp_path)
    done = in_another_process(server, driver_root=str(nvml.compiled(old=True)))
    machine, problems = done.stdout.splitlines()
    assert codec.decode(machine) == server.machine
    assert problems == "[]"


def test_without_a_library_it_says_what_to_do(dgx1: Server, tmp_path: Path) -> None:
    done = in_another_process(dgx1, LD_LIBRARY_PATH="")
    advice = "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or name its file system with --driver-root"
    assert advice in done.stderr
    done = in_another_process(dgx1, driver_root=str(tmp_path))
    assert f"no libnvidia-ml.so.1 below {tmp_path}; looked in usr/lib64, " in done.stderr


def test_a_file_that_is_no_library_is_named(dgx1: Server, tmp_path: Path) -> None:
    broken = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    assert f"dlopen: {broken}: " in in_another_process(dgx1, driver_root=str(tmp_path)).stderr


def test_nothing_stays_open_between_readings(dgx1: Server) -> None:
    """What comes or goes is seen at the next reading, and GPUs can be reset in between."""
    import pynvml

    assert dgx1.read().machine == dgx1.machine
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    dgx1.table["nvmlDeviceGetCount_v2"] = "6"
    assert len(dgx1.read().machine.gpus) == 6
