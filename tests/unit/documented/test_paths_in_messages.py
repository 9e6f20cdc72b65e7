"""No text that a program or the chart shows names a file of this repository, which its reader does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import REPO

PATH = re.compile(r"\b(docs|examples|tests|helm)/[a-z]")
MODULES = sorted(path for folder in ("dradriver", "webhook") for path in (REPO / folder).rglob("*.py"))
CHART = REPO / "helm" / "gpu-topology-dra"
COMMENT = re.compile(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}|^\s*#.*$", re.DOTALL | re.MULTILINE)


def texts(source: str) -> Iterator[str]:
    """Yield the string constants of a module but its docstrings and the strings below constants."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_such_a_text_is_found() -> None:
    found = [
        text for text in texts('"""docs/a"""\nX = f"{1}: see docs/tasks/a.md"\n"""docs/b"""\n') if PATH.search(text)
    ]
    assert found == [": see docs/tasks/a.md"]


@pytest.mark.slow
def test_no_program_shows_a_path() -> None:
    shown = {
        f"{path.relative_to(REPO)}: {text}"
        for path in MODULES
        for text in texts(path.read_text(encoding="utf-8"))
        if PATH.search(text)
    }
    assert not shown


@pytest.mark.parametrize("name", ["templates", "monitoring/dashboard.json"])
def test_the_chart_shows_no_path(name: str) -> None:
    place = CHART / name
    files: list[Path] = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    assert files
    for path in files:
        shown = COMMENT.sub("", path.read_text(encoding="utf-8"))
        # The chart's value runbookUrl makes absolute links of the paths in alerts.
        assert not PATH.search(shown.replace('replace "runbook: docs/"', "")), path
