"""``gputopo explain``: the controller's own decision about a pod, and what would change it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dradriver.allocator.request import Amount, Level
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.cli.explainer import explain_document
from dradriver.cli.explainer.model import Place, Verdict
from dradriver.cli.main import main
from dradriver.kube.client import ApiError
from dradriver.kube.resources import (
    EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dradriver.view.document import Table
from tests.fakes import domains
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.owners import owned
from tests.paths import REPO
from tests.unit.cli.test_lost_gpus import lose


def end(cluster: GpuCluster, pod: str, namespace: str = "default") -> None:
    """Delete a pod and, as Kubernetes does then, its claim."""
    cluster.remove(PODS, pod, namespace)
    claim = cluster.find(RESOURCE_CLAIMS, f"gpus-{pod}", namespace)
    assert claim is not None
    claim["metadata"]["finalizers"] = []
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {}})
    cluster.remove(RESOURCE_CLAIMS, f"gpus-{pod}", namespace)


def event(cluster: GpuCluster, reason: str, message: str, **changes: Any) -> None:
    uid = cluster.get_pod("next")["metadata"]["uid"]
    cluster.put(
        EVENTS,
        {
            "metadata": {"name": f"next.{reason.lower()}", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "uid": uid},
            "reason": reason,
            "message": message,
            "lastTimestamp": "2026-01-01T00:01:00Z",
        }
        | changes,
    )


async def test_a_pod_that_waits_is_told_who_holds_what_it_wants(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.node("n2")
    cluster.pod("big", 8)
    await run_all(cluster)
    cluster.pod("notebook", 2, namespace="team-b")
    cluster.pod("trainer", 4)
    await run_all(cluster)
    cluster.pod("next", 4, wishes={"required": "nvlink"})
    await cluster.settle()
    found = await shell.data("explain next")
    assert (found["state"], found["request_text"]) == ("waits", "4 GPUs with nvlink")
    assert found["reason"] == found["recorded_reason"] == cluster.note("next", "reason")
    assert "no eligible node has such a free set" in found["reason"]
    assert found["free"]["best"] == [
        {
            "node": "n2",
            "product": "Tesla V100-SXM2-32GB",
            "gpus": 8,
            "free": found["free"]["best"][0]["free"],
            "largest": 2,
        }
    ]
    first, *others = found["would_help"]
    assert first["node"] == "n2"
    assert [(o["namespace"], o["pods"], len(o["gpus"])) for o in first["owners"]] == [("team-b", ["notebook"], 2)]
    assert first["owners"][0]["text"].startswith("used by team-b/notebook, for ")
    assert [(one["node"], one["owners"][0]["pods"]) for one in others] == [("n1", ["big"])]
    # What it says would help does help.
    end(cluster, "notebook", "team-b")
    await cluster.settle()
    assert cluster.gpus("next") == ("n2", first["gpus"])


async def test_nodes_that_fit_and_nodes_that_could_have_the_set_are_counted_apart(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("four", "a100-x4-mesh")
    cluster.node("eight", "dgx1-v100")
    cluster.node("without-nvlink", "rtx4090-x8")
    cluster.node("tainted", "dgx1-v100", taints=[{"key": "team", "effect": "NoSchedule"}])
    cluster.rival("busy", "eight", range(1))
    cluster.pod("next", 8, wishes={"required": "nvlink"})
    await cluster.settle()
    free = (await shell.data("explain next"))["free"]
    assert {key: free[key] for key in ("nodes", "eligible", "could_have", "requested_set", "gpus")} == {
        "nodes": 4, "eligible": 3, "could_have": 1, "requested_set": "8 GPUs with nvlink", "gpus": 19,
    }  # fmt: skip
    lines = (await shell.run("explain next")).stdout.splitlines()
    assert lines[lines.index("Free GPUs") + 2 :][:3] == [
        "3 of 4 nodes with GPUs fit the pod's node selector, affinity, tolerations and resources.",
        "1 of them could have 8 GPUs with nvlink if all GPUs were free.",
        "On nodes that fit, 19 suitable GPUs are free.",
    ]


async def test_a_set_that_no_node_can_have_is_counted_as_the_controller_decides(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("four", "a100-x4-mesh")
    cluster.pod("next", 8)
    cluster.pod("picky", 8, nodeSelector={"zone": "none"})
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason")
    assert "no node of this cluster has such a set, even if all its GPUs are free" in found["reason"]
    assert (found["free"]["eligible"], found["free"]["could_have"]) == (1, 0)
    shown = (await shell.run("explain picky")).stdout
    assert "0 of 1 node with GPUs fit the pod's" in shown
    assert "could have" not in shown


async def test_holders_that_do_not_run_are_named_as_such(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("stuck", 8)
    await run_all(cluster)
    cluster.pod("next", 4)
    await cluster.settle()
    for phase, says in (("Running", ""), ("Pending", ", bound and not running"), ("Failed", ", failed, the claim")):
        cluster.put(PODS, cluster.get_pod("stuck") | {"status": {"phase": phase}})
        (owner,) = (await shell.data("explain next"))["would_help"][0]["owners"]
        assert (says in owner["text"]) if says else owner["text"].endswith(" s")
    cluster.remove(PODS, "stuck", "default")
    claim = cluster.find(RESOURCE_CLAIMS, "gpus-stuck", "default") or {}
    claim["status"]["reservedFor"] = []
    cluster.put(RESOURCE_CLAIMS, claim)
    (owner,) = (await shell.data("explain next"))["would_help"][0]["owners"]
    assert "default/gpus-stuck, a claim that no pod uses" in owner["text"]


async def test_holders_are_named_with_the_owner_that_replaces_their_pods(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.pod("alone", 2)
    pod = cluster.admitted("web-5d8f-x", 6)
    pod["metadata"]["labels"]["pod-template-hash"] = "5d8f"
    pod["metadata"]["ownerReferences"] = owned("apps/v1", "ReplicaSet", "web-5d8f")
    cluster.put(PODS, pod)
    await run_all(cluster)
    cluster.pod("next", 8)
    await cluster.settle()
    web, alone = (await shell.data("explain next"))["would_help"][0]["owners"]
    assert (web["workloads"], alone["workloads"]) == (["default/deployment/web"], [])
    assert web["text"].startswith("used by default/deployment/web (default/web-5d8f-x), for ")
    assert alone["text"].startswith("used by default/alone, for ")
    shown = (await shell.run("explain", "next")).stdout
    assert shown.index(explain_document.END_THE_OWNER) < shown.index("BLOCKED BY")
    end(cluster, "web-5d8f-x")
    shown = (await shell.run("explain", "next")).stdout
    assert "used by default/alone, for " in shown
    assert explain_document.END_THE_OWNER not in shown, "a pod without an owner is not replaced"


async def test_its_turn_is_the_controllers_order(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("big", 8)
    await run_all(cluster)
    for name in ("one", "two", "three"):
        cluster.pod(name, 8 if name == "two" else 4)
    cluster.pod("held", 4, schedulingGates=[{"name": names.GATE}, {"name": "example.com/other"}])
    cluster.pod("next", 4)
    cluster.pod("later", 4)
    await cluster.settle()
    turn = (await shell.data("explain next"))["queue"]
    before = ["default/one", "default/two", "default/three"]
    place = {"position": 4, "waiting": 5, "alike": 2, "before": before}
    assert turn == place | {"tenant": "", "priority": 0, "fair_share_use": None, "reserved": ""}
    said = (await shell.run("explain", "held")).stdout
    assert "another controller removes scheduling gate example.com/other" in said


@pytest.mark.slow
async def test_pods_are_alike_whose_volumes_are_in_the_same_place(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("big", 8)
    await run_all(cluster)
    zones = {"first": "a", "second": "b", "third": "a", "fourth": ""}
    for name, zone in zones.items():
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}}
        if zone:
            cluster.put(PERSISTENT_VOLUME_CLAIMS, {
                "metadata": {"name": f"data-{name}", "namespace": "default"},
                "spec": {"volumeName": f"volume-{name}"}, "status": {"phase": "Bound"},
            })  # fmt: skip
            labels = {"topology.kubernetes.io/zone": zone}
            cluster.put(PERSISTENT_VOLUMES, {"metadata": {"name": f"volume-{name}", "labels": labels}, "spec": {}})
        cluster.pod(name, 4, **({"volumes": [volume]} if zone else {}))
    cluster.pod("last", 4, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data-first"}}])
    await cluster.settle()
    alike = {name: (await shell.data(f"explain {name}"))["queue"]["alike"] for name in (*zones, "last")}
    assert alike == {"first": 0, "second": 0, "third": 1, "fourth": 0, "last": 2}


async def test_a_pod_with_a_place_in_its_turn_is_told_which(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 2)
    found = await shell.data("explain next")
    assert found["reason"] == "There is a place for the pod on n1 now."
    place = found["place"]
    await cluster.settle()
    assert cluster.gpus("next") == ("n1", place["gpus"])
    assert (await shell.data("explain next"))["place"] == place
    assert (await shell.data("explain next"))["state"] == "tentative"
    cluster.schedule()
    found = await shell.data("explain pod/next")
    assert (found["state"], found["node"], found["place"], found["better_sets"]) == ("placed", "n1", place, [])


async def test_a_pod_that_shares_a_set_is_told_of_those_that_have_it(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.node("n2")
    for name in ("trainer", "next"):
        cluster.pod(name, 2, wishes={"shared-claim": "duo"})
    found = await shell.data("explain next")
    assert found["request_text"] == "2 GPUs; one set with all pods that share claim duo"
    assert found["reason"] == "Waiting for pod trainer, which gets a place for the shared claim duo first."
    await run_all(cluster)
    cluster.schedule()
    found = await shell.data("explain next")
    assert (found["state"], found["place"]) == ("placed", (await shell.data("explain trainer"))["place"])

    node = cluster.get_pod("trainer")["spec"]["nodeName"]
    cluster.pod("big", 2, wishes={"shared-claim": "duo"}, requests={"cpu": "65"})
    found = await shell.data("explain big")
    assert found["reason"] == f"The shared claim duo is on node {node}, which cannot run this pod: too little cpu."
    assert (found["would_help"], found["free"]) == ([], None)
    cluster.pod("whole", 8, nodeSelector={"kubernetes.io/hostname": node})
    assert "used by default/next, trainer" in (await shell.run("explain", "whole")).stdout


async def test_better_sets_are_named_with_their_holders(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", [0, 5])
    cluster.pod("next", 4, wishes={"preferred": "nvlink"})
    await run_all(cluster)
    found = await shell.data("explain next")
    assert found["place"]["score"] < 100
    assert found["better_sets"]
    for one in found["better_sets"]:
        assert one["busbw_gbps"] > found["place"]["busbw_gbps"]
        assert [owner["claim"] for owner in one["owners"]] == ["old"]
    cluster.node("n2")
    found = await shell.data("explain next")
    assert (found["better_sets"][0]["node"], found["better_sets"][0]["owners"]) == ("n2", [])
    shown = (await shell.run("explain", "next")).stdout
    assert "free now: a pod that is created again would get it" in shown
    assert "a better one is free now. The driver does not move running pods" in shown


@pytest.mark.slow
async def test_a_set_that_is_the_best_of_its_machine_can_be_worse_than_a_free_one(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.pod("next", 4)
    await run_all(cluster)
    cluster.schedule()
    found = await shell.data("explain next")
    assert (found["place"]["score"], found["better_sets"], found["better_set_free"]) == (100, [], False)
    assert "no better one is free now" in (await shell.run("explain", "next")).stdout
    cluster.node("n2", "dgx-h100")
    found = await shell.data("explain next")
    (better,) = found["better_sets"]
    assert (better["node"], better["owners"], found["better_set_free"]) == ("n2", [], True)
    assert better["busbw_gbps"] > found["place"]["busbw_gbps"]
    cluster.rival("old", "n2", range(8))
    found = await shell.data("explain next")
    assert (found["better_sets"], found["better_set_free"]) == ([], False), "the pod has the best of its own machine"


async def test_a_single_gpu_has_no_better_set(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 1)
    await run_all(cluster)
    found = await shell.data("explain next")
    assert (found["better_sets"], found["better_set_free"]) == ([], None)


async def test_a_pod_that_uses_an_unhealthy_gpu_is_told_which(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 2)
    await run_all(cluster)
    assert (await shell.data("explain next"))["place"]["unhealthy"] == []
    (piece,) = cluster.all(RESOURCE_SLICES)
    _, gpus = cluster.gpus("next")
    uuid = cluster.machines["n1"].gpus[gpus[1]].uuid
    (device,) = [one for one in piece["spec"]["devices"] if one["name"] == resource_slices.device_name(uuid)]
    device["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
    cluster.put(RESOURCE_SLICES, piece)
    assert (await shell.data("explain next"))["place"]["unhealthy"] == [gpus[1]]
    shown = (await shell.run("explain", "next")).stdout
    assert f"GPU{gpus[1]}: gputopo health says what is wrong" in shown


async def test_the_pods_of_an_owner_with_unhealthy_gpus_are_named(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    for name in ("first", "broken", "lost"):
        pod = cluster.admitted(name, 2)
        pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train")
        cluster.put(PODS, pod)
    await run_all(cluster)
    assert (await shell.run("explain", "job/train")).stdout.startswith("Pod default/first\n")
    assert "unhealthy" not in (await shell.run("explain", "job/train")).stdout
    (_, broken), (_, lost) = cluster.gpus("broken"), cluster.gpus("lost")
    lose(cluster, "n1", lost[0])
    (piece,) = cluster.all(RESOURCE_SLICES)
    name = resource_slices.device_name(cluster.machines["n1"].gpus[broken[1]].uuid)
    (device,) = [device for device in piece["spec"]["devices"] if device["name"] == name]
    device["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
    cluster.put(RESOURCE_SLICES, piece)
    shown = (await shell.run("explain", "job/train")).stdout
    assert shown.startswith("Pod default/first\n")
    _, section = shown.split("\nOther pods with unhealthy GPUs\n")
    assert [line.split() for line in section.splitlines()[1:4]] == [
        ["POD", "NODE", "UNHEALTHY"],
        ["broken", "n1", f"GPU{broken[1]}"],
        ["lost", "n1", f"GPU{lost[0]}"],
    ]
    assert "gputopo health says what is wrong, and the repair" in section
    explained = json.loads((await shell.run("explain", "job/train", "-o", "json")).stdout)
    assert explained["unhealthy_pods"] == [
        {"pod": "broken", "node": "n1", "gpus": [broken[1]]},
        {"pod": "lost", "node": "n1", "gpus": [lost[0]]},
    ]
    assert (await shell.data("explain broken"))["unhealthy_pods"] == [], "the other pods were not asked for"


@pytest.mark.parametrize("level", Level)
def test_a_level_is_shown_with_its_meaning_as_the_glossary_has_it(level: Level) -> None:
    place = Place(node="n1", gpus=(0, 1), uuids=("a", "b"), level=level.value)
    shown = explain_document.rest(Verdict(place=place))
    (table,) = shown.sections[0].blocks
    assert isinstance(table, Table)
    texts = [cell.text for row in table.rows for cell in row]
    meaning = texts[texts.index("slowest link") + 1].removeprefix(f"{level.value}: ")
    glossary = (REPO / "docs/reference/glossary.md").read_text("utf-8")
    (row,) = [line for line in glossary.splitlines() if line.startswith(f"| `{level.value}` | `")]
    _, _, letters, words, _ = (cell.strip() for cell in row.split("|"))
    in_letters = "" if level is Level.NVLINK else f" ({letters.replace('`', '')} in nvidia-smi topo -m)"
    assert meaning == words + in_letters


async def test_bandwidth_that_is_above_a_rings_is_explained(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 4)
    await run_all(cluster)
    shown = (await shell.run("explain", "next")).stdout
    assert "80 GB/s predicted bus bandwidth (busbw)" in shown
    assert "25 GB/s in one direction, slowest step of one ring" in shown
    assert "NCCL uses several rings at once" in shown


async def test_what_was_preferred_and_not_had_is_what_would_be_better(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", [0, 2, 4, 6])  # one of each switch's two
    cluster.pod("next", 2, wishes={"preferred": "same-pcie-switch"})
    await run_all(cluster)
    found = await shell.data("explain next")
    assert found["place"]["fallback"] == ["same-pcie-switch"]
    (best,) = found["better_sets"]
    assert [(owner["claim"], len(owner["gpus"])) for owner in best["owners"]] == [("old", 1)]
    assert best["gpus"] in ([0, 1], [2, 3], [4, 5], [6, 7])


async def test_nodes_that_are_left_out_say_why(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("full", allocatable={"cpu": "4"})
    cluster.node("closed", unschedulable=True)
    cluster.put(
        PODS,
        {
            "metadata": {"name": "web", "namespace": "other", "uid": "w"},
            "spec": {"nodeName": "full", "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
            "status": {"phase": "Running"},
        },
    )
    cluster.pod("next", 4, requests={"cpu": "2"})
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason")
    assert {one["node"]: one["causes"] for one in found["would_help"]} == {
        "closed": ["cordoned"],
        "full": ["too little cpu"],
    }
    assert found["reason"].startswith("No node with GPUs can run this pod: cordoned, too little cpu")
    shown = (await shell.run("explain", "next")).stdout
    assert "but this pod cannot use them: cordoned (kubectl uncordon closed)" in shown


async def test_parts_of_gpus_are_explained_by_whose_end_makes_room(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", mode=Mode(shared="time-slicing"))
    for number in range(8):
        cluster.pod(f"half-{number}", Amount(cores=60))
    await run_all(cluster)
    cluster.pod("next", Amount(cores=50))
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["request_text"] == "a share of a GPU: 50 %"
    assert found["reason"] == cluster.note("next", "reason")
    assert ", on n1." in found["nearest"]
    assert len(found["would_help"]) == 3
    owner = found["would_help"][0]["owners"][0]
    end(cluster, owner["pods"][0])
    await cluster.settle()
    assert (await shell.data("explain next"))["state"] == "tentative"


async def test_a_pod_that_is_not_ours_is_told_what_it_lacks(cluster: GpuCluster, shell: CommandLine) -> None:
    def pod(name: str, annotations: dict[str, str], **spec: Any) -> None:
        container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
        spec = {"containers": [container]} | spec
        cluster.put(
            PODS, {"metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": spec}
        )

    pod("plain", {})
    found = await shell.data("explain plain")
    assert (found["state"], found["reason"], found["place"]) == ("foreign", "", None)
    assert "gpu.topology/policy: best-effort" in found["missing"][0]
    assert "is for a device plugin" in found["missing"][1]
    pod("missed", {"gpu.topology/policy": "nvlink"})
    assert "which the webhook writes: it did not see this pod" in (await shell.data("explain missed"))["missing"][0]
    pod("template", {}, resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}])
    assert "the scheduler alone chooses" in (await shell.data("explain template"))["missing"][-1]


async def test_what_a_template_asks_for_is_what_is_explained(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    claims = [{"name": "g", "resourceClaimName": "gpus-next"}]
    cluster.pod("next", 1, wishes={"policy": "nvlink", "template": "g/quad"}, resourceClaims=claims)
    found = await shell.data("explain next")
    assert "ResourceClaimTemplate 'quad', which does not exist" in found["reason"]
    request = {"name": "gpus", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 4}}
    template = {
        "metadata": {"name": "quad", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template)
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason")
    assert found["request_text"] == "what ResourceClaimTemplate quad asks for with nvlink"
    assert found["queue"]["position"] == 1


async def test_a_damaged_note_is_a_reason(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 2)
    pod = cluster.get_pod("next")
    pod["metadata"]["annotations"][names.REQUEST] = "{\x1b"
    cluster.put(PODS, pod)
    found = await shell.data("explain next")
    assert found["reason"].startswith("The annotation gpu.topology/request was changed: ")
    assert "\x1b" not in (await shell.run("explain", "next")).stdout


async def test_what_happened_is_told_in_order(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 2)
    event(cluster, "WaitsForGPUs", "2 GPUs: no", count=3, source={"component": "gpu-topology"})
    event(cluster, "FailedScheduling", "0/1\x1b nodes", lastTimestamp=None, eventTime="2026-01-01T00:00:59.123456Z")
    happened = (await shell.data("explain next"))["events"]
    assert [(one["about"], one["reason"], one["count"]) for one in happened] == [
        ("pod", "Created", 1),
        ("pod", "FailedScheduling", 1),
        ("pod", "WaitsForGPUs", 3),
    ]
    said = (await shell.run("explain", "next")).stdout
    assert "2026-01-01T00:00:59Z  pod" in said
    assert "WaitsForGPUs x3" in said
    assert "\x1b" not in said


async def test_an_ended_promise_is_said(shell: CommandLine, cluster: GpuCluster) -> None:
    cluster.node("n1")
    cluster.pod("next", 8)
    await cluster.settle()
    cluster.put(RESOURCE_CLAIMS, (cluster.claim("next") or {}) | {"status": {}})
    cluster.remove(RESOURCE_CLAIMS, "gpus-next", "default")
    cluster.deliver()
    cluster.rival("thief", "n1", [0])
    cluster.node("n2")
    found = await shell.data("explain next")
    assert found["state"] == "tentative"
    assert found["reason"].startswith(
        "The tentative placement of the pod has ended. The pod can use only the nodes of that placement."
    )
    assert [owner["claim"] for owner in found["would_help"][0]["owners"]] == ["thief"]


async def test_a_pod_that_the_scheduler_refused_is_told_so_in_addition_to_its_place(
    shell: CommandLine, cluster: GpuCluster
) -> None:
    cluster.node("n1")
    cluster.pod("next", 8)
    await cluster.settle()
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    said["message"] = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    pod = cluster.get_pod("next")
    pod["metadata"]["annotations"][names.REASON] = (
        "The scheduler finds no room for pod next on its nodes: an earlier try."
    )
    cluster.put(PODS, pod | {"status": pod["status"] | {"conditions": [said]}})
    assert "Placement" in (await shell.run("explain", "next")).stdout, "the place is promised to it, and tried again"
    cluster.put(RESOURCE_CLAIMS, (cluster.claim("next") or {}) | {"status": {}})
    cluster.remove(RESOURCE_CLAIMS, "gpus-next", "default")
    cluster.deliver()
    assert "Possible placement" in (await shell.run("explain", "next")).stdout
    found = await shell.data("explain next")
    assert found["reason"] == (
        "The tentative placement of the pod has ended. The scheduler finds no room for pod next on its nodes: node(s) "
        "didn't have free ports for the requested pod ports. There is a place for the pod on n1 now."
    )
    assert found["place"]["node"] == "n1"


async def test_yaml_is_the_same_document_and_tables_come_first(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 2)
    found = await shell.data("explain next")
    assert yaml.safe_load((await shell.run("explain", "next", "-o", "yaml")).stdout) == found
    said = (await shell.run("explain", "next")).stdout
    assert said.startswith("Pod default/next\n\nstate")
    assert "Possible placement\n\nnode" in said


@pytest.mark.parametrize("plural", ["resourceslices", "resourceclaims", "nodes"])
async def test_a_user_who_may_read_little_is_told_what_the_pod_says(
    cluster: GpuCluster, shell: CommandLine, plural: str
) -> None:
    cluster.node("n1")
    cluster.pod("next", 9)
    await cluster.settle()
    shell.api.fail(path=f"/{plural}", status=403, reason="Forbidden", message="no", times=math.inf)
    result = await shell.run("explain", "next")
    assert result.exit_code == 0
    assert f"warning: {shell.api.config.url}: you may not list {plural}" in result.stderr
    assert "reason" in result.stdout


async def test_a_running_pod_that_is_being_deleted_is_said_to_be(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 4)
    await run_all(cluster)
    before = await shell.data("explain next")
    cluster.begin_deletion("next")
    found = await shell.data("explain next")
    assert (found["state"], found["node"], found["place"]) == ("deleting", "n1", before["place"])
    assert (found["better_sets"], found["better_set_free"]) == ([], None)
    assert found["reason"] == (
        "The pod is being deleted. Its grace period ends at 2026-01-01T00:00:30Z. Its GPUs are free when its "
        "containers have ended and the node agent has released them. If that takes longer, run gputopo health."
    )
    shown = (await shell.run("explain", "next")).stdout
    assert "is being deleted on n1" in shown
    assert "placed" not in shown.partition("Placement")[0]


@pytest.mark.slow
async def test_a_waiting_pod_that_is_being_deleted_gets_no_place(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("next", 4)
    cluster.begin_deletion("next")
    found = await shell.data("explain next")
    assert (found["state"], found["reason"]) == ("deleting", "The pod is being deleted and gets no place.")
    assert (found["place"], found["queue"]) == (None, None)
    for command in ("explain", "queue"):
        assert (await shell.run(command)).stdout == "no pod waits for GPUs\n"


async def test_of_a_job_the_pod_that_runs_is_explained_before_one_that_is_being_deleted(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    for name in ("old", "new"):
        pod = cluster.admitted(name, 2)
        pod["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "train", "job")
        cluster.put(PODS, pod)
    await run_all(cluster)
    cluster.begin_deletion("old")
    assert (await shell.run("explain", "job/train")).stdout.startswith("Pod default/new\n")


async def test_without_slices_it_says_so(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.pod("next", 9)
    result = await shell.run("explain", "next")
    assert result.exit_code == 0
    assert "no ResourceSlice of driver gpu.topology" in result.stderr


async def test_a_pod_that_is_not_there_is_one_line(shell: CommandLine) -> None:
    result = await shell.run("explain", "next", "-n", "team-a")
    assert (result.exit_code, result.stdout) == (1, "")
    says = "Error: namespace team-a has no pod next. kubectl get pods -n team-a lists its pods"
    assert result.stderr.startswith(says)
    for name in ("a/b/c/d", "..", "pod/", "a//b", "a/../b"):
        assert CliRunner().invoke(main, ["explain", name]).exit_code == 2


async def test_only_what_matters_is_read(cluster: GpuCluster, shell: CommandLine) -> None:
    for number in range(3):
        cluster.node(f"n{number}")
    cluster.pod("next", 2)
    await shell.data("explain next")
    asked = {(request.path.rsplit("/", 1)[-1], request.query.get("fieldSelector")) for request in shell.api.requests}
    assert {one for one in asked if one[0] == "pods"} == {
        ("pods", None), *(("pods", f"spec.nodeName=n{number}") for number in range(3)),
    }  # fmt: skip
    assert {request.method for request in shell.api.requests} == {"GET"}
    every = [request for request in shell.api.requests if request.path == "/api/v1/pods"]
    assert all("labelSelector" in request.query or "fieldSelector" in request.query for request in every)
    assert {NODES.path(), RESOURCE_SLICES.path()} <= {request.path for request in shell.api.requests}


async def test_without_a_name_all_that_wait_are_listed(cluster: GpuCluster, shell: CommandLine) -> None:
    assert (await shell.run("explain")).stdout == "no pod waits for GPUs\n"
    cluster.node("n1")
    cluster.pod("first", 8)
    await run_all(cluster)
    cluster.pod("second", 4)
    cluster.pod("elsewhere", 2, namespace="team-b")
    await cluster.settle()
    assert [one["pod"] for one in await shell.data("explain")] == ["second"]
    found = await shell.data("explain", "-A")
    assert [(one["namespace"], one["pod"], one["request_text"]) for one in found] == [
        ("default", "second", "4 GPUs"),
        ("team-b", "elsewhere", "2 GPUs"),
    ]
    said = (await shell.run("explain", "-A")).stdout.splitlines()
    assert said[1].startswith("default/second")
    assert said[1].endswith(cluster.note("second", "reason") or "-")
    assert (await shell.run("explain", "second", "-A")).exit_code == 2


async def test_what_a_tenant_may_not_have_is_neither_free_for_it_nor_would_help(
    cluster: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    """As the controller places: who asks sees the partition alone, and of others' exclusive ones nothing."""
    text = "tenants: {ours: {namespaces: [default], partition: {numbers: [4, 5, 6, 7]}, exclusive: true}}"
    (tmp_path / "p.yaml").write_text(text)
    cluster.worker.follow(read(text.encode(), source="x"))
    cluster.node("n1", "hgx-h100")
    cluster.pod("notebook", 4, namespace="team-b")
    cluster.pod("trainer", 4)
    await run_all(cluster)
    cluster.pod("next", 2)
    cluster.pod("other", 2, namespace="team-b")
    await cluster.settle()
    file = f"--policies {tmp_path / 'p.yaml'}"
    found = await shell.data(f"explain next {file}")
    assert found["reason"] == found["recorded_reason"] == cluster.note("next", "reason")
    assert found["reason"].endswith("Only GPUs in the partition of tenant ours can be used.")
    assert {o["namespace"] for one in found["would_help"] for o in one["owners"]} == {"default"}
    assert {number for one in found["would_help"] for number in one["gpus"]} <= {4, 5, 6, 7}
    others = await shell.data(f"explain other -n team-b {file}")
    assert {number for one in others["would_help"] for number in one["gpus"]} <= {0, 1, 2, 3}
    end(cluster, "trainer")
    assert (await shell.data(f"free {file}"))["free"] == 4
    assert (await shell.data(f"free -n team-b {file}"))["free"] == 0


