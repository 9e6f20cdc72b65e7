"""The documents hang together: links lead somewhere, tables are tables, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import REPO

PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
FRAGMENTS = sorted((REPO / "changes").glob("*.md"))
KINDS = ("feature", "bugfix", "breaking", "doc", "misc")
RULE = re.compile(r"\|( ?:?-+:? ?\|)+")


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"(?ms)^( *)```.*?^ *```$", "", path.read_text("utf-8"))


def links(path: Path) -> list[tuple[Path, str]]:
    """Where a document's links lead in this repository: the file, and the heading in it."""
    found = [target.partition("#") for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)) if "://" not in target]
    return [((path.parent / name).resolve() if name else path, heading) for name, _, heading in found]


def anchors(path: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"(?m)^#+ (.*)$", prose(path))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in links(page):
        assert target.exists(), target
        assert not heading or heading in anchors(target), f"{target.name}#{heading}"


def test_every_page_is_linked_from_the_readme_or_the_index() -> None:
    linked = {target for page in ("README.md", "docs/README.md") for target, _ in links(REPO / page)}
    assert {page for page in PAGES if page != REPO / "README.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_tables(page: Path) -> None:
    lines = prose(page).splitlines()
    for number, line in enumerate(lines):
        if not RULE.fullmatch(line):
            continue
        assert not lines[number - 2].strip(), f"an empty line before the table of {lines[number - 1]}"
        rows = [lines[number - 1]]
        for row in lines[number + 1 :]:
            if not row.startswith("|"):
                break
            rows.append(row)
        assert len(rows) > 1
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {line.count("|")}, rows[0]
        assert len(set(rows)) == len(rows), f"a row twice: {rows[0]}"


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.name)
def test_a_fragment_is_one_line_of_a_known_kind(fragment: Path) -> None:
    assert fragment.name.split(".")[1:] in [[kind, "md"] for kind in KINDS]
    (line,) = fragment.read_text("utf-8").splitlines()
    assert line.endswith(".")
    assert not [target for target in re.findall(r"\]\(([^)\s]+)\)", line) if not (REPO / target).exists()]
