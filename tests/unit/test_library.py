"""The distribution as a library: the names it offers, what its wheel holds and wants, and its examples, run from it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dradriver import allocator, topology
from tests.paths import REPO

LIBRARY = {"msgspec", "numpy", "pyyaml"}
PARTS = {
    "node": ["dradriver.node"],
    "controller": ["dradriver.controller"],
    "webhook": ["webhook"],
    "cli": ["dradriver.cli"],
}
# By what is imported the distribution that has it; yarl comes with aiohttp, whose URLs are its.
DISTRIBUTION = {"google": "protobuf", "grpc": "grpcio", "pynvml": "nvidia-ml-py", "yaml": "pyyaml", "yarl": "aiohttp"}
# Whoever imports this first has only the standard library, the wheel and what the library wants.
GUARD = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {allowed} | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{{name}} is not for the library")
sys.meta_path.insert(0, Guard())
sys.path.insert(0, {wheel!r})
import dradriver
assert dradriver.__file__.startswith({wheel!r}), dradriver.__file__
"""


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling, which is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPO, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")
    return wheel.parent / "site"


@pytest.fixture(scope="module")
def metadata(installed: Path) -> Message:
    (found,) = installed.glob("*.dist-info/METADATA")
    return Parser().parsestr(found.read_text())


def guarded(installed: Path, program: str) -> str:
    allowed = {"dradriver", "msgspec", "numpy", "yaml"}
    return python(GUARD.format(allowed=allowed, wheel=str(installed)) + program)


def test_the_names_of_the_library() -> None:
    assert dir(allocator) == [
        "Amount", "Choice", "Constraint", "Estimate", "Fleet", "GangChoice", "GangRequest", "LargestGang", "Level",
        "MAX_GPUS", "MachineTooLargeError", "Mig", "MigPart", "NoPlaceError", "NodeWeights", "Offer", "POLICIES",
        "PartChoice", "Request", "Role", "Share", "SharePart", "Strategy", "Tables", "UnknownGpuError", "Weights",
        "Whole", "all_reduce", "choose", "largest_gang", "place_gang", "tables_of",
    ]  # fmt: skip
    assert dir(topology) == [
        "Blocks", "Cpu", "Gpu", "Location", "Machine", "MigDevice", "MigProfile", "Nic", "NumaNode", "PathType",
        "PciDevice", "TopologyError", "location", "read_machine",
    ]  # fmt: skip


@pytest.mark.parametrize("package", [allocator, topology])
def test_every_name_that_is_offered_is_there_and_no_other(package: object) -> None:
    for name in dir(package):
        found = getattr(package, name)
        assert getattr(found, "__name__", name) == name
    with pytest.raises(AttributeError, match="has no attribute 'Chooser'"):
        getattr(package, "Chooser")  # noqa: B009  # as a caller who misspells it


@pytest.mark.slow
def test_requests_and_policies_load_no_numpy_and_the_node_agent_and_the_webhook_neither() -> None:
    modules = "dradriver.allocator.request, dradriver.allocator.set_policies, dradriver.node.main, webhook.server"
    names = "Whole, Share, Mig, Constraint, NoPlaceError, POLICIES"
    program = f"import sys, {modules}; from dradriver.allocator import {names}; print('numpy' in sys.modules)"
    assert python(program) == "False\n"
    assert python("import sys; from dradriver.allocator import Fleet; print('numpy' in sys.modules)") == "True\n"


@pytest.mark.slow
def test_the_wheel_wants_what_the_library_imports_and_parts_are_extras(metadata: Message) -> None:
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {canonicalize_name(one.name) for one in wanted if one.marker is None} == LIBRARY
    assert set(metadata.get_all("Provides-Extra", [])) == set(PARTS)


def test_the_wheel_holds_types(installed: Path) -> None:
    assert {path.parent.name for path in installed.glob("*/py.typed")} == {"dradriver", "webhook"}


@pytest.mark.slow
def test_examples_run_with_the_library_alone(installed: Path) -> None:
    examples = re.findall(
        r"```python\n(.*?)```", (REPO / "docs" / "internals" / "allocator.md").read_text(), flags=re.DOTALL
    )
    assert examples
    for example in examples:
        assert set(re.findall(r"(?m)^from (\S+)", example)) == {"dradriver.allocator", "dradriver.topology"}
        guarded(installed, example)


def test_what_is_not_for_the_library_is_found_out(installed: Path) -> None:
    with pytest.raises(AssertionError, match="is not for the library"):
        guarded(installed, "import dradriver.kube.client")


def test_every_module_of_the_library_needs_the_library_alone(installed: Path) -> None:
    guarded(
        installed,
        "import importlib, pkgutil\n"
        "for root in ('dradriver.topology', 'dradriver.allocator'):\n"
        "    for module in pkgutil.walk_packages(importlib.import_module(root).__path__, root + '.'):\n"
        "        importlib.import_module(module.name)\n",
    )


@pytest.mark.parametrize("part", PARTS)
def test_a_part_with_its_extra_has_all_that_it_imports(part: str) -> None:
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    has = {canonicalize_name(Requirement(line).name) for line in extras[part]} | LIBRARY
    imported = external(PARTS[part])
    assert {canonicalize_name(DISTRIBUTION.get(name, name)) for name in imported} | LIBRARY == has


def external(packages: Iterable[str]) -> set[str]:
    """Whatever these packages import of others, by way of any of our modules."""
    graph = imports()
    own = {module for package in packages for module in {package} | graph.find_descendants(package)}
    reached = own.union(*(graph.find_upstream_modules(module) for module in own))
    return {module for module in reached if graph.is_module_squashed(module)} - sys.stdlib_module_names


@cache
def imports() -> Any:
    grimp = pytest.importorskip("grimp", reason="grimp comes with import-linter, of the development environment")
    return grimp.build_graph(
        "dradriver",
        "webhook",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