async def test_who_has_the_channel_of_a_compute_domain_is_named(cluster: GpuCluster, shell: CommandLine) -> None:
    for node, label in (("n1", {}), ("n2", {domains.LABEL: "another"})):
        cluster.node(node, labels=label)
        cluster.put(RESOURCE_SLICES, domains.resource_slice(node))
    cluster.put(RESOURCE_CLAIMS, domains.claim("theirs", "n1"))
    own = {"name": names.POD_CLAIM, "resourceClaimName": "gpus-next"}
    cluster.pod("next", 4, resourceClaims=[own, domains.entry("t")])
    await cluster.settle()
    found = await shell.data("explain next")
    assert (
        found["reason"]
        == "Waiting for ResourceClaimTemplate 't', which does not exist. Create it in the pod's namespace."
    )
    assert cluster.note("next", "reason") == found["reason"]

    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "d-1"))
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason")
    assert {tuple(one["causes"]) for one in found["would_help"]} == {
        ("its channel is taken by claim default/theirs",),
        ("labelled for another ComputeDomain",),
    }
    cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
    assert (await shell.data("explain next"))["place"]["node"] == "n1"


async def test_a_gang_in_compute_domains_waits_for_one_fabric(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "d-1"))
    for node, clique in (("a", "u.1"), ("b", "u.2")):
        cluster.node(node, "gb200-nvl72-tray", labels={domains.CLIQUE: clique})
        cluster.put(RESOURCE_SLICES, domains.resource_slice(node))
    for name in ("next", "other"):
        own = {"name": names.POD_CLAIM, "resourceClaimName": f"gpus-{name}"}
        wishes = {"gang": "g", "gang-size": "2"}
        cluster.pod(name, 4, resourceClaims=[own, domains.entry("t")], wishes=wishes)
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason")
    assert "in one NVLink fabric" in found["reason"]


@pytest.mark.parametrize("gang", [False, True])
async def test_a_place_whose_claim_the_api_server_refuses_is_no_promise(
    cluster: GpuCluster, shell: CommandLine, gang: bool
) -> None:
    cluster.node("n1")
    cluster.pod("p", 4, wishes={"gang": "g", "gang-size": "1"} if gang else {})
    exceeded = "exceeded quota: cap, requested: count/claims=4, used: count/claims=0, limited: count/claims=2"
    message = f'resourceclaims.resource.k8s.io "gpus-p" is forbidden: {exceeded}'
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", message)]
    await cluster.settle()
    found = await shell.data("explain p")
    claim = "a claim of the gang" if gang else "the pod's claim"
    refusal = f"The API server refuses {claim}: {exceeded}."
    place = "There are places for 1 pod of the gang" if gang else "There is a place for the pod on n1"
    assert found["reason"] == f"{place} now. But the controller's last try failed. {refusal}"
    assert found["quota_help"] == "End pods of the namespace, or raise the ResourceQuota."
    assert found["recorded_reason"] == f"{refusal} {found['quota_help']}"
    assert found["queue"]["position"] == 1
    shown = (await shell.run("explain p")).stdout
    assert f"What would help\n\n{found['quota_help']}\n" in shown
