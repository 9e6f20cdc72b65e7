"""The driver library: found, too old, missing, replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dradriver.node.vendors.nvidia.discovery import library
from dradriver.node.vendors.nvidia.discovery.library import find_library
from dradriver.node.vendors.nvidia.discovery.nvml_interface import LIBRARY, NvmlError
from dradriver.topology import machine_codec
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.paths import REPO


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    return Server("dgx1-v100", tmp_path)


READ = """
import sys
from pathlib import Path
from dradriver.node.vendors.nvidia.discovery import nvidia_reading as discovery
from dradriver.topology import machine_codec
root = Path(sys.argv[1]) if sys.argv[1] else None
reading = discovery.read(driver_root=root, host_root=Path(sys.argv[2]))
print(machine_codec.encode(reading.machine))
print([str(problem) for problem in reading.problems])
"""


def in_another_process(server: Server, *, driver_root: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", READ, driver_root, str(server.sys.root)]
    environment = {**os.environ, "PYTHONPATH": str(REPO), **server.environment(), **variables}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_linker_finds_the_library_where_it_is_installed(dgx1: Server) -> None:
    done = in_another_process(dgx1, LD_LIBRARY_PATH=str(nvml.compiled() / "usr/lib64"))
    assert machine_codec.decode(done.stdout.splitlines()[0]) == dgx1.machine


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx1-v100", "hgx-h100"])
def test_a_driver_that_lacks_newer_functions_says_links_and_paths_all_the_same(name: str, tmp_path: Path) -> None:
    server = Server(name, tmp_path)
    done = in_another_process(server, driver_root=str(nvml.compiled(old=True)))
    machine, problems = done.stdout.splitlines()
    gpus = tuple(msgspec.structs.replace(gpu, profiles=()) for gpu in server.machine.gpus)  # which came with MIG
    assert machine_codec.decode(machine) == msgspec.structs.replace(server.machine, gpus=gpus)
    assert problems == "[]"


@pytest.mark.slow
def test_without_a_library_it_says_what_to_do(dgx1: Server, tmp_path: Path) -> None:
    done = in_another_process(dgx1, LD_LIBRARY_PATH="")
    advice = "libnvidia-ml.so.1 was not found. Install the NVIDIA driver, or name its file system with --driver-root"
    assert advice in done.stderr
    done = in_another_process(dgx1, driver_root=str(tmp_path))
    assert f"no libnvidia-ml.so.1 below {tmp_path} in usr/lib64, " in done.stderr


@pytest.mark.parametrize(
    "folder",
    [
        "",
        "lib",
        "lib64",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian
        "usr/lib/aarch64-linux-gnu/nvidia/current",
        "usr/lib/nvidia/tesla",  # Bottlerocket
        "usr/local/nvidia/lib64",  # GKE, below the driver's folder
        "home/kubernetes/bin/nvidia/lib64",  # GKE, below the host's root
        "run/opengl-driver/lib",  # NixOS
        "usr/local/glibc/usr/lib",  # Talos
    ],
)
def test_the_library_is_found_where_distributions_put_it(folder: str, tmp_path: Path) -> None:
    library = tmp_path / folder / LIBRARY
    library.parent.mkdir(parents=True, exist_ok=True)
    library.touch()
    assert find_library(tmp_path) == library


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_links_lead_where_they_lead_below_the_drivers_root(dgx1: Server, tmp_path: Path) -> None:
    """Debian's alternatives: absolute links, and a relative one that climbs above the root."""
    root = tmp_path / "driver"
    folder = root / "usr/lib/x86_64-linux-gnu"
    library = folder / "nvidia/current" / f"{LIBRARY}.535"
    library.parent.mkdir(parents=True)
    shutil.copy(nvml.compiled() / "usr/lib64" / LIBRARY, library)
    link(folder / LIBRARY, f"/etc/alternatives/glx--{LIBRARY}-x86_64-linux-gnu")
    link(root / f"etc/alternatives/glx--{LIBRARY}-x86_64-linux-gnu", f"/lib/x86_64-linux-gnu/nvidia/current/{LIBRARY}")
    link(root / "lib", "../../../usr/./lib")
    link(library.with_name(LIBRARY), library.name)
    assert find_library(root) == library
    done = in_another_process(dgx1, driver_root=str(root))
    assert machine_codec.decode(done.stdout.splitlines()[0]) == dgx1.machine


