"""The list of contents, the locks and both ways to build the image agree."""

from __future__ import annotations

import json
import marshal
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dradriver import __version__
from image import assemble, build
from tests.cluster.oci import write_oci_tar
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.paths import REPO

CONTENTS = assemble.read_contents()
DOCKERFILE = (REPO / "image/Dockerfile").read_text()
LOCKS = ("runtime.txt", "dev.txt", "build.txt")
PROJECT: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text())


def locked(name: str) -> list[Requirement]:
    lines = (REPO / "requirements" / name).read_text().splitlines()
    return [Requirement(line.rstrip("\\ ")) for line in lines if re.match(r"[a-zA-Z0-9]", line)]


def versions(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for requirement in locked(name):
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


def group(name: str) -> list[str]:
    found: list[str] = []
    for entry in PROJECT["dependency-groups"][name]:
        found += group(entry["include-group"]) if isinstance(entry, dict) else [entry]
    return found


def extras(*parts: str) -> list[str]:
    return [line for part in parts for line in PROJECT["project"]["optional-dependencies"][part]]


@pytest.mark.parametrize("name", LOCKS)
def test_locks_are_pinned_with_hashes_and_name_no_package_source(name: str) -> None:
    text = (REPO / "requirements" / name).read_text()
    assert len(locked(name)) == len(re.findall(r"(?m)^\S+==.*\\\n    --hash=sha256:", text))
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links|--trusted-host| @ ", text)


@pytest.mark.parametrize("name", LOCKS)
def test_the_deprecated_pynvml_distribution_is_locked_nowhere(name: str) -> None:
    """Its .pth slows down every start of Python; nvidia-ml-py is what imports as pynvml."""
    assert "pynvml" not in versions(name)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("runtime.txt", PROJECT["project"]["dependencies"] + extras(*CONTENTS["app"]["extras"])),
        *(("runtime.txt", group(name)) for name in CONTENTS["app"]["groups"]),
        ("dev.txt", PROJECT["project"]["dependencies"] + extras(*PROJECT["project"]["optional-dependencies"])),
        ("dev.txt", group("dev")),
        ("build.txt", PROJECT["build-system"]["requires"]),
    ],
)
def test_locks_satisfy_pyproject(name: str, wanted: list[str]) -> None:
    """If this fails: make lock."""
    have = versions(name)
    for requirement in map(Requirement, wanted):
        pins = have.get(canonicalize_name(requirement.name), set())
        assert pins, f"{requirement.name} is not in {name}"
        assert all(pin in requirement.specifier for pin in pins), f"{requirement} but {name} has {pins}"


def test_the_image_holds_no_tool_of_developers() -> None:
    assert not {"kubernetes", "pip", "setuptools", "pytest", "grpcio-tools"} & set(versions("runtime.txt"))
    # No markers: pip would judge them by the Python that runs it, not by the image's.
    assert [str(r) for r in locked("runtime.txt") if r.marker] == []


def test_prune_deletes_what_matches_and_nothing_else(tmp_path: Any) -> None:
    for name in (
        "numpy/_core/tests/test_a.py",
        "numpy/_core/a.py",
        "numpy/b.pyi",
        "bin/f2py",
        "kubernetes/client/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link.pyi").symlink_to("numpy/_core/a.py")
    assemble.prune(tmp_path, CONTENTS["app"]["prune"])
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()] == ["numpy/_core/a.py"]


def test_programs_are_those_of_the_package_and_run(tmp_path: Any) -> None:
    programs = CONTENTS["app"]["programs"]
    assert programs.items() <= PROJECT["project"]["scripts"].items()
    assemble.write_programs(tmp_path, programs)
    program = tmp_path / "bin" / "gputopo"
    assert program.read_text().splitlines()[0] == f"#!{CONTENTS['run']['entrypoint'][0]}"
    assert os.access(program, os.X_OK)
    environment = {**os.environ, "PYTHONPATH": str(REPO)}  # an image has the package beside its program's Python
    command = [sys.executable, program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, f"gputopo, version {__version__}\n")
    assert CONTENTS["run"]["env"]["PATH"].startswith(f"{CONTENTS['app']['folder']}/bin:")


def test_byte_code_needs_no_valid_modification_times(tmp_path: Any) -> None:
    """An image has times of its own, and a read-only root: byte code that looked outdated would cost every start."""
    (tmp_path / "module.py").write_text("x = 1\n")
    assemble.compile_all([str(tmp_path)])
    (compiled,) = tmp_path.glob("__pycache__/module.*.pyc")
    assert compiled.read_bytes()[4:8] == (1).to_bytes(4, "little")  # PEP 552: by hash, unchecked


