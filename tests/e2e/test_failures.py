"""Kill -9 of every part, vanishing GPUs, upgrades: nothing is lost, nothing is handed out twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families

from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod
from tests.e2e.parts import agent, frozen, kill, leader, parts, restarts

NVLINK = {names.POLICY: "nvlink"}


def test_a_gpu_that_vanishes_and_comes_back(namespace: Namespace) -> None:
    """Indices shift when a GPU is lost; the claim still holds the same GPU, and nobody else gets it."""
    node = namespace.cluster.nodes["node-a"]
    namespace.apply(pod("holder", gpus=4, words=NVLINK, node="node-a"))
    namespace.wait_running("holder")
    mine = set(str(namespace.annotation("holder", names.ALLOCATED)).split(","))
    lost = deploy.state_dir(node) / "simulated" / "lost"
    lost.parent.mkdir(parents=True, exist_ok=True)

    def published() -> set[str]:
        items = namespace.cluster.api.objects("resourceslices")
        own = [item["spec"]["devices"] for item in items if item["spec"].get("nodeName") == "node-a"]
        return {device["name"] for devices in own for device in devices}

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
    kill(namespace.cluster, agent(namespace.cluster, "node-a")["name"])
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


def test_upgrade(namespace: Namespace, installation: Installation) -> None:
    """Every part is replaced while pods run: they stay, and the API server still trusts the webhook."""
    namespace.apply(pod("steady", gpus=4, words=NVLINK, node="node-a"))
    namespace.wait_running("steady")
    before = {part["uid"] for kind in ("node", "controller", "webhook") for part in parts(namespace.cluster, kind)}
    installation.install("logFormat=json")
    try:
        after = {part["uid"] for kind in ("node", "controller", "webhook") for part in parts(namespace.cluster, kind)}
        assert before.isdisjoint(after), "the upgrade replaced nothing"
        namespace.apply(pod("later", gpus=4, words=NVLINK, node="node-a"))
        namespace.wait_running("later")
        assert restarts(namespace, "steady") == 0
        assert no_gpu_is_owned_twice(namespace.cluster)
    finally:
        installation.install()


def test_an_agent_that_answers_late_for_some_seconds_stays_ready(namespace: Namespace) -> None:
    """Or a rolling update leaves a gap: an old agent that is not ready is deleted before the next one is registered."""
    cluster = namespace.cluster
    old = agent(cluster, "node-b")

    def missed() -> float:
        metrics = cluster.api.get("/api/v1/nodes/node-b/proxy/metrics/probes") or ""
        wanted = {"pod": old["name"], "probe_type": "Readiness", "result": "failed"}
        samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
        return sum(sample.value for sample in samples if wanted.items() <= sample.labels.items())

    before = missed()
    with frozen(old["uid"]):
        eventually("the kubelet has missed four answers", lambda: missed() >= before + 4)
        pod = cluster.api.object("pod", old["name"], namespace=deploy.NAMESPACE)
    assert {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}["Ready"] == "True"


def test_nothing_next_to_a_device_plugin(namespace: Namespace) -> None:
    """Two ledgers would hand out one GPU twice: a node with a device plugin's GPUs publishes nothing of ours."""
    kubectl = namespace.cluster.kubectl

    def devices() -> int:
        items = namespace.cluster.api.objects("resourceslices")
        return sum(len(item["spec"]["devices"] or ()) for item in items if item["spec"].get("nodeName") == "node-b")

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