def test_links_lead_nowhere_outside_the_drivers_root_and_to_an_end(tmp_path: Path) -> None:
    outside = tmp_path / "outside" / LIBRARY
    outside.parent.mkdir()
    outside.touch()
    root = tmp_path / "driver"
    link(root / "usr/lib64" / LIBRARY, str(outside))
    link(root / "lib64" / LIBRARY, f"../../../outside/{LIBRARY}")
    link(root / "usr/lib" / LIBRARY, LIBRARY)  # to itself
    with pytest.raises(NvmlError, match=f"no {LIBRARY} below {root}"):
        find_library(root)


def test_a_folder_that_cannot_be_looked_into_has_no_library(tmp_path: Path) -> None:
    with pytest.raises(NvmlError, match="no libnvidia-ml"):
        find_library(tmp_path / ("x" * 300))  # stat fails, and not because there is none


REPLACE = """
import os, shutil, sys
from pathlib import Path
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.node.errors import RestartError
root, host, library, table = (Path(word) if word else None for word in sys.argv[1:])
found = Hardware(driver_root=root, host_root=host)
for answer in ("!9", "!18"):
    table.write_text(f"nvmlInitWithFlags={answer}\\n")
    print([len(found.read().gpus) for _ in range(2)])
new = library.with_name("libnvidia-ml.so.new")
shutil.copy(library, new)
if library.is_symlink():
    library.unlink()
    library.symlink_to(new.name)
else:
    new.replace(library)
try:
    found.read()
except RestartError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by_linker", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_library_that_never_worked_is_waited_for_until_there_is_another(
    by_linker: bool, linked: bool, dgx1: Server, tmp_path: Path
) -> None:
    """A host upgrade that is half done has the new library and the old driver: starting again would not help."""
    root = tmp_path / "driver"
    shutil.copytree(nvml.compiled(), root)
    library = root / "usr/lib64" / LIBRARY
    if linked:
        library.rename(library.with_name("libnvidia-ml.so.535"))
        library.symlink_to("libnvidia-ml.so.535")
    table = tmp_path / "answers"
    words = [
        sys.executable,
        "-c",
        REPLACE,
        "" if by_linker else str(root),
        str(dgx1.sys.root),
        str(library),
        str(table),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPO), nvml.TABLE: str(table)}
    if by_linker:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    before, mismatch, after = done.stdout.splitlines()
    assert (before, mismatch) == ("[0, 0]", "[0, 0]")
    assert after == "the driver's library was replaced, start again with the new one"


def test_a_file_that_is_no_library_is_named(dgx1: Server, tmp_path: Path) -> None:
    broken = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    assert f"dlopen: {broken}: " in in_another_process(dgx1, driver_root=str(tmp_path)).stderr


def test_who_reads_once_leaves_nothing_open(dgx1: Server) -> None:
    import pynvml

    assert dgx1.read().machine == dgx1.machine
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    dgx1.table["nvmlDeviceGetCount_v2"] = "6"
    assert len(dgx1.read().machine.gpus) == 6


@pytest.mark.parametrize(
    ("links", "folder"),
    [
        ({"run/opengl-driver": "/nix/store/x"}, "nix/store/x/lib"),
        ({"run/opengl-driver/lib/libnvidia-ml.so.1": "/nix/store/x/lib/libnvidia-ml.so.1"}, "nix/store/x/lib"),
        ({"usr/lib64": "/nix/store/x/lib"}, "nix/store/x/lib"),
    ],
    ids=["the folder", "each file", "a folder of the system"],
)
def test_a_library_behind_absolute_links_is_found_where_it_is(
    links: dict[str, str], folder: str, tmp_path: Path
) -> None:
    """A tool that is told so needs not follow links, which lead it out of the driver's root."""
    (tmp_path / "nix/store/x/lib").mkdir(parents=True)
    (tmp_path / "nix/store/x/lib/libnvidia-ml.so.1").touch()
    for at, to in links.items():
        (tmp_path / at).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / at).symlink_to(to)
    assert library.real_folder(tmp_path) == folder
