"""The README's steps lead a newcomer to a placed pod, on a cluster that has nothing yet, and print what it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.api.base import names
from tests import consoles, deploy, needs
from tests.cluster import Cluster
from tests.e2e import documented
from tests.e2e.kubectl import eventually
from tests.paths import REPO
from tests.snippets import snippets

README = consoles.README.read_text("utf-8")
SIMULATED = ("--set", "discovery=simulated", "--set", "simulated.default=dgx1-v100")


@pytest.fixture
def bare() -> Iterator[Cluster]:
    needs.real_cluster()
    cluster = Cluster("first-pod")
    cluster.up()
    try:
        cluster.load_image(deploy.build_image())  # the first two steps, in the tests' own way
        yield cluster
    finally:
        cluster.down()


def step() -> list[str]:
    """Return the words of the third step: the command of Helm."""
    (section,) = re.findall(r"(?ms)^## Install\n(.*?)^## ", README)
    assert re.findall(r"(?m)^(\d)\. ", section) == ["1", "2", "3"]
    assert " ".join(SIMULATED) in section
    (line,) = re.findall(r"`(helm install [^`]+)`", section)
    return shlex.split(line)[1:]


def test_the_steps_and_the_sessions_as_written(bare: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    bare.helm(*step(), *SIMULATED, "--set", f"image.tag={deploy.TAG}")
    bare.kubectl("apply", "-f", "-", input=next(snippets(README)).text)
    bare.kubectl("wait", "--for=condition=Ready", "pod/trainer", "--timeout=60s")
    placed = ("get", "events", "--field-selector", "reason=PlacedOnGPUs", "-o", "name")
    eventually("an Event says what the pod got", lambda: bare.kubectl(*placed).stdout)
    (tmp_path / "readme").mkdir()
    documented.run(bare, consoles.README, tmp_path / "readme")
    (tmp_path / "install").mkdir()
    documented.run(bare, consoles.INSTALL, tmp_path / "install")
    made = json.loads(bare.kubectl("get", "pod", "trainer", "-o", "json").stdout)
    assert len(made["metadata"]["annotations"][names.ALLOCATED].split(",")) == 4
