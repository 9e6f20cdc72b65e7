"""The check of prose finds what the style page forbids, and stays quiet on good text."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import prose

LONG = "word " * 31
GOOD = """\
# What a page can be called

The controller deletes the claim after 30 s (`controller.tentativePlacement`), as
[design 001](design/001-pinned-claims.md) says. What does the pod wait for? If there is none, nothing happens.

* Select [beside/dranet.yaml](../examples/beside/dranet.yaml).
* Run `gputopo topo`, which prints "HELD BY" and `promised`:

      nobody reads this

| old | new |
|---|---|
| ledger | `allocatingDriver` |

    whoever reads this: code

```text
somebody
```

<!-- nobody -->

<!-- Written by make reference. -->

| a | b |
|---|---|
| x | nobody |

What machines lack: GPUs. It has a list (`a`, `b`).

<img src="x.svg" alt="whoever">

Unit tests and other units of time are fine, also https://example.com/whoever/books.
"""


def messages(text: str) -> list[str]:
    return [finding.message for finding in prose.findings(text)]


def test_good_text_is_left_alone() -> None:
    assert list(prose.findings(GOOD)) == []


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (f"Short.\nThe {LONG}end.", 2, "a sentence of 33 words"),
        ("One.\nTwo.\n\nWhere there is a claim, it\nis deleted.", 4, '"Where"'),
        ("It waits. Of these it has two.", 1, '"Of"'),
        ("Whose pod it is, the claim says.", 1, '"Whose"'),
        ("* **What** is free counts.", 1, '"What"'),
        ("It is *Who* they are.\nSee [x](y.md). Who has it?\nWho has it is listed.", 3, '"Who"'),
        ("It asks nobody.", 1, '"nobody"'),
        ("The pod starts\nanew.", 2, '"anew"'),
        ("| a | b |\n|---|---|\n| x | such a pod |", 3, '"such a"'),
        ("1. The claim is given back.", 1, '"given back"'),
        ("It has our words.", 1, "annotation"),
        ("A promise of GPUs.", 1, "tentative placement"),
        ("The other driver's\n`x` ledger.", 2, '"ledger"'),
        ("It runs. " * 80, 1, "a paragraph of"),
    ],
)
def test_a_bad_place_is_named_with_its_line(text: str, line: int, part: str) -> None:
    (finding,) = prose.findings(text)
    assert finding.line == line
    assert part in finding.message


def test_a_link_and_code_do_not_make_a_sentence_long() -> None:
    assert messages("It is " + "`a b c d` " * 3 + "([one.md](one.md), [two.md](two.md)) " + "word " * 24 + "x.") == []


def test_lines_after_code_are_counted() -> None:
    assert [finding.line for finding in prose.findings("```\nx\n\n```\n\n<!-- a\nb -->\nGood.\nIt is ill.")] == [9]


def test_the_status_says_whether_there_is_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bad := tmp_path / "bad.md").write_text("It is ill.\n")
    assert prose.main([str(bad)]) == 1
    assert capsys.readouterr().out == f'{bad}:1: "ill": unhealthy\n'
    (good := tmp_path / "good.md").write_text(GOOD)
    assert prose.main([str(good)]) == 0


def test_pages_that_are_checked_are_good() -> None:
    assert prose.main() == 0
