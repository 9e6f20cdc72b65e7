"""What ARCHITECTURE.md says of the code is true."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.paths import REPO

PLACES = re.findall(
    r"`([\w./]+\.py)(?:::([\w.]+))?`",
    (REPO / "ARCHITECTURE.md").read_text().partition("\n## Where is ...\n")[2].partition("\n## ")[0],
)


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """Every function and class of a module, and of its classes as ``Class.method``."""

    def names(body: list[ast.stmt], prefix: str) -> list[str]:
        found = []
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found += names(node.body, f"{prefix}{node.name}.")
        return found

    return frozenset(names(ast.parse(path.read_text()).body, ""))


def test_the_table_is_read() -> None:
    assert len(PLACES) >= 25


@pytest.mark.parametrize(("path", "name"), [place for place in PLACES if "/" in place[0]], ids=str)
def test_what_a_newcomer_looks_for_is_where_the_table_says(path: str, name: str) -> None:
    assert (REPO / path).is_file(), f"write in ARCHITECTURE.md where it went: {path}"
    assert not name or name in defined(REPO / path), f"write in ARCHITECTURE.md where it went: {path}::{name}"


def test_each_of_the_ten_lines_names_a_module_that_is_there() -> None:
    text = (REPO / "ARCHITECTURE.md").read_text().partition("## The life of a pod in ten lines\n")[2]
    lines = re.findall(r"(?m)^\d+\. .*$", text.partition("\n## ")[0])
    assert len(lines) == 10
    named = [re.findall(r"`([\w/]+\.py)`", line) for line in lines]
    assert [len(modules) for modules in named] == [1, 1, 1, 1, 1, 1, 1, 1, 0, 1], "the ninth is kube-scheduler's"
    assert all((REPO / module).is_file() for modules in named for module in modules)


def packages() -> list[Path]:
    rooms = ("api", "cluster", "controller", "kube", "node", "process", "queue", "topology", "yamltext")
    found = sorted(init.parent for room in rooms for init in (REPO / "dradriver" / room).rglob("__init__.py"))
    return [package for package in found if "protos" not in package.relative_to(REPO).parts]


@pytest.mark.parametrize("package", packages(), ids=lambda package: str(package.relative_to(REPO)))
def test_a_packages_docstring_has_a_line_for_each_module(package: Path) -> None:
    said = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    told = set(re.findall(r"(?m)^ *(\w+)  +\S", said))
    modules = {path.stem for path in package.glob("*.py")}
    modules |= {init.parent.name for init in package.glob("*/__init__.py")}
    assert told == modules - {"__init__"}
