"""The README's first steps lead a newcomer to a placed pod, on a cluster that has nothing yet."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from dradriver.api import names
from tests import deploy, needs
from tests.cluster import Cluster
from tests.paths import REPO

COUNTED = {"Two": 2, "two": 2, "Three": 3, "three": 3}


@pytest.fixture
def bare() -> Iterator[Cluster]:
    needs.real_cluster()
    cluster = Cluster("first-pod")
    cluster.up()
    try:
        cluster.load_image(deploy.build_image())  # in the place of a registry
        yield cluster
    finally:
        cluster.down()


def section() -> str:
    (found,) = re.findall(r"(?ms)^## The first pod\n(.*?)^## ", (REPO / "README.md").read_text("utf-8"))
    return str(found)


def steps() -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"(?m)^    (.+)$", section())]


def test_as_many_steps_as_are_said() -> None:
    counts = re.findall(r"(\w+) commands lead to a pod with the right GPUs, (\w+) more", section())
    assert [sum(COUNTED[word] for word in said) for said in counts] == [len(steps())]


def test_the_first_steps_as_written(bare: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    for tool, *words in steps():
        if tool == "helm":
            bare.helm(*words, "--set", f"image.tag={deploy.TAG}")
        else:
            assert tool == "kubectl"
            said = bare.kubectl(*words).stdout
    for key in (names.ALLOCATED, names.RING_ORDER, names.BUSBW, names.SCORE):
        assert f"{key}:" in said
    pod = json.loads(bare.kubectl("get", "pod", "nvlink-quad", "-o", "json").stdout)
    assert len(pod["metadata"]["annotations"][names.ALLOCATED].split(",")) == 4
    assert pod["metadata"]["annotations"][names.LEVEL] == "nvlink"
