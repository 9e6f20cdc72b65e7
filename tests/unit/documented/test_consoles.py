"""What the documents show of commands is compared with what these print."""

from __future__ import annotations

import pytest

from tests import consoles
from tests.paths import REPO

SHOWN = consoles.Command(1, "kubectl describe pod p", ("Name:  p", "...", "Node:  node-a/10.0.0.7", "Events:", "..."))


@pytest.mark.parametrize(
    ("printed", "different"),
    [
        ("Name: p\nPriority: 0\nNode:   node-a/10.9.8.7\nEvents:\n  x", ""),
        ("Name: p\nNode: node-a/10.9.8.7\nEvents:", ""),
        ("Name: p\nNode: node-b/10.0.0.7\nEvents:", "Node:  node-a/10.0.0.7"),
        ("Name: q\nNode: node-a/10.0.0.7\nEvents:", "Name:  p"),
        ("Name: p\nNode: node-a/10.0.0.7\nx\nEvents:", "Events:"),
    ],
)
def test_a_line_that_is_not_printed_is_found(printed: str, different: str) -> None:
    assert consoles.differs(SHOWN, printed) == different


def test_a_namespace_that_ends_like_a_time_is_a_namespace() -> None:
    assert not consoles.differs(SHOWN._replace(output=("Pod docs/trainer",)), "Pod t-waits-46046d/trainer")


def test_what_follows_the_last_line_is_found() -> None:
    assert consoles.differs(SHOWN._replace(output=("a",)), "a\nb") == "(the end; 'b' follows)"


def test_kubectl_wait_names_objects_in_any_order() -> None:
    command = consoles.Command(1, "kubectl wait pod", ("pod/gang-job-0-5vvvr met", "pod/gang-job-1-qf5pf met"))
    assert not consoles.differs(command, "pod/gang-job-1-aaaaa met\npod/gang-job-0-bbbbb met")
    assert consoles.differs(command, "pod/gang-job-1-aaaaa met")


def test_each_page_that_shows_a_session_has_it_run() -> None:
    pages = {path for path in [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")] if consoles.commands(path)}
    assert pages == {*consoles.PAGES}
    tests = "".join((REPO / "tests" / "e2e" / f"test_{name}.py").read_text() for name in ("documented", "first_pod"))
    names = ("README", "EXAMPLES", "GANGS", "INSTALL", "TROUBLESHOOTING", "TUTORIAL")
    assert all(f"consoles.{name}" in tests for name in names)
