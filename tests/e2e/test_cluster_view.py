"""``gputopo topo --cluster`` on a real Kubernetes: who holds which GPU."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import cast

from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod

SVG = "{http://www.w3.org/2000/svg}"


def test_a_pod_is_seen_as_holder(namespace: Namespace) -> None:
    kubeconfig = namespace.cluster.kubeconfig
    namespace.apply(pod("holder", gpus=2, words={names.POLICY: "nvlink"}, node="node-a"))
    namespace.wait_running("holder")
    uuids = set(str(namespace.annotation("holder", names.ALLOCATED)).split(","))
    claim = namespace.get("pod", "holder")["spec"]["resourceClaims"][0]["resourceClaimName"]

    read = gputopo(kubeconfig, "topo", "--cluster", "-o", "json")
    assert (read.returncode, read.stderr) == (0, "")
    nodes = {node["node"]: node for node in json.loads(read.stdout)}
    assert list(nodes) == ["node-a", "node-b"]
    held = [gpu for gpu in nodes["node-a"]["gpus"] if gpu["used_by"]]
    assert {gpu["uuid"] for gpu in held} == uuids
    wanted = {
        "allocation": "allocated",
        "namespace": namespace.name,
        "claim": claim,
        "pods": ["holder"],
        "share_id": "",
        "fraction": "",
    }
    assert [gpu["used_by"] for gpu in held] == [[wanted], [wanted]]
    assert len(nodes["node-a"]["free"]) == 6
    assert nodes["node-b"]["free"] == list(range(8))
    machine = profiles.load(deploy.MACHINES["node-a"], seed="node-a")
    assert [gpu["uuid"] for gpu in nodes["node-a"]["machine"]["gpus"]] == [gpu.uuid for gpu in machine.gpus]

    table = gputopo(kubeconfig, "topo", "--cluster", "--node", "node-a").stdout
    for gpu in held:
        assert f"  GPU{gpu['index']}  {namespace.name}/holder  {claim}\n" in table
    assert table.count("  free\n") == 6

    root = ET.fromstring(gputopo(kubeconfig, "topo", "--cluster", "-o", "svg").stdout)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert words.count(f"{namespace.name}/holder") == 2
    assert words.count("free") == 14

    namespace.delete("holder")

    # Kubernetes deletes the pod's claim after the pod.
    def free() -> list[int]:
        shown = gputopo(kubeconfig, "topo", "--cluster", "--node", "node-a", "-o", "json").stdout
        return cast("list[int]", json.loads(shown)[0]["free"])

    eventually("all GPUs are free again", lambda: free() == list(range(8)))


def test_a_user_who_may_not_list_claims_is_told_what_to_ask_for(namespace: Namespace, tmp_path: Path) -> None:
    config = json.loads(namespace.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": namespace.kubectl("create", "token", "default").stdout.strip()}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))

    refused = gputopo(file, "topo", "--cluster")
    assert refused.returncode == 1
    assert "you may not list resourceslices.resource.k8s.io in all namespaces" in refused.stderr
    role = ("create", "clusterrole", "gputopo-test", "--verb=list")
    resources = "resourceslices.resource.k8s.io,resourceclaims.resource.k8s.io"
    namespace.kubectl(*role, f"--resource={resources}")
    account = f"--serviceaccount={namespace.name}:default"
    namespace.kubectl("create", "clusterrolebinding", "gputopo-test", "--clusterrole=gputopo-test", account)
    try:
        assert eventually("the role counts", lambda: gputopo(file, "topo", "--cluster").returncode == 0)
    finally:
        namespace.kubectl("delete", "clusterrolebinding,clusterrole", "gputopo-test")
