"""A GPU that fails, on a real Kubernetes: who is told, who keeps off it, and that all is as before once it is well."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.cli.fault import fault
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster, Node
from tests.cluster.settings import minor_of
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.parts import restarts

NVLINK = {names.POLICY: "nvlink"}
ANY = {names.POLICY: "best-effort"}


def gputopo(node: Node, *words: str) -> None:
    """Run ``gputopo fault`` on a node of the cluster."""
    folder = deploy.state_dir(node) / "simulated"
    done = CliRunner().invoke(fault, [words[0], "--node", node.name, "--dir", str(folder), *words[1:]])
    assert done.exit_code == 0, done.output


def taints(cluster: Cluster, node: str) -> dict[str, list[str]]:
    """The taints of a node's devices, of those that have any."""
    items = cluster.api.objects("resourceslices")
    devices = [device for item in items if item["spec"].get("nodeName") == node for device in item["spec"]["devices"]]
    return {
        device["name"]: [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in device["taints"]]
        for device in devices
        if device.get("taints")
    }


def unhealthy(namespace: Namespace, name: str) -> dict[str, str] | None:
    """What the kubelet says in a pod's status of the GPUs that are not well, by uuid; None before it says anything."""
    (status,) = namespace.get("pod", name)["status"]["containerStatuses"]
    told = [one for claim in status.get("allocatedResourcesStatus", ()) for one in claim["resources"]]
    if any(one["health"] == "Unknown" for one in told) or not told:
        return None
    uuids = gpus_of(namespace, name)
    return {
        next(uuid for uuid in uuids if one["resourceID"].endswith(resource_slices.device_name(uuid))): one["message"]
        for one in told
        if one["health"] == "Unhealthy"
    }


def told(namespace: Namespace, name: str, reason: str) -> list[str]:
    """What events of a reason say of a pod."""
    found = [event for event in namespace.list("events") if event["involvedObject"]["name"] == name]
    return [event["message"] for event in found if event["reason"] == reason]


def gpus_of(namespace: Namespace, name: str) -> set[str]:
    """The uuids of the GPUs that a pod was given."""
    return set(str(namespace.annotation(name, names.ALLOCATED)).split(","))


def test_gpus_that_fail_and_get_well(namespace: Namespace) -> None:
    """An NVLink goes down, which two GPUs miss, and a third has an XID; pods that hold them go on."""
    cluster = namespace.cluster
    if minor_of(cluster.version) < "1.36":
        pytest.skip("the API server keeps taints, and the kubelet tells of health, from Kubernetes 1.36 on")
    node, gpus = cluster.nodes["node-a"], profiles.load(deploy.MACHINES["node-a"], seed="node-a").gpus
    namespace.apply(*(pod(name, gpus=4, words=NVLINK, node="node-a") for name in ("first", "second")))
    namespace.wait_running("first", "second")
    linkless, fallen = gpus[3].uuid, gpus[5].uuid
    first, second = ("first", "second") if linkless in gpus_of(namespace, "first") else ("second", "first")
    assert fallen in gpus_of(namespace, second)
    for name in (first, second):
        eventually("all is well", lambda name=name: unhealthy(namespace, name) == {})  # type: ignore[misc]

    gputopo(node, "fail", "gpu-3", "--nvlink", "0")
    gputopo(node, "fail", "gpu-5", "--xid", "79")
    try:
        tainted = eventually("three devices are tainted", lambda: three(taints(cluster, "node-a")))
        assert tainted[resource_slices.device_name(fallen)] == ["gpu.topology/xid=79:NoSchedule"]
        assert tainted[resource_slices.device_name(linkless)] == ["gpu.topology/nvlink=lost:NoSchedule"]
        both = {uuid for uuid in gpus_of(namespace, first) if resource_slices.device_name(uuid) in tainted}
        assert len(both) == 2  # the link's other end
        eventually("the first pod's status says so", lambda: (unhealthy(namespace, first) or {}).keys() == both)
        assert "5 of 6 NVLinks are up" in (unhealthy(namespace, first) or {})[linkless]
        eventually("so does the second's", lambda: (unhealthy(namespace, second) or {}).keys() == {fallen})
        assert "Drain the node (kubectl drain node-a " in (unhealthy(namespace, second) or {})[fallen]
        eventually("the first pod has its events", lambda: len(told(namespace, first, "GPUUnhealthy")) == 2)
        (event,) = eventually("so has the second", lambda: told(namespace, second, "GPUUnhealthy"))
        assert f"Node node-a, GPU5 ({gpus[5].pci}, {fallen}), fault xid: XID 79" in event

        well = gpus_of(namespace, first) - both
        namespace.delete(first)
        namespace.apply(pod("rest", gpus=2, words=ANY, node="node-a"))
        namespace.wait_running("rest")
        assert gpus_of(namespace, "rest") == well
        namespace.apply(pod("waits", gpus=2, words=ANY, node="node-a"))
        eventually("no other is to be had", lambda: namespace.annotation("waits", names.REASON))
    finally:
        gputopo(node, "heal")
    namespace.wait_running("waits", timeout_s=120)  # a fault has to be gone for a minute
    assert gpus_of(namespace, "waits") == both
    eventually("the third is well, too", lambda: taints(cluster, "node-a") == {})  # by a reading of its own
    eventually("the status says so", lambda: unhealthy(namespace, second) == {})
    assert eventually("so does an event", lambda: told(namespace, second, "GPURecovered"))
    assert restarts(namespace, second) == 0


def three(found: dict[str, list[str]]) -> dict[str, list[str]] | None:
    """The same once there are three."""
    return found if len(found) == 3 else None
