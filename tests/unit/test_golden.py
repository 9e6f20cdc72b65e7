"""What others read is written as it was, word for word (``tests/golden``)."""

from __future__ import annotations

import difflib
import itertools

import pytest

from tests.golden import texts


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return texts.everything()


@pytest.mark.parametrize("name", ["objects.json", "ledgers.json", "commands.json", "gangs.json"])
def test_what_others_read_is_what_it_was(written: dict[str, str], name: str) -> None:
    before = (texts.FOLDER / name).read_text()
    changed = difflib.unified_diff(before.splitlines(), written[name].splitlines(), "before", "now", lineterm="")
    said = "\n".join(itertools.islice(changed, 60))
    assert not said, f"if it is meant to change: python -m tests.golden\n{said}"


def test_nothing_else_is_kept(written: dict[str, str]) -> None:
    assert {path.name for path in texts.FOLDER.iterdir()} == written.keys()
