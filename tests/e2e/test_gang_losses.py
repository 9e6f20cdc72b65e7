"""Gangs that lose a pod on a real Kubernetes: another takes its place, or all start anew on GPUs that are well."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster
from tests.cluster.settings import minor_of
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, pod
from tests.e2e.parts import agent, kill, restarts, wait_ready
from tests.e2e.test_node_health import gpus_of, gputopo, taints

MAY_SUSPEND = "controller.gangOwners.Job.suspend=true"
pytestmark = pytest.mark.chart(MAY_SUSPEND)

RESTART = gangs.AUTO | {names.PREFIX + "on-member-loss": "restart"}


@pytest.fixture(autouse=True)
def _barrier(driver: Cluster) -> None:
    if minor_of(driver.version) < "1.36":
        pytest.skip("seats are from Kubernetes 1.36 on")


def failed(namespace: Namespace) -> int:
    return int(namespace.get("job", "train")["status"].get("failed", 0))


def test_the_pod_that_comes_for_a_lost_one_gets_its_place(namespace: Namespace) -> None:
    """Somebody else who wants the lost pod's GPUs meanwhile waits."""
    namespace.apply(gangs.job("train", pods=4, gpus=3))
    before = gangs.pods_of(namespace, "train", 4)
    of = {index: one["metadata"]["name"] for index, one in before.items()}
    gangs.run_whole(namespace, list(of.values()))
    had = {index: gpus_of(namespace, name) for index, name in of.items()}
    nodes = {index: namespace.get("pod", name)["spec"]["nodeName"] for index, name in of.items()}

    namespace.delete(of[1])
    namespace.apply(pod("thief", gpus=4, words={names.POLICY: "best-effort"}, node=nodes[1]))
    after = gangs.pods_of(namespace, "train", 4)
    name = after[1]["metadata"]["name"]
    namespace.wait_running(name)
    assert gpus_of(namespace, name) == had[1]
    assert namespace.annotation(name, names.RANK_HINT) == "1"
    assert namespace.annotation(name, names.GANG_NODES) == "node-a,node-b"
    assert "nodeName" not in namespace.get("pod", "thief")["spec"]
    others = gangs.uids(before) | {1: after[1]["metadata"]["uid"]}
    assert gangs.uids(after) == others
    assert not any(restarts(namespace, of[index]) for index in (0, 2, 3))
    assert failed(namespace) == 1
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_a_fault_is_found_and_all_start_again_on_other_gpus(namespace: Namespace) -> None:
    cluster = namespace.cluster
    namespace.apply(gangs.job("train", pods=4, gpus=3, words=RESTART))
    before = gangs.pods_of(namespace, "train", 4)
    gangs.run_whole(namespace, [one["metadata"]["name"] for one in before.values()])
    name = before[1]["metadata"]["name"]
    node = namespace.get("pod", name)["spec"]["nodeName"]
    tainted = min(gpus_of(namespace, name))
    number = next(gpu.index for gpu in profiles.load(deploy.MACHINES[node], seed=node).gpus if gpu.uuid == tainted)
    gputopo(cluster.nodes[node], "fail", f"gpu-{number}", "--xid", "79")
    try:
        eventually("the GPU has its taint", lambda: tainted.lower() in taints(cluster, node))
        namespace.delete(name)

        def anew() -> dict[int, str] | None:
            pods = gangs.pods_of(namespace, "train", 4)
            found = {index: one["metadata"]["name"] for index, one in pods.items()}
            return found if set(gangs.uids(pods).values()).isdisjoint(gangs.uids(before).values()) else None

        of = eventually("all pods are others", anew)
        gangs.run_whole(namespace, list(of.values()))
    finally:
        gputopo(cluster.nodes[node], "heal")
        kill(cluster, agent(cluster, node)["name"])  # else the taint stays for a minute
    assert tainted not in set().union(*(gpus_of(namespace, one) for one in of.values()))
    assert [namespace.annotation(of[index], names.RANK_HINT) for index in range(4)] == list("0123")
    assert failed(namespace) == 1
    job = namespace.get("job", "train")
    assert not job["spec"].get("suspend")
    assert not [key for key in job["metadata"].get("labels", {}) if key.startswith(names.PREFIX)]
    eventually("the taint is gone", lambda: not taints(cluster, node), timeout_s=120)
    wait_ready(cluster)
