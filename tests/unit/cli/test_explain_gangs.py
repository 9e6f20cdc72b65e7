"""``gputopo explain`` of a pod that is one of many: who is there, how far they are, and what all of them lack."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.pods import Pod
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import explain_document, workload_reader
from dradriver.cluster.records import pod_records
from dradriver.kube.client import Client
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.control_plane.scheduler import Scheduler
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.owners import owned
from tests.unit.cli.test_explain import end

JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
LEAF = "network.topology.nvidia.com/leaf"


def gang(cluster: GpuCluster, size: int | str, there: int, **words: str) -> list[str]:
    """Create pods of a gang of 8 GPUs each."""
    pods = [f"train-{number}" for number in range(there)]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": str(size), **words})
    return pods


def seat(cluster: GpuCluster, name: str) -> None:
    """Let the scheduler give a pod its GPUs and its seat, and not bind it."""

    def take(claim: dict[str, Any]) -> None:
        result = {
            "request": "seat",
            "driver": names.DRIVER,
            "pool": names.SEAT_POOL,
            "device": gang_barrier_device.DEVICE,
        }
        claim["status"]["allocation"]["devices"]["results"].append(result | {"shareID": name})

    scheduler, pod = Scheduler(cluster.store), cluster.get_pod(name)
    place = scheduler.place(pod, scheduler.claims(pod) or [])
    assert place is not None
    for claim, found in place.given:
        assert scheduler.give(pod, claim, found)
    cluster.store.edit(RESOURCE_CLAIMS, ("default", claim_of(name)), take)


async def test_members_here_and_missing(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    gang(cluster, 3, there=2, near="leaf")
    await cluster.settle()
    found = await shell.data("explain train-1")
    assert found["request_text"] == "8 GPUs; in gang train of 3 pods, near leaf"
    assert found["reason"] == found["recorded_reason"] == "Waiting for more pods of the gang: 2 of 3 pods exist."
    whole = found["gang"]
    assert (whole["name"], whole["made_by"], whole["state"]) == ("train", "gang", "gathering")
    assert (whole["existing_pods"], whole["min_pods"], whole["max_pods"]) == (2, 3, 3)
    assert [(pod["pod"], pod["state"]) for pod in whole["pods"]] == [("train-0", "gated"), ("train-1", "gated")]
    said = (await shell.run("explain", "train-0")).stdout
    assert "train, named by its author" in said
    assert "2 of 3 exist" in said


async def test_a_first_pod_that_is_not_needed_and_cannot_be_read_says_nothing_of_the_others(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    claims = [{"name": "gpus", "resourceClaimName": claim_of("train-0")}]
    words = {"gang": "train", "gang-size": "2"}
    cluster.pod("train-0", 1, wishes=words | {"template": "gpus/all"}, resourceClaims=claims)
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.topology", "allocationMode": "All"}}
    template = {
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template)
    for name in ("train-1", "train-2"):
        cluster.pod(name, 8, wishes=words)
    found = await shell.data("explain train-1")
    assert found["reason"].startswith("Waiting for 2 pods with 8 GPUs each: ")
    assert found["gang"]["room"] == [{"level": "cluster", "pods": 1, "domain": ""}]


async def test_a_gang_of_a_range_may_start_before_all_are_there(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(3):
        cluster.node(f"n{number}")
    gang(cluster, "2-4", there=3)
    found = await shell.data("explain train-1")
    assert (found["gang"]["state"], found["gang"]["min_pods"], found["gang"]["max_pods"]) == ("waiting", 2, 4)
    assert found["reason"] == "There are places for 3 pods of the gang now."
    assert "3 of 4 exist, 2 are enough to start" in (await shell.run("explain", "train-1")).stdout


async def test_a_pod_without_its_volume_that_is_not_needed_is_left_out(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(3):
        cluster.node(f"n{number}")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}
    cluster.pod("train-9", 8, wishes={"gang": "train", "gang-size": "3"}, volumes=[volume])
    gang(cluster, 3, there=2)
    found = await shell.data("explain train-1")
    assert (
        found["reason"]
        == "Waiting for PersistentVolumeClaim 'absent', which does not exist. Create it in the pod's namespace."
    )
    gang(cluster, 3, there=3)
    found = await shell.data("explain train-1")
    assert found["reason"] == "There are places for 3 pods of the gang now."


async def test_a_gang_of_unknown_size(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("train-0", 8, wishes={"gang": "train"})
    await cluster.settle()
    found = await shell.data("explain train-0")
    assert found["reason"] == found["recorded_reason"]
    assert found["reason"].startswith("gpu.topology/gang-size is missing. ")
    assert (found["gang"]["state"], found["gang"]["max_pods"]) == ("unknown", None)
    assert "1 pod exists, the size of the gang is not known" in (await shell.run("explain", "train-0")).stdout


async def test_the_size_is_read_from_what_made_the_pods(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("train-0", 8, wishes={"gang": "auto"})
    pod = cluster.get_pod("train-0")
    pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train", "job")
    cluster.put(PODS, pod)
    reason = (await shell.data("explain train-0"))["reason"]
    assert "Job train" in reason
    assert "the size of the gang as gpu.topology/gang-size" in reason
    shell.api.optional = {JOBS}
    job = {"metadata": {"name": "train", "namespace": "default", "uid": "job"}}
    cluster.put(JOBS, job | {"spec": {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}})
    uid = cluster.find(JOBS, "train", "default") or {}
    pod["metadata"]["ownerReferences"][0]["uid"] = uid["metadata"]["uid"]
    cluster.put(PODS, pod)
    found = await shell.data("explain train-0")
    assert found["reason"] == "Waiting for more pods of the gang: 1 of 4 pods exist."
    assert (found["gang"]["name"], found["gang"]["made_by"]) == ("train", "Job")
    job["metadata"]["uid"] = uid["metadata"]["uid"]
    cluster.put(JOBS, job | {"spec": {"parallelism": 1, "completions": 4}})
    found = await shell.data("explain train-0")
    assert (found["gang"]["state"], found["gang"]["nodes"]) == ("waiting", ["n1"]), "its author says that it is one"


async def test_a_pod_that_asks_for_a_gang_and_is_in_none(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("train-0", 8, wishes={"gang": "auto"})
    await cluster.settle()
    found = await shell.data("explain train-0")
    assert found["reason"] == found["recorded_reason"]
    assert "It is not known which pods belong to the gang" in found["reason"]
    assert found["gang"] is None


@pytest.mark.slow
async def test_what_would_help_the_whole_gang_does(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(4):
        cluster.node(f"n{number}", labels={LEAF: f"l{number // 2}"})
    cluster.pod("notebook", 2, namespace="team-b")
    cluster.pod("big", 8)
    await run_all(cluster)
    gang(cluster, 3, there=3)
    await cluster.settle()
    found = await shell.data("explain train-1")
    assert (
        found["reason"] == "Waiting for 3 pods with 8 GPUs each: eligible nodes have no place for all of them at once."
    )
    assert found["nearest"] == "The whole cluster has room for 2 of them."
    assert cluster.note("train-1", "reason") == found["reason"]
    assert [(one["level"], one["pods"]) for one in found["gang"]["room"]] == [("leaf", 2), ("cluster", 2)]
    ways = [[(one["node"], one["owners"][0]["pods"]) for one in way] for way in found["gang"]["would_help"]]
    assert sorted(pods for ((_, pods),) in ways) == [["big"], ["notebook"]]
    assert ways[0][0][1] == ["notebook"], "the fewest GPUs first"
    shown = (await shell.run("explain", "train-1")).stdout
    assert "One of these ways is enough. All rows of a way have to end." in shown
    assert re.findall(r"^(\d of \d)  n\d ", shown, re.MULTILINE) == ["1 of 2", "2 of 2"]
    end(cluster, "notebook", "team-b")
    found = await shell.data("explain train-1")
    assert found["reason"] == "There are places for 3 pods of the gang now."
    await cluster.settle()
    assert cluster.claim("train-1") is not None


async def test_where_no_single_end_is_enough_all_that_have_to_end_are_named(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for number in range(3):
        cluster.node(f"n{number}")
        cluster.rival(f"old-{number}", f"n{number}", [number])
    gang(cluster, 2, there=2)
    await cluster.settle()
    found = await shell.data("explain train-0")
    (way,) = found["gang"]["would_help"]
    assert [owner["claim"] for one in way for owner in one["owners"]] == ["old-0", "old-1"]
    shown = (await shell.run("explain", "train-0")).stdout
    assert re.findall(r"^(\d of \d)  n\d ", shown, re.MULTILINE) == ["1 of 1", "1 of 1"]
    assert "One of these ways" not in shown
    cluster.node("n2", unschedulable=True)
    gang(cluster, 4, there=4)
    assert (await shell.data("explain train-0"))["gang"]["would_help"] == [], "the ends of all would not be enough"


async def test_a_pod_of_a_gang_has_no_better_set_of_its_own(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(2):
        cluster.node(f"n{number}")
    gang(cluster, 2, there=2)
    await run_all(cluster)
    cluster.node("n2", "dgx-h100")
    found = await shell.data("explain train-0")
    assert (found["better_sets"], found["better_set_free"]) == ([], None)


async def test_another_gang_ends_as_a_whole(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(2):
        cluster.node(f"n{number}")
    for number in range(2):
        cluster.pod(f"other-{number}", 8, wishes={"gang": "other", "gang-size": "2"})
    await run_all(cluster)
    cluster.pod("train-0", 8, wishes={"gang": "train", "gang-size": "1"})
    await cluster.settle()
    (way,) = (await shell.data("explain train-0"))["gang"]["would_help"]
    assert sorted(one["owners"][0]["pods"][0] for one in way) == ["other-0", "other-1"]


@pytest.mark.slow
async def test_the_users_of_gpus_are_named_with_the_gang_that_has_to_end(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for number in range(2):
        cluster.node(f"n{number}")
        pod = cluster.admitted(f"six-{number}", 8, wishes={"gang": "six", "gang-size": "2"})
        if number:
            pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "one-of-two")
        cluster.put(PODS, pod)
    await run_all(cluster)
    cluster.pod("next", 4)
    cluster.pod("train-0", 8, wishes={"gang": "train", "gang-size": "1"})
    await cluster.settle()
    alone, gang_of_one = await shell.data("explain next"), await shell.data("explain train-0")
    (way,) = gang_of_one["gang"]["would_help"]
    for helps in (alone["would_help"], way):
        owners = sorted((owner for each in helps for owner in each["owners"]), key=lambda owner: owner["pods"])
        assert [(owner["workloads"], owner["pods"]) for owner in owners] == [
            (["default/gang/six"], ["six-0"]),
            (["default/gang/six"], ["six-1"]),
        ], "the name that explain takes, and not the owner of one of the pods"
        assert owners[0]["text"].startswith("used by default/gang/six (default/six-0), for ")
    for pod_name in ("next", "train-0"):
        assert explain_document.END_THE_OWNER in (await shell.run("explain", pod_name)).stdout
    assert (await shell.data("explain default/gang/six"))["pod"] == "six-0"


async def test_a_gang_that_the_scheduler_refused_is_told_so_in_addition_to_its_places(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for number in range(2):
        cluster.node(f"n{number}")
    pods = gang(cluster, 2, there=2)
    await cluster.settle()
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available: x.",
    }
    pod = cluster.get_pod("train-0")
    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [said]}})
    for name in pods:
        cluster.remove(RESOURCE_CLAIMS, f"gpus-{name}", "default")
    cluster.deliver()
    assert (await shell.data("explain train-1"))["reason"] == (
        "The scheduler finds no room for pod train-0 on its nodes: x. There are places for 2 pods of the gang now."
    )


@pytest.mark.slow
async def test_how_far_a_gang_is(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(2):
        cluster.node(f"n{number}", labels={LEAF: "l"})
    pods = gang(cluster, 2, there=2)
    would = await shell.data("explain train-1")
    await cluster.settle()
    found = await shell.data("explain train-1")
    whole = found["gang"]
    assert (whole["state"], whole["network_level"], whole["nodes"]) == ("ungated", "leaf", ["n0", "n1"])
    assert would["gang"] == whole | {
        "state": "waiting",
        "pods": [one | {"state": "gated"} for one in whole["pods"]],
    }, "what was foretold is what it got"
    assert (would["place"], whole["rank_hint"]) == (found["place"], 1)
    assert found["reason"].startswith("0 of 2 pods of the gang have a place")
    seat(cluster, "train-0")
    found = await shell.data("explain train-1")
    assert (found["gang"]["state"], found["gang"]["allocated_pods"]) == ("ungated", 1)
    assert found["reason"].startswith("1 of 2 pods of the gang have a place")
    said = (await shell.run("explain", "train-1")).stdout
    assert "ungated: 1 of 2 are allocated, 0 are bound" in said
    assert "2 nodes of one leaf" in said
    seat(cluster, "train-1")
    found = await shell.data("explain train-1")
    assert (found["gang"]["state"], found["gang"]["allocated_pods"]) == ("allocated", 2)
    assert found["reason"] == "All pods of the gang have a place. The controller is about to let them be bound."
    assert [pod["state"] for pod in found["gang"]["pods"]] == ["allocated"] * len(pods)


async def test_a_gang_that_runs_and_one_who_comes_later(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(4):
        cluster.node(f"n{number}", labels={LEAF: f"l{number // 2}"})
    gang(cluster, 2, there=2)
    await run_all(cluster)
    found = await shell.data("explain train-0")
    assert (found["state"], found["gang"]["state"], found["gang"]["bound_pods"]) == ("placed", "started", 2)
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    await cluster.settle()
    cluster.pod("train-1b", 8, wishes={"gang": "train", "gang-size": "2"})
    found = await shell.data("explain train-1b")
    lost = next(node for node in ("n0", "n1", "n2", "n3") if node not in found["gang"]["nodes"])
    assert lost
    assert found["reason"] == f"There is a place for the pod on {found['place']['node']} now."
    await cluster.settle()
    assert cluster.gpus("train-1b")[0] == found["place"]["node"]


async def test_one_who_comes_later_to_a_gang_of_two_templates(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n0", "hgx-h100")
    for number, count in enumerate((1, 2)):
        exactly = {"deviceClassName": "gpu.topology", "count": count}
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
        cluster.put(
            RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": f"t{number}", "namespace": "default"}, "spec": spec}
        )

    def member(number: int) -> None:
        claims = [{"name": "gpus", "resourceClaimName": claim_of(f"train-{number}")}]
        wishes = {"gang": "train", "gang-size": "2", "template": f"gpus/t{number}"}
        cluster.pod(f"train-{number}", 1, wishes=wishes, resourceClaims=claims)

    for number in range(2):
        member(number)
    await run_all(cluster)
    cluster.remove(PODS, "train-1", "default")
    cluster.collect()
    await cluster.settle()
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t0", "default")
    member(1)
    assert (await shell.data("explain train-1"))["reason"] == "There is a place for the pod on n0 now."
    await cluster.settle()
    assert len(cluster.gpus("train-1")[1]) == 2


async def test_a_gang_has_one_turn(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    gang(cluster, 2, there=2)
    cluster.pod("next", 4)
    await cluster.settle()
    assert (await shell.data("explain next"))["queue"] == {
        "position": 2, "waiting": 2, "alike": 0, "before": ["default/gang/train"],
            "tenant": "", "priority": 0, "fair_share_use": None, "reserved": "",
    }  # fmt: skip
    assert (await shell.data("explain train-1"))["queue"]["position"] == 1


async def test_nodes_that_are_left_out_say_why(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.node("closed", unschedulable=True)
    gang(cluster, 2, there=2)
    await cluster.settle()
    found = await shell.data("explain train-0")
    assert {one["node"]: one["causes"] for one in found["would_help"]} == {"closed": ["cordoned"]}


async def test_who_may_not_read_what_made_the_pods_is_told_that_it_is_his_own_right(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    pod = cluster.admitted("train-0", 8, wishes={"gang": "auto"})
    pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train", "job")
    cluster.put(PODS, pod)
    shell.api.optional = {JOBS}
    shell.api.fail(path="/jobs/train", status=403, reason="Forbidden", message="no", times=math.inf)
    assert (await shell.data("explain train-0"))["reason"] == (
        "you may not read 'Job train', which says how many pods the gang has. Ask for the verb get on jobs.batch."
    )


async def test_pods_of_a_pod_group_without_gpus_are_counted(cluster: GpuCluster, shell: CommandLine) -> None:
    group = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
    cluster.node("n1")
    shell.api.optional = {group}
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    cluster.put(group, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
    pod = cluster.admitted("train-0", 8)
    pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    cluster.put(PODS, pod)
    launcher = {"schedulingGroup": {"podGroupName": "train"}, "containers": [{"name": "main"}]}
    cluster.put(PODS, {"metadata": {"name": "launcher", "namespace": "default"}, "spec": launcher})
    found = await shell.data("explain train-0")
    assert found["reason"] == "Waiting for more pods of the gang: 1 of 2 pods exist, and 1 need no GPUs."


async def test_a_lost_pods_place_is_explained_as_that_of_the_pod_that_replaces_it(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for name in "ab":
        cluster.node(name)
    gang(cluster, 2, there=2)
    await run_all(cluster)
    lost = cluster.gpus("train-0")
    async with Client(shell.api.config, user_agent="test") as client:
        scene = Scene(client, shell.api.config)
        await scene.read()
        cluster.remove(PODS, "train-0", "default")
        cluster.collect()
        scene.take(PODS, ("default", "train-0"), None)
        scene.take(RESOURCE_CLAIMS, ("default", claim_of("train-0")), None)
        cluster.pod("train-0b", 8, wishes={"gang": "train", "gang-size": "2"})
        pod = pod_records.read(msgspec.Raw(msgspec.json.encode(cluster.get_pod("train-0b"))))
        assert isinstance(pod, Pod)
        scene.take(PODS, ("default", "train-0b"), pod)
        scene.settle()
        workload = await workload_reader.read(scene, pod, await workload_reader.read_gang(scene, pod))
        explained = await workload.verdict()
    assert explained.place is not None
    assert (explained.place.node, list(explained.place.gpus)) == lost
    await cluster.settle()
    assert cluster.gpus("train-0b") == lost


@pytest.mark.slow
async def test_gangs_before_it_that_ask_for_the_same_are_counted(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))

    def waits(name: str, pods: int, gpus: int = 8, **words: str) -> None:
        for number in range(pods):
            cluster.pod(f"{name}-{number}", gpus, wishes={"gang": name, "gang-size": str(pods), **words})

    waits("first", 2)
    waits("more", 3)
    waits("smaller", 2, gpus=4)
    waits("near", 2, near="leaf")
    cluster.pod("alone", 8)
    waits("second", 2)
    waits("third", 2, 8, **{"on-member-loss": "restart"})
    await cluster.settle()
    alike = {name: (await shell.data(f"explain {name}-1"))["queue"]["alike"] for name in ("first", "second", "third")}
    assert alike == {"first": 0, "second": 1, "third": 2}
    assert (await shell.data("explain near-0"))["queue"]["alike"] == 0
    said = (await shell.run("explain", "third-0")).stdout
    assert "position 7 of 7 waiting pods and gangs now, by age; 2 before it request the same" in said
