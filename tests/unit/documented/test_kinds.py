"""The index lists each page once, below the name of its folder. A page says in its first sentence what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import REPO

DOCS = REPO / "docs"
FOLDERS = ("start", "tasks", "runbooks", "reference", "internals")
PAGES = sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "README.md")


def test_the_index_lists_each_page_once() -> None:
    listed = re.findall(r"(?m)^\* \[[^]]+\]\((\w+/[\w/-]+\.md)\): ", (DOCS / "README.md").read_text("utf-8"))
    assert sorted(listed) == [str(path.relative_to(DOCS)) for path in PAGES]


def test_each_page_is_in_a_folder_that_says_what_for() -> None:
    assert {path.relative_to(DOCS).parts[0] for path in PAGES} == {*FOLDERS}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_begins_with_what_it_is_for(path: Path) -> None:
    if path.parent.name == "design":
        return
    first = path.read_text("utf-8").split("\n\n")[1].replace("\n", " ")
    assert re.match(r"[A-Z].{20,200}?\.(?: |$)", first), first
