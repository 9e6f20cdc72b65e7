"""No long step of ``make demo`` is silent: a line says what begins and how long it usually takes."""

from __future__ import annotations

import re
import subprocess
from typing import Any, cast

import pytest

from tests.cluster.progress import announce
from tests.demo import online
from tests.demo.examples import EXAMPLES
from tests.deploy import Target
from tests.paths import REPO


class Shown:
    """A cluster that notes what had been printed before each object was applied."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.before: list[str] = []

    def kubectl(self, *arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        if "apply" in arguments:
            self.before.append(self.capsys.readouterr().out)
        return subprocess.CompletedProcess(arguments, 0, "", "")


def test_each_example_is_announced_before_it_is_applied(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Shown(capsys)
    online.apply(cast("Target", cluster))
    expected = [f"applying examples/{path.name} and waiting for its pods" for path in sorted(EXAMPLES.glob("*.yaml"))]
    assert [line.rpartition(" (about ")[0] for line in cluster.before] == expected


def test_a_line_names_the_step_and_its_usual_time(capsys: pytest.CaptureFixture[str]) -> None:
    announce("installing runc", 30)
    assert capsys.readouterr().out == "installing runc (about 30 s)\n"


def test_pip_is_announced_in_the_same_form() -> None:
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\n.venv/installed:")[2].partition("\n\n")[0]
    assert re.search(r'@echo "[^"]+ \(about \d+ s\)"\n.*\n\t\$\(RUN\) -m pip install', recipe), recipe
