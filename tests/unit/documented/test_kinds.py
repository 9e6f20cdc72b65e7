"""The index lists each page once, by role. A page says in its first line of which kind it is, and what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import REPO

DOCS = REPO / "docs"
INDEX = (DOCS / "README.md").read_text("utf-8")
ROLES = ("I write pods", "I run the cluster", "I work on the code")
KINDS = ("Start", "Task", "Reference", "How it works")


def test_the_index_has_each_page_once_and_a_list_for_each_role() -> None:
    parts = re.split(r"(?m)^## (.*)$", INDEX)
    assert tuple(parts[1::2]) == ROLES
    pages = [page for body in parts[2::2] for page in re.findall(r"(?m)^\* \[([\w-]+\.md)\]\(\1\): ", body)]
    assert sorted(pages) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize("path", sorted(set(DOCS.glob("*.md")) - {DOCS / "README.md"}), ids=lambda path: path.name)
def test_a_page_begins_with_its_kind_and_what_it_is_for(path: Path) -> None:
    first = path.read_text("utf-8").split("\n\n")[1].replace("\n", " ")
    kind, _, sentence = first.removeprefix("*").partition(".* ")
    assert kind in KINDS, f"write one of {KINDS} as *Task.* and a sentence on what the page is for below its title"
    assert sentence[0].isupper()
    assert re.match(r".{20,200}?\.(?: |$)", sentence), sentence
