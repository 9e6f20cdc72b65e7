"""Kill -9 of every part, vanishing GPUs, upgrades: nothing is lost, nothing is handed out twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dradriver.api import names
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod

NVLINK = {names.POLICY: "nvlink"}


def processes_of(uid: str) -> list[int]:
    """The process ids of a pod's containers, found by the pod's uid in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"POD_UID={uid}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone meanwhile
            continue
    return found


def kill(cluster: Cluster, pod_name: str, *, missing_ok: bool = False) -> None:
    """End a pod's processes with SIGKILL."""
    got = json.loads(cluster.kubectl("-n", deploy.NAMESPACE, "get", "pod", pod_name, "-o", "json").stdout)
    victims = processes_of(got["metadata"]["uid"])
    assert victims or missing_ok, f"{pod_name} runs no process"
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def parts(cluster: Cluster, component: str) -> list[dict[str, str]]:
    """Names, nodes and uids of one component's pods, without those that are going."""
    label = f"app.kubernetes.io/component={component}"
    items = json.loads(cluster.kubectl("-n", deploy.NAMESPACE, "get", "pods", "-l", label, "-o", "json").stdout)[
        "items"
    ]
    return [
        {"name": item["metadata"]["name"], "node": item["spec"]["nodeName"], "uid": item["metadata"]["uid"]}
        for item in items
        if "deletionTimestamp" not in item["metadata"]
    ]


def leader(cluster: Cluster) -> str:
    found = cluster.kubectl(
        "-n", deploy.NAMESPACE, "get", "lease", "gpu-topology-controller", "-o", "jsonpath={.spec.holderIdentity}"
    )
    return found.stdout.strip()


def restarts(namespace: Namespace, name: str) -> int:
    return sum(status["restartCount"] for status in namespace.get("pod", name)["status"]["containerStatuses"])


def test_a_gpu_that_vanishes_and_comes_back(namespace: Namespace) -> None:
    """Indices shift when a GPU is lost; the claim still holds the same GPU, and nobody else gets it."""
    node = namespace.cluster.nodes["node-a"]
    namespace.apply(pod("holder", gpus=4, words=NVLINK, node="node-a"))
    namespace.wait_running("holder")
    mine = set(str(namespace.annotation("holder", names.ALLOCATED)).split(","))
    lost = deploy.state_dir(node) / "simulated" / "lost"
    lost.parent.mkdir(parents=True, exist_ok=True)

    def published() -> set[str]:
        items = json.loads(namespace.cluster.kubectl("get", "resourceslices", "-o", "json").stdout)["items"]
        return {d["name"] for item in items if item["spec"]["nodeName"] == "node-a" for d in item["spec"]["devices"]}

    everything = {gpu.uuid.lower() for gpu in profiles.load("dgx1-v100", seed="node-a").gpus}
    gone = min(mine)
    lost.write_text(gone + "\n")
    try:
        eventually("the GPU is gone from the slices", lambda: published() == everything - {gone.lower()})
        namespace.apply(pod("more", gpus=4, words={names.POLICY: "best-effort"}, node="node-a"))
        namespace.wait_running("more")
        namespace.apply(pod("greedy", gpus=1, words={names.POLICY: "best-effort"}, node="node-a"))
        eventually("no GPU is left", lambda: namespace.annotation("greedy", names.REASON))
    finally:
        lost.unlink()
    eventually("the GPU is back in the slices", lambda: published() == everything)
    assert no_gpu_is_owned_twice(namespace.cluster)
    assert len(owners(namespace.cluster)) == 8
    assert namespace.get("pod", "greedy")["spec"].get("nodeName") is None
    assert restarts(namespace, "holder") == 0


