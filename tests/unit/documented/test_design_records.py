"""docs/internals/design: each record is one page of one form. Modules that pages and docstrings name exist."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.paths import REPO

DOCS = REPO / "docs"
RECORDS = sorted((DOCS / "internals" / "design").glob("*.md"))
ON_THE_CODE = [
    *(REPO / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING")),
    *(
        DOCS / "internals" / f"{name}.md"
        for name in ("agent", "allocator", "busbw", "controller", "node", "simulation")
    ),
    *RECORDS,
]
HEADINGS = ["Context", "Decision", "Alternatives", "Consequences"]
MOST_LINES = 60


def test_the_records_are_numbered_without_gaps() -> None:
    assert [path.name[:4] for path in RECORDS] == [f"{number:03}-" for number in range(1, len(RECORDS) + 1)]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_one_page_with_the_four_headings(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith(f"# {path.stem[:3]}: ")
    assert re.findall(r"(?m)^#{2,} (.*)$", text) == HEADINGS
    assert len(text.splitlines()) <= MOST_LINES


@functools.cache
def modules() -> tuple[str, ...]:
    folders = ("dradriver", "webhook", "tests", "image", "docs")
    return tuple(f"/{path.relative_to(REPO)}" for folder in folders for path in (REPO / folder).rglob("*.py"))


def missing(named: set[str]) -> set[str]:
    """Return those of some modules, given by the ends of their paths, that do not exist."""
    return {name for name in named if not any(module.endswith(f"/{name}") for module in modules())}


@pytest.mark.parametrize("page", ON_THE_CODE, ids=lambda page: page.stem)
def test_a_module_that_a_page_on_the_code_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.py)(?:::[\w.]+)?`", page.read_text("utf-8")))
    assert not missing(named), f"write in {page.name} where these went"


@pytest.mark.parametrize("folder", ["dradriver", "webhook"])
def test_a_module_that_a_docstring_names_exists(folder: str) -> None:
    named = {
        name
        for path in (REPO / folder).rglob("*.py")
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", path.read_text("utf-8"))
    }
    assert named
    assert not missing(named), "write where these went"
