"""``gputopo uninstall``: the pods that need the driver, with their owners and what to do."""

from __future__ import annotations

import json
import re
from typing import Any

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.owners import owned


def has_its_claim(cluster: GpuCluster, pod: str, driver: str = names.DRIVER) -> None:
    """Reserve a pod's claim for it, as kube-scheduler does, with devices of this driver."""
    found = cluster.find(PODS, pod, "default")
    assert found is not None

    def change(claim: Object) -> None:
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": found["metadata"]["uid"]}]
        for result in claim["status"]["allocation"]["devices"]["results"]:
            result["driver"] = driver

    cluster.store.edit(RESOURCE_CLAIMS, ("default", claim_of(pod)), change)


async def listed(shell: CommandLine) -> list[dict[str, Any]]:
    done = await shell.run("uninstall", "-o", "json")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.exit_code == (1 if found else 0)
    return found


async def test_a_cluster_where_no_pod_needs_the_driver(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.put(PODS, {"metadata": {"name": "web"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
    done = await shell.run("uninstall")
    assert (done.exit_code, done.stdout) == (0, "No pod needs the driver.\n")


async def test_pods_with_gpus_come_first_and_each_state_has_its_cure(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("trains", 4)
    await run_all(cluster)
    has_its_claim(cluster, "trains")
    cluster.pod("alone", 8)
    gated = cluster.admitted("gated", 8)
    gated["metadata"]["ownerReferences"] = owned("batch/v1", "Job", "big")
    cluster.put(PODS, gated)
    cluster.pod("released", 1)
    await cluster.settle()
    assert [(one["pod"], one["state"], one["owner"]) for one in await listed(shell)] == [
        ("trains", "has GPUs", ""),
        ("alone", "waits at its gate", ""),
        ("gated", "waits at its gate", "Job/big"),
        ("released", "waits for GPUs", ""),
    ]
    shown = (await shell.run("uninstall")).stdout
    assert shown.startswith("4 pods need the driver.")
    for state, after in (
        ("has GPUs", "The pod runs on. If you delete it, it stays in Terminating"),
        ("waits at its gate", "The pod keeps its scheduling gate gpu.topology/placement"),
        ("waits for GPUs", "The pod keeps waiting. "),
    ):
        assert re.search(rf"^{state}: before the uninstallation: .*\. After it: {after}", shown, re.MULTILINE)


async def test_the_hook_says_how_to_keep_the_release_and_how_to_uninstall_it(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    none = await shell.run("uninstall", "--release", "gpus/topo")
    assert (none.exit_code, none.stdout) == (0, "No pod needs the driver.\n")
    cluster.pod("gated", 8)
    assert "helm" not in (await shell.run("uninstall")).stdout
    stopped = await shell.run("uninstall", "--release", "gpus/topo")
    assert stopped.exit_code == 1
    for text in (
        "1 pod needs the driver. So helm uninstall stops. It has deleted nothing, and the driver runs on.\n",
        "gputopo uninstall\n", "repeat the uninstallation: helm uninstall topo --namespace gpus\n",
        "helm rollback topo REVISION --namespace gpus. REVISION is the number that helm history topo --namespace gpus "
        "prints next to the status uninstalling.",
        "helm uninstall topo --namespace gpus --no-hooks. ", "uninstall.force=true",
    ):  # fmt: skip
        assert text in stopped.stdout
    assert (await shell.run("uninstall", "--release", "topo")).exit_code == 2


async def test_a_pod_with_gpus_that_is_being_deleted(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("trains", 4)
    await run_all(cluster)
    has_its_claim(cluster, "trains")
    cluster.begin_deletion("trains")
    assert [(one["pod"], one["state"]) for one in await listed(shell)] == [("trains", "is being deleted")]
    assert (
        "once its processes have ended, run kubectl delete pod NAME -n NAMESPACE --force"
        in (await shell.run("uninstall")).stdout
    )


async def test_pods_that_have_ended_or_have_devices_of_another_driver_are_not_listed(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    for name in ("ended", "another"):
        cluster.pod(name, 2)
    await run_all(cluster)
    has_its_claim(cluster, "ended")
    has_its_claim(cluster, "another", driver="gpu.nvidia.com")
    cluster.store.edit(PODS, ("default", "ended"), lambda pod: pod["status"].update(phase="Succeeded"))
    assert await listed(shell) == []


async def test_a_pod_of_a_deployment_is_ended_by_the_deployment(cluster: GpuCluster, shell: CommandLine) -> None:
    """Its ReplicaSet would come back as the pod does."""
    gated = cluster.admitted("serve-5d4-x", 1)
    gated["metadata"]["ownerReferences"] = owned("apps/v1", "ReplicaSet", "serve-5d4")
    gated["metadata"].setdefault("labels", {})["pod-template-hash"] = "5d4"
    cluster.put(PODS, gated)
    assert [one["owner"] for one in await listed(shell)] == ["Deployment/serve"]
    assert "Delete its owner, or the pod if it has no owner." in (await shell.run("uninstall")).stdout


async def test_an_odd_object_hides_no_other(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.pod("gated", 8, wishes={"policy": "nvlink"})
    cluster.put(PODS, {"metadata": {"name": "odd", "ownerReferences": [{"kind": 7, "controller": True}]}, "spec": {}})
    cluster.put(PODS, {"metadata": {"name": "odder"}, "spec": {"schedulingGates": [{"name": "\ud800"}, None]}})
    assert [one["pod"] for one in await listed(shell)] == ["gated"]


async def test_of_one_namespace(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.pod("here", 1)
    cluster.pod("there", 1, namespace="team-a")
    done = await shell.run("uninstall", "-n", "team-a", "-o", "json")
    assert [one["pod"] for one in json.loads(done.stdout)] == ["there"]
    assert (await shell.run("uninstall", "-n", "team-b")).exit_code == 0


async def test_a_gated_pod_that_is_being_deleted_needs_no_driver(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.pod("gated", 8)
    cluster.begin_deletion("gated")
    assert await listed(shell) == []
