"""``gputopo queue``: who waits, in the controller's own order."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.claims import reservation_config_map, usage_config_maps
from dradriver.api.claims.usage_config_maps import Bucket
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.installed import DRIVER_NAMESPACE, policies_map
from tests.fakes.owners import JOB_GROUP, owned

JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
POLICIES = """\
tenants:
  a: {namespaces: [a]}
  b: {namespaces: [b], weight: 2, highestPriority: 5}
queue: {aheadMinutes: 0}
"""


def full(cluster: GpuCluster) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))


def keep(cluster: GpuCluster, text: str = POLICIES, **hours_of: float) -> None:
    cluster.put(CONFIG_MAPS, policies_map(text))
    hour = int(time.time() // usage_config_maps.HOUR_S)
    rows = {Bucket(namespace, "", "", "whole"): hours * 3600 for namespace, hours in hours_of.items()}
    made = usage_config_maps.config_map(None, {hour: rows}, until=hour * 3600.0, namespace=DRIVER_NAMESPACE)
    cluster.put(CONFIG_MAPS, made)


async def waiting(shell: CommandLine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await shell.data("queue")
    return found


async def test_no_pod_waits(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    assert await waiting(shell) == []
    assert (await shell.run("queue")).stdout == "no pod waits for GPUs\n"


@pytest.mark.slow
async def test_without_tenants_it_is_priority_and_age(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    cluster.pod("old", 2)
    cluster.pod("new", 4, namespace="b")
    cluster.pod("urgent", 1, priority=7)
    await run_all(cluster)
    found = await waiting(shell)
    assert [(one["position"], one["name"], one["priority"]) for one in found] == [
        (1, "default/urgent", 7),
        (2, "default/old", 0),
        (3, "b/new", 0),
    ]
    assert all(one["tenant"] == "" and "free" in one["reason"] for one in found)
    assert [one["gpus"] for one in found] == [1, 2, 4]


async def test_with_tenants_it_is_what_they_have_had_for_their_weights(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    keep(cluster, a=3.0, b=4.0)
    cluster.pod("first", 2, namespace="a")
    cluster.pod("second", 2, namespace="b")
    cluster.pod("urgent", 2, namespace="b", priority=100)
    cluster.pod("third", 2, namespace="c")
    await run_all(cluster)
    found = await waiting(shell)
    assert [one["name"] for one in found] == ["b/urgent", "c/third", "b/second", "a/first"]
    assert [one["priority"] for one in found] == [5, 0, 0, 0], "no more than its tenant is trusted with"
    assert [one["tenant"] for one in found] == ["b", "namespace/c", "b", "a"]
    assert found[3]["fair_share_use"] > found[2]["fair_share_use"] > found[1]["fair_share_use"] == 0
    assert [one["gpu_hours"] for one in found] == pytest.approx([4, 0, 4, 3], abs=0.05), "by no weight"


async def test_of_one_namespace_positions_are_those_among_all(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    cluster.pod("first", 2, namespace="a")
    cluster.pod("second", 2, namespace="b")
    await run_all(cluster)
    (found,) = await shell.data("queue", "-n", "b")
    assert (found["position"], found["name"], found["namespace"]) == (2, "b/second", "b")
    assert [one["name"] for one in await shell.data("queue", "-A")] == ["a/first", "b/second"]
    assert (await shell.run("queue", "-A", "-n", "a")).exit_code == 2


async def test_who_may_not_read_the_drivers_namespace_is_told_and_sees_the_rest(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    full(cluster)
    cluster.pod("p", 2)
    await run_all(cluster)
    shell.api.fail(path="/configmaps", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("queue", "-o", "json")
    assert result.exit_code == 0
    assert "configmaps" in result.stderr
    assert "default/p" in result.stdout


async def test_damaged_ones_are_told_of_and_the_rest_counts(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    keep(cluster, "tenants: 7", a=1.0)
    cluster.put(
        CONFIG_MAPS, {"metadata": {"name": usage_config_maps.name_of(1), "namespace": DRIVER_NAMESPACE}, "data": None}
    )
    cluster.pod("p", 2)
    await run_all(cluster)
    result = await shell.run("queue", "-o", "json")
    assert result.exit_code == 0
    assert "tenants" in result.stderr
    assert "has no readable GPU usage" in result.stderr


async def test_explain_tells_the_turn_among_tenants(cluster: GpuCluster, shell: CommandLine, tmp_path: Any) -> None:
    full(cluster)
    keep(cluster, a=3.0, b=1.0)
    cluster.pod("first", 2, namespace="a")
    cluster.pod("second", 2, namespace="b")
    await run_all(cluster)
    file = tmp_path / "policies.yaml"
    file.write_text(POLICIES)
    shown = await shell.run("explain", "first", "-n", "a", "--policies", str(file))
    assert "position 2 of 2 waiting pods and gangs now, by priority (0)" in shown.stdout
    assert "then by fair-share use (tenant a: 3x), then by age" in shown.stdout, (
        "of three tenants' weights, 1, 2 and 1, it has one"
    )
    assert "directly before it: b/second" in shown.stdout
    assert cluster.find(RESOURCE_CLAIMS, claim_of("first"), "a") is None
    pod = cluster.find(PODS, "first", "a")
    assert pod is not None
    assert names.REASON in pod["metadata"]["annotations"]


async def test_a_gang_that_gathers_its_pods_is_listed_without_a_position(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    full(cluster)
    for number in range(2):
        cluster.pod(f"train-{number}", 2, wishes={"gang": "train", "gang-size": "3"})
    cluster.pod("alone", 2)
    await run_all(cluster)
    found = await waiting(shell)
    assert [(one["name"], one["state"], one["position"], one["pods"], one["needed_pods"]) for one in found] == [
        ("default/alone", "waiting", 1, 1, 1),
        ("default/gang/train", "gathering", None, 2, 3),
    ]
    assert found[1]["reason"] == "Waiting for more pods of the gang: 2 of 3 pods exist."
    shown = (await shell.run("queue")).stdout
    assert "gathering  default/gang/train  2 of 3" in shown
    assert "gathering: a gang gets its position when enough of its pods exist." in shown
    cluster.pod("train-2", 2, wishes={"gang": "train", "gang-size": "3"})
    await run_all(cluster)
    assert [(one["name"], one["position"]) for one in await waiting(shell)] == [
        ("default/alone", 1),
        ("default/gang/train", 2),
    ]


def put_job(cluster: GpuCluster, parallelism: int) -> None:
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default"}, "spec": {"parallelism": parallelism}})


def of_job(cluster: GpuCluster, *pods: str) -> None:
    """Create pods of the Job ``train``, whose author requests a gang without its size."""
    job = cluster.find(JOBS, "train", "default")
    assert job is not None
    for name in pods:
        cluster.pod(name, 2, wishes={"gang": "auto"})
        pod = cluster.get_pod(name)
        pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train", job["metadata"]["uid"])
        cluster.put(PODS, pod)


async def test_the_size_of_a_gang_is_read_from_the_job_of_its_pods(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    put_job(cluster, 3)
    shell.api.optional = {JOBS}
    of_job(cluster, "train-0", "train-1")
    cluster.pod("alone", 2)
    gang = ("default/job/train", "gathering", None, 2, 3)
    assert [
        (one["name"], one["state"], one["position"], one["pods"], one["needed_pods"]) for one in await waiting(shell)
    ] == [("default/alone", "waiting", 1, 1, 1), gang]
    assert (await shell.data("explain", "alone"))["queue"]["waiting"] == 1, "explain counts the same workloads"
    of_job(cluster, "train-2")
    assert [(one["name"], one["position"]) for one in await waiting(shell)] == [
        ("default/alone", 1),
        ("default/job/train", 2),
    ]


async def test_a_job_with_one_pod_at_a_time_makes_a_complete_gang(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    put_job(cluster, 1)
    shell.api.optional = {JOBS}
    of_job(cluster, "train-0")
    assert [(one["name"], one["state"], one["position"]) for one in await waiting(shell)] == [
        ("default/job/train", "waiting", 1)
    ]


async def test_a_gang_has_no_position_while_its_size_is_not_known(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    put_job(cluster, 3)
    shell.api.optional = {JOBS}
    shell.api.fail(path="/jobs/train", status=403, reason="Forbidden", message="no", times=math.inf)
    of_job(cluster, "train-0", "train-1")
    cluster.pod("alone", 2)
    found = await waiting(shell)
    assert [(one["name"], one["state"], one["position"], one["pods"], one["needed_pods"]) for one in found] == [
        ("default/alone", "waiting", 1, 1, 1),
        ("default/job/train", "unknown", None, 2, None),
    ]
    shown = (await shell.run("queue")).stdout
    assert "size unknown  default/job/train     2" in shown
    assert "size unknown: it is not known how many pods the gang has. gputopo explain NAME says why." in shown
    explained = (await shell.data("explain", "job/train"))["reason"]
    assert (
        "you may not read 'Job train', which says how many pods the gang has. Ask for the verb get on jobs.batch"
        in (explained)
    )


def in_group(cluster: GpuCluster, pod: str, group: str, policy: dict[str, Any]) -> None:
    """Create a pod of the Job ``train``, which is in a PodGroup, and the PodGroup."""
    cluster.put(GROUPS, {"metadata": {"name": group, "namespace": "default"}, "spec": {"schedulingPolicy": policy}})
    admitted = cluster.admitted(pod, 2)
    admitted["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train")
    admitted["spec"]["schedulingGroup"] = {"podGroupName": group}
    cluster.put(PODS, admitted)


async def test_pods_without_gpus_count_for_the_size_of_a_pod_group(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    shell.api.optional = {GROUPS}
    in_group(cluster, "train-0", "train", {"gang": {"minCount": 2}})
    assert [(one["state"], one["pods"], one["needed_pods"]) for one in await waiting(shell)] == [("gathering", 1, 2)]
    launcher = {"schedulingGroup": {"podGroupName": "train"}, "containers": [{"name": "main"}]}
    cluster.put(PODS, {"metadata": {"name": "launcher", "namespace": "default"}, "spec": launcher})
    assert [(one["name"], one["state"], one["position"]) for one in await waiting(shell)] == [
        ("default/podgroup/train", "waiting", 1)
    ]


async def test_pods_whose_pod_group_makes_no_gang_have_a_position_each(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    shell.api.optional = {GROUPS}
    for number in range(2):
        in_group(cluster, f"train-{number}", JOB_GROUP, {"basic": {}})
    assert [(one["name"], one["state"], one["position"]) for one in await waiting(shell)] == [
        ("default/train-0", "waiting", 1),
        ("default/train-1", "waiting", 2),
    ]


async def test_what_a_cap_never_allows_has_no_position(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    keep(cluster, "tenants: {a: {namespaces: [a], cap: [{gpus: 2}]}}")
    cluster.pod("large", 4, namespace="a")
    for number in range(2):
        cluster.pod(f"train-{number}", 2, namespace="a", wishes={"gang": "train", "gang-size": "2"})
    cluster.pod("small", 2, namespace="a")
    await run_all(cluster)
    found = await waiting(shell)
    assert [(one["name"], one["state"], one["position"]) for one in found] == [
        ("a/small", "waiting", 1),
        ("a/large", "refused", None),
        ("a/gang/train", "refused", None),
    ]
    shown = (await shell.run("queue")).stdout
    assert "never  a/large " in shown
    assert "never: the tenant's cap is smaller than the request." in shown
    explained = await shell.data("explain", "a/large")
    assert (explained["queue"], explained["reason"], explained["quota_help"]) == (
        None,
        'Refused by quota: tenant "a" may use 2 GPUs, this pod requests 4.',
        'Request at most 2 GPUs, or ask an administrator to raise the cap of tenant "a" to at least 4 GPUs.',
    )
    assert (await shell.data("explain", "a/small"))["queue"]["waiting"] == 1


def reserve(cluster: GpuCluster, pod: str, *indices: int, expected_at: float | None = None) -> None:
    """Write that GPUs of node n1 are reserved for a pod."""
    uid = cluster.get_pod(pod)["metadata"]["uid"]
    devices = [resource_slices.device_name(cluster.machines["n1"].gpus[index].uuid) for index in indices]
    kept = reservation_config_map.Kept(
        who=f"default/{pod}/{uid}", gpus={"n1": devices}, expected_at=expected_at, endless=["b/notebook"], counted_at=1
    )
    cluster.put(CONFIG_MAPS, reservation_config_map.config_map([kept], [], namespace=DRIVER_NAMESPACE))


async def test_it_says_how_many_gpus_are_reserved_for_whom(cluster: GpuCluster, shell: CommandLine) -> None:
    full(cluster)
    cluster.pod("old", 8)
    cluster.pod("new", 4)
    reserve(cluster, "old", *range(8))
    await run_all(cluster)
    assert [(one["name"], one["reserved"]) for one in await waiting(shell)] == [("default/old", 8), ("default/new", 0)]
    assert "RESERVED" in (await shell.run("queue")).stdout


async def test_explain_knows_what_is_reserved_and_that_no_other_gets_it(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.rival("busy", "n1", range(4))
    cluster.pod("old", 8)
    cluster.pod("new", 4)
    cluster.pod("short", 4, activeDeadlineSeconds=60)
    reserve(cluster, "old", *range(8), expected_at=time.time() + 3600)
    found = await shell.data("explain", "old")
    assert found["queue"]["reserved"].startswith("8 GPUs on n1 are reserved for this workload")
    assert (await shell.data("explain", "new"))["place"] is None
    assert (await shell.data("explain", "short"))["place"]["node"] == "n1"
    reserve(cluster, "new", *range(8))
    assert (await shell.data("explain", "new"))["place"]["node"] == "n1"
