"""``gputopo idle``: whose GPUs do nothing, the dearest first."""

from __future__ import annotations

import math
from typing import Any

from dradriver.api.base import names
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster, claim_of

SEEN = "2026-01-02T04:00:00Z"


def quiet(cluster: GpuCluster, pod: str, since: str, *, namespace: str = "default", end: str = "") -> None:
    """Have a pod's agent say that its GPUs do nothing, and the pod be warned."""

    def change(claim: Object) -> None:
        results = claim["status"]["allocation"]["devices"]["results"]
        told = {"data": {"idleSince": since, "idleSeen": SEEN}}
        claim["status"]["devices"] = [{key: one[key] for key in ("driver", "pool", "device")} | told for one in results]
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": "u"}]
        if end:
            claim["metadata"]["annotations"][names.IDLE_END] = end

    cluster.store.edit(RESOURCE_CLAIMS, (namespace, claim_of(pod)), change)


async def found(shell: CommandLine, *options: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = await shell.data("idle", *options)
    return listed


async def test_no_idle_pod_is_said_so(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("p", 2)
    await run_all(cluster)
    assert await found(shell) == []
    assert (await shell.run("idle")).stdout == "no pod's GPUs are known to be idle\n"


async def test_those_that_cost_most_are_first(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("four", 4, wishes={"idle-timeout": "90m"})
    cluster.pod("one", 1, namespace="b")
    cluster.pod("works", 1)
    await run_all(cluster)
    quiet(cluster, "four", "2026-01-02T02:00:00Z", end="2026-01-02T05:00:00Z")
    quiet(cluster, "one", "2026-01-02T01:00:00Z", namespace="b")
    every = await found(shell)
    assert [(one["namespace"], one["pods"], one["gpus"]) for one in every] == [
        ("default", ["four"], 4.0),
        ("b", ["one"], 1.0),
    ]
    assert every[0]["gpu_hours"] > every[1]["gpu_hours"]
    assert every[0]["since"] == "2026-01-02T02:00:00Z"
    assert (every[0]["timeout_s"], every[0]["ends"]) == (5400, "2026-01-02T05:00:00Z")
    assert (every[1]["timeout_s"], every[1]["ends"]) == (None, "")
    assert every[0]["products"] == ["Tesla V100-SXM2-32GB"]
    shown = (await shell.run("idle")).stdout
    assert "5 GPUs are idle" in shown
    assert "1h30m" in shown
    assert [one["namespace"] for one in await found(shell, "-n", "b")] == ["b"]


async def test_half_a_statement_does_not_count_and_hostile_ones_stop_no_pod(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    for name in ("half", "odd", "good"):
        cluster.pod(name, 2)
    await run_all(cluster)
    for name in ("half", "odd", "good"):
        quiet(cluster, name, "2026-01-02T02:00:00Z")
    cluster.store.edit(RESOURCE_CLAIMS, ("default", claim_of("half")), lambda claim: claim["status"]["devices"].pop())
    cluster.store.edit(
        RESOURCE_CLAIMS,
        ("default", claim_of("odd")),
        lambda claim: claim["status"]["devices"][0].update(data={"idleSince": [7], "idleSeen": "9" * 5000}),
    )
    assert [one["pods"] for one in await found(shell)] == [["good"]]


async def test_who_may_not_list_pods_sees_the_claims(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("p", 2, wishes={"idle-timeout": "1h"})
    await run_all(cluster)
    quiet(cluster, "p", "2026-01-02T02:00:00Z")
    shell.api.fail(path="/pods", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("idle", "-o", "json")
    assert result.exit_code == 0
    assert "pods" in result.stderr
    assert '"timeout_s": null' in result.stdout
