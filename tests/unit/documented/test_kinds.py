"""Documents are of four kinds: the index lists each page under one, and the page says which, and what it is for."""

from __future__ import annotations

import re

import pytest

from tests.paths import REPO

DOCS = REPO / "docs"
INDEX = (DOCS / "README.md").read_text("utf-8")
# A heading of the index, and the word that its pages begin with.
KINDS = {"Start": "Start", "Tasks": "Task", "Reference": "Reference", "How it works": "How it works"}


def listed() -> dict[str, list[str]]:
    """Return the pages of docs/ that the index has under each of its headings."""
    parts = re.split(r"(?m)^## (.*)$", INDEX)
    return {
        heading: re.findall(r"(?m)^\* \[([\w-]+\.md)\]\(\1\):", body)
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_index_has_the_four_kinds_and_each_page_under_one_of_them() -> None:
    found = listed()
    assert list(found) == list(KINDS)
    pages = [page for some in found.values() for page in some]
    assert sorted(pages) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize(
    ("page", "kind"), [(page, KINDS[heading]) for heading, pages in listed().items() for page in pages]
)
def test_a_page_begins_with_its_kind_and_what_it_is_for(page: str, kind: str) -> None:
    first = (DOCS / page).read_text("utf-8").split("\n\n")[1].replace("\n", " ")
    assert first.startswith(f"*{kind}.* "), f"write *{kind}.* and a sentence on what the page is for below its title"
    sentence = first.removeprefix(f"*{kind}.* ")
    assert sentence[0].isupper()
    assert re.match(r".{20,200}?\.(?: |$)", sentence), sentence
