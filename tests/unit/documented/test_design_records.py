"""docs/design: each record is one page of one form. Modules that these pages and those on the code name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import REPO

DOCS = REPO / "docs"
RECORDS = sorted((DOCS / "design").glob("*.md"))
ON_THE_CODE = [REPO / "ARCHITECTURE.md", DOCS / "agent.md", DOCS / "controller.md", *RECORDS]
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


@pytest.mark.parametrize("page", ON_THE_CODE, ids=lambda page: page.stem)
def test_a_module_that_a_page_on_the_code_names_exists(page: Path) -> None:
    folders = ("dradriver", "webhook", "tests", "image")
    modules = [f"/{path.relative_to(REPO)}" for folder in folders for path in (REPO / folder).rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)(?:::[\w.]+)?`", page.read_text("utf-8")))
    missing = {name for name in named if not any(module.endswith(f"/{name}") for module in modules)}
    assert not missing, f"write in {page.name} where these went"