def test_node_agent_killed(namespace: Namespace) -> None:
    namespace.apply(pod("steady", gpus=2, words=NVLINK, node="node-a"))
    namespace.wait_running("steady")
    agent = next(part for part in parts(namespace.cluster, "node") if part["node"] == "node-a")
    kill(namespace.cluster, agent["name"])
    namespace.apply(pod("later", gpus=2, words=NVLINK, node="node-a"))
    namespace.wait_running("later", timeout_s=150)

    assert restarts(namespace, "steady") == 0
    assert len(namespace.devices("steady")) == 2
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_controller_killed_in_mid_placement(namespace: Namespace) -> None:
    """The standby takes over; whatever the first had begun is finished or taken back."""
    wishes = {f"p{i}": 2 for i in range(6)}
    first = leader(namespace.cluster)
    manifests = [pod(name, gpus=size, words=NVLINK) for name, size in wishes.items()]
    with ThreadPoolExecutor(1) as pool:
        applying = pool.submit(namespace.apply, *manifests)
        eventually("the first claim is there", lambda: namespace.list("resourceclaims"))
        kill(namespace.cluster, first)
        applying.result()

    def standby_leads() -> bool:
        # Its container starts again under the same name and would go on leading, so it is killed again and again.
        kill(namespace.cluster, first, missing_ok=True)
        return leader(namespace.cluster) not in ("", first)

    eventually("the standby leads", standby_leads)
    namespace.wait_running(*wishes, timeout_s=120)
    assert no_gpu_is_owned_twice(namespace.cluster)
    assert len(owners(namespace.cluster)) == sum(wishes.values())
    assert sorted(len(namespace.devices(name)) for name in wishes) == sorted(wishes.values())


def test_kubelet_restarted(namespace: Namespace) -> None:
    namespace.apply(pod("steady", gpus=4, words=NVLINK, node="node-b"))
    namespace.wait_running("steady")
    namespace.cluster.nodes["node-b"].restart_kubelet()
    namespace.apply(pod("later", gpus=4, words=NVLINK, node="node-b"))
    namespace.wait_running("later", timeout_s=150)

    assert restarts(namespace, "steady") == 0
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_upgrade(namespace: Namespace) -> None:
    """Every part is replaced while pods run: they stay, and the API server still trusts the webhook."""
    namespace.apply(pod("steady", gpus=4, words=NVLINK, node="node-a"))
    namespace.wait_running("steady")
    before = {part["uid"] for kind in ("node", "controller", "webhook") for part in parts(namespace.cluster, kind)}
    deploy.install(namespace.cluster, "logFormat=json")
    try:
        after = {part["uid"] for kind in ("node", "controller", "webhook") for part in parts(namespace.cluster, kind)}
        assert before.isdisjoint(after), "the upgrade replaced nothing"
        namespace.apply(pod("later", gpus=4, words=NVLINK, node="node-a"))
        namespace.wait_running("later")
        assert restarts(namespace, "steady") == 0
        assert no_gpu_is_owned_twice(namespace.cluster)
    finally:
        deploy.install(namespace.cluster)


def test_nothing_beside_a_device_plugin(namespace: Namespace) -> None:
    """Two ledgers would hand out one GPU twice: a node with a device plugin's GPUs publishes nothing of ours."""
    kubectl = namespace.cluster.kubectl

    def devices() -> int:
        items = json.loads(kubectl("get", "resourceslices", "-o", "json").stdout)["items"]
        return sum(len(item["spec"]["devices"] or ()) for item in items if item["spec"]["nodeName"] == "node-b")

    def announce(op: str) -> None:
        change = [
            {"op": op, "path": f"/status/{kind}/nvidia.com~1gpu", **({"value": "8"} if op == "add" else {})}
            for kind in ("capacity", "allocatable")
        ]
        kubectl("patch", "node", "node-b", "--subresource=status", "--type=json", "-p", json.dumps(change))

    assert devices() == 8
    announce("add")
    try:
        eventually("the node's GPUs are withdrawn", lambda: devices() == 0)
    finally:
        announce("remove")
    eventually("the node's GPUs are back", lambda: devices() == 8)
