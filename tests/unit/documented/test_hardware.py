"""docs/internals/hardware.md names tests that exist, all that use fakes of hardware, and the versions that run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.cluster.settings import CONTAINERD, KUBERNETES_VERSIONS, NVIDIA_TOOLKITS
from tests.paths import REPO
from tests.unit.node.vendors.nvidia.discovery import test_drivers

PAGE = (REPO / "docs/internals/hardware.md").read_text("utf-8")
TESTS = REPO / "tests"
HERE = Path(__file__)
# Modules of tests/fakes that stand for a driver, a host or NVIDIA's programs.
FAKES = {"nvml", "hardware", "guests", "toolkit", "toolkit_host", "mps_control"}


def functions(path: Path) -> set[str]:
    """The tests of a file."""
    found = ast.walk(ast.parse(path.read_text("utf-8")))
    return {one.name for one in found if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def fakes(path: Path) -> set[str]:
    """The modules of tests.fakes that a file imports; none where it names none of ``FAKES``."""
    found: set[str] = set()
    text = path.read_text("utf-8")
    if not any(name in text for name in FAKES):  # parsing all files takes a second
        return found
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.ImportFrom) and one.module == "tests.fakes":
            found |= {alias.name for alias in one.names}
        elif isinstance(one, ast.ImportFrom) and (one.module or "").startswith("tests.fakes."):
            found.add((one.module or "").removeprefix("tests.fakes."))
    return found


@pytest.mark.slow
def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`((?:unit|property|programs|contract|e2e)(?:/\w+)*(?:\.py)?)(?:::(\w+))?`", PAGE)
    assert len(named) > 50
    for file, function in named:
        path = TESTS / file
        assert path.exists(), file
        assert not function or function in functions(path), f"{file}::{function}"


def test_each_thing_that_goes_wrong_names_the_tests_of_it() -> None:
    _, _, *rows = re.findall(r"(?m)^\|.*\|$", PAGE.partition("\n## What goes wrong on hosts\n")[2])
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(?:unit|property|programs|contract|e2e)/[^`]*`", row)
        assert named, row
        assert all("::" in name for name in named), row


def test_every_file_that_speaks_to_fakes_of_hardware_is_named() -> None:
    named = set(re.findall(r"`([\w/]+\.py)(?:::\w+)?`", PAGE))
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path != HERE]
    speak = {str(path.relative_to(TESTS)) for path in files if fakes(path) & FAKES or path.parent.name == "programs"}
    assert len(speak) > 20
    assert speak <= named


def test_versions_are_those_that_are_run() -> None:
    for version in (*KUBERNETES_VERSIONS, CONTAINERD, *NVIDIA_TOOLKITS):
        assert version in PAGE
    oldest, *_, newest = (version.rpartition(".")[0] for version in NVIDIA_TOOLKITS)
    assert f"{oldest} to {newest} are tested" in (REPO / "docs/start/install.md").read_text("utf-8")
    (heads,) = re.findall(r"(?m)^\| \|((?: \d+ \|)+)", PAGE)
    assert re.findall(r"\d+", heads) == [driver.partition(".")[0] for driver in test_drivers.DRIVERS]
