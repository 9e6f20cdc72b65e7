"""THREAT_MODEL.md names tests and policies that exist."""

from __future__ import annotations

import re

import pytest

from tests.paths import REPO

PAGE = (REPO / "THREAT_MODEL.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
TEMPLATES = "\n".join(path.read_text("utf-8") for path in (REPO / "helm").rglob("*.yaml"))


def test_a_row_without_a_test_says_what_remains_possible() -> None:
    assert len(ROWS) > 20
    for attempt, happens, *_, test in ROWS:
        assert test == "test" or re.search(r"`[\w/]+\.py`", test) or "**possible**" in happens, attempt


@pytest.mark.parametrize(
    "file", sorted(set(re.findall(r"`((?:workload|contract|e2e|property|bench)/[\w/]+\.py)`", PAGE)))
)
def test_a_named_test_is_there(file: str) -> None:
    assert (REPO / "tests" / file).is_file()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`…-([a-z-]+)`", PAGE))))
def test_a_named_policy_is_in_the_chart(name: str) -> None:
    assert re.search(rf'\(list [.$] "{name}"\)', TEMPLATES)