def test_a_module_that_does_not_compile_stops_the_build(tmp_path: Any) -> None:
    (tmp_path / "module.py").write_text("def f(:\n")
    with pytest.raises(assemble.AssembleError, match=r"module\.py"):
        assemble.compile_all([str(tmp_path)])


def instructions(word: str) -> list[str]:
    text = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(word + " ").strip() for line in text.splitlines() if line.startswith(word + " ")]


def settings(word: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in instructions(word) for pair in shlex.split(line))


def test_the_dockerfile_assembles_with_the_same_program_and_list() -> None:
    folder = CONTENTS["app"]["folder"]
    toolkit = CONTENTS["toolkit"]["folder"]
    assert instructions("RUN") == [f"python image/assemble.py {folder}", f"sh build.sh {toolkit}"]
    assert f"--from=build {folder} {folder}" in instructions("COPY")
    assert f"--from=toolkit {toolkit} {toolkit}" in instructions("COPY")
    assert "image/toolkit/ ./" in instructions("COPY")
    copied = " ".join(instructions("COPY"))
    for source in ("image/", CONTENTS["app"]["requirements"].partition("/")[0] + "/", "dradriver/", "webhook/"):
        assert source in copied.split()


def test_the_chart_names_the_images_toolkit() -> None:
    daemonset = (REPO / "helm/gpu-topology-dra/templates/node/daemonset.yaml").read_text()
    assert f"- --toolkit={CONTENTS['toolkit']['folder']}\n" in daemonset


def test_the_toolkit_is_pinned_with_hashes() -> None:
    module = "github.com/NVIDIA/nvidia-container-toolkit"
    version = re.search(rf"{module} (v\S+)", (REPO / "image/toolkit/go.mod").read_text())
    assert version
    assert f"{module} {version[1]} h1:" in (REPO / "image/toolkit/go.sum").read_text()
    assert version[1].removeprefix("v") in NVIDIA_TOOLKITS, "its hooks run in the tests"


def test_the_dockerfile_runs_as_the_list_says() -> None:
    run = CONTENTS["run"]
    assert instructions("ENTRYPOINT") == [str(run["entrypoint"]).replace("'", '"')]
    assert instructions("CMD") == [str(run["command"]).replace("'", '"')]
    assert instructions("USER") == [run["user"]]
    assert instructions("WORKDIR")[-1] == run["workdir"]
    assert settings("ENV") == run["env"]
    assert run["labels"].items() <= settings("LABEL").items()


def test_both_stages_of_the_dockerfile_have_one_python() -> None:
    """Extension modules of one minor of Python do not load into another."""
    bases = dict(line.split("=", 1) for line in instructions("ARG") if "_BASE=" in line)
    build = re.search(r"python:(3\.\d+)-slim-(\w+)$", bases["BUILD_BASE"])
    run = re.search(r"python3-debian(\d+):nonroot$", bases["RUN_BASE"])
    assert build
    assert run
    debian = {"12": ("3.11", "bookworm"), "13": ("3.13", "trixie")}
    assert build.groups() == debian[run[1]]
    minor = int(build[1].partition(".")[2])
    assert f">=3.{minor}" >= PROJECT["project"]["requires-python"]


def test_byte_code_that_another_machines_image_gets_has_the_images_own_paths(tmp_path: Any) -> None:
    module = tmp_path / "app" / "module.py"
    module.parent.mkdir()
    module.write_text("def f(): raise ValueError\n")
    assemble.compile_all([str(module.parent)], root=tmp_path)
    (compiled,) = module.parent.glob("__pycache__/module.*.pyc")
    assert marshal.loads(compiled.read_bytes()[16:]).co_filename == "/app/module.py"


@pytest.mark.parametrize("machine", build.PLATFORMS.values())
def test_wheels_are_looked_for_by_every_platform_tag_of_a_machine(machine: str) -> None:
    tags = assemble._platform_tags(machine)
    assert {tag.removesuffix(f"_{machine}") for tag in tags} >= {"manylinux_2_36", "manylinux_2_28", "manylinux2014"}


def test_an_image_says_what_it_runs_on(tmp_path: Any) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("")
    for machine, said in (("aarch64", "arm64"), ("x86_64", "amd64")):
        path = tmp_path / f"{machine}.tar"
        write_oci_tar(path, reference="a:b", rootfs=tmp_path / "root", entrypoint=["x"], machine=machine)
        with tarfile.open(path) as tar:
            texts = [data.read() for entry in tar if (data := tar.extractfile(entry)) is not None]
        assert [json.loads(text)["architecture"] for text in texts if b'"architecture"' in text] == [said]
