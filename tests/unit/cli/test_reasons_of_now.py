"""What waiting pods say of themselves, of each kind that has figures, against what ``gputopo explain`` says now."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dradriver.api.policies.policies_reader import read
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.unit.cli.test_queue import keep

TEXT = """\
tenants:
  vision: {namespaces: [vision], cap: [{gpus: 6}]}
  language: {namespaces: [language], partition: {nodes: [n3]}}
"""


def figures(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


async def compare(cluster: GpuCluster, shell: CommandLine) -> dict[str, str]:
    """Compare all reasons with what ``gputopo explain`` says now, and return them by pod."""
    reasons: dict[str, str] = {}
    waiting: list[dict[str, Any]] = await shell.data("explain -A")
    for pod in waiting:
        name, namespace = pod["pod"], pod["namespace"]
        now = (await shell.data(f"explain {name} -n {namespace}"))["reason"]
        reasons[f"{namespace}/{name}"] = pod["recorded_reason"]
        assert pod["recorded_reason"], name
        # The first of a queue says all that explain says. Others leave out what changes all the time.
        assert figures(pod["recorded_reason"]) <= figures(now), (name, pod["recorded_reason"], now)
        assert pod["recorded_reason"].partition(":")[0] in now, (name, pod["recorded_reason"], now)
    return reasons


def remove(cluster: GpuCluster, name: str, namespace: str) -> None:
    cluster.remove(PODS, name, namespace)
    claim = cluster.find(RESOURCE_CLAIMS, f"gpus-{name}", namespace)
    if claim is not None:
        claim["metadata"]["finalizers"] = []
        cluster.put(RESOURCE_CLAIMS, claim | {"status": {}})
        cluster.remove(RESOURCE_CLAIMS, f"gpus-{name}", namespace)


@pytest.mark.slow
async def test_every_figure_of_a_reason_is_one_of_now(cluster: GpuCluster, shell: CommandLine) -> None:
    for name in ("n1", "n2", "n3"):
        cluster.node(name)
    keep(cluster, TEXT)
    cluster.worker.follow(read(TEXT.encode(), source="x"))
    for name in ("one-gpu", "two-gpus"):
        cluster.pod(name, 1 if name == "one-gpu" else 2, namespace="vision")
    cluster.pod("holder", 8, namespace="language")
    await run_all(cluster)
    for number in range(3):
        cluster.pod(f"capped-{number}", 4, namespace="vision")
    cluster.pod("capped-for-ever", 7, namespace="vision")
    for number in range(2):
        cluster.pod(f"gathers-{number}", 4, wishes={"gang": "gathers", "gang-size": "4"})
    for number in range(3):
        cluster.pod(f"large-{number}", 8, wishes={"gang": "large", "gang-size": "3"})
    cluster.pod("bound", 8, namespace="language")
    cluster.pod("never", 9)
    cluster.pod("cpu", 1, requests={"cpu": "1000"})
    await run_all(cluster)
    before = await compare(cluster, shell)
    assert len(before) == 12
    assert "In use: 3 " in before["vision/capped-0"]
    assert before["vision/capped-1"] == before["vision/capped-2"]
    assert "In use" not in before["vision/capped-1"], "only the first of a queue is told figures that change"

    # All figures change, and nothing happens to the pods that have them.
    cluster.pod("late", 1, namespace="vision")
    cluster.pod("gathers-2", 4, wishes={"gang": "gathers", "gang-size": "4"})
    remove(cluster, "capped-0", "vision")
    await run_all(cluster)
    changed = await compare(cluster, shell)
    assert re.search(r"In use: 4( \(|\.$)", changed["vision/capped-1"]), "it is the first now"
    assert changed["default/gathers-0"].startswith("Waiting for more pods of the gang: 3 of 4")
    remove(cluster, "late", "vision")
    await run_all(cluster)
    assert re.search(r"In use: 3( \(|\.$)", (await compare(cluster, shell))["vision/capped-1"])
