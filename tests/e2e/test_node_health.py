"""A GPU that fails, on a real Kubernetes: who is told, who keeps off it, and that all is as before once it is well."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from dradriver.api import names, slices
from dradriver.cli.sim import sim
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster, Node
from tests.e2e.kubectl import Namespace, eventually, pod

NVLINK = {names.POLICY: "nvlink"}
ANY = {names.POLICY: "best-effort"}
ILL = {"gpu-3": ("--nvlink", "0"), "gpu-5": ("--xid", "79")}


def gputopo(node: Node, *words: str) -> None:
    """Run ``gputopo sim`` on a node of the cluster."""
    folder = deploy.state_dir(node) / "simulated"
    done = CliRunner().invoke(sim, [words[0], "--node", node.name, "--dir", str(folder), *words[1:]])
    assert done.exit_code == 0, done.output


def taints(cluster: Cluster, node: str) -> dict[str, list[dict[str, Any]]]:
    """The taints of a node's devices, of those that have any, without their times."""
    items = json.loads(cluster.kubectl("get", "resourceslices", "-o", "json").stdout)["items"]
    devices = [device for item in items if item["spec"]["nodeName"] == node for device in item["spec"]["devices"]]
    return {
        device["name"]: [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]
        for device in devices
        if device.get("taints")
    }


def health(namespace: Namespace, name: str) -> dict[str, dict[str, str]]:
    """What the kubelet says in a pod's status of each GPU that it holds."""
    (status,) = namespace.get("pod", name)["status"]["containerStatuses"]
    (claim,) = status.get("allocatedResourcesStatus", [{"resources": []}])
    return {one["resourceID"]: one for one in claim["resources"]}


def states(namespace: Namespace, name: str) -> list[str]:
    return [one["health"] for one in health(namespace, name).values()]


def told(namespace: Namespace, name: str, reason: str) -> list[str]:
    """What events of a reason say of a pod."""
    found = [event for event in namespace.list("events") if event["involvedObject"]["name"] == name]
    return [event["message"] for event in found if event["reason"] == reason]


def test_gpus_that_fail_and_get_well(namespace: Namespace) -> None:
    cluster = namespace.cluster
    node = cluster.nodes["node-a"]
    gpus = profiles.load(deploy.MACHINES["node-a"], seed="node-a").gpus
    namespace.apply(*(pod(name, gpus=4, words=NVLINK, node="node-a") for name in ("first", "second")))
    namespace.wait_running("first", "second")
    holder = {uuid: n for n in ("first", "second") for uuid in str(namespace.annotation(n, names.ALLOCATED)).split(",")}
    ill = {name: gpus[int(name.removeprefix("gpu-"))].uuid for name in ILL}
    hurt, fallen = (slices.device_name(uuid) for uuid in ill.values())
    for name in ("first", "second"):
        eventually("all is well", lambda name=name: states(namespace, name) == ["Healthy"] * 4)  # type: ignore[misc]

    for name, what in ILL.items():
        gputopo(node, "fail", name, *what)
    eventually("both devices are tainted", lambda: {hurt, fallen} <= taints(cluster, "node-a").keys())
    print(taints(cluster, "node-a"))
    print(json.dumps([health(namespace, n) for n in ("first", "second")], indent=1))
    print(namespace.kubectl("get", "events").stdout)
