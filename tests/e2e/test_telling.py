"""What a container and its claim are told, on a real Kubernetes with the agent's own rights."""

from __future__ import annotations

import json
from typing import Any

from dradriver.api.base import names
from tests.e2e.kubectl import Namespace, eventually, pod

FOLDER = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"
TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"


def test_telling(namespace: Namespace) -> None:
    words = {names.POLICY: "nvlink", names.NCCL: "env"}
    namespace.apply(pod("told", gpus={"main": 4, "none": 0}, words=words, node="node-a"))
    namespace.wait_running("told")
    (claim,) = namespace.list("resourceclaim")
    name = claim["metadata"]["name"]

    def read(*command: str, container: str = "main", check: bool = True) -> str:
        return namespace.kubectl("exec", "told", "-c", container, "--", *command, check=check).stdout

    metadata = json.loads(read("cat", f"{FOLDER}/{name}/main/gpu.topology-metadata.json"))
    (request,) = metadata["requests"]
    allocated = str(namespace.annotation("told", names.ALLOCATED)).split(",")
    assert {d["attributes"]["uuid"]["string"] for d in request["devices"]} == set(allocated)
    assert {d["attributes"]["level"]["string"] for d in request["devices"]} == {"nvlink"}
    assert {d["attributes"]["ringPosition"]["int"] for d in request["devices"]} == {0, 1, 2, 3}
    assert read("cat", TOPOLOGY).startswith('<system version="1">')
    assert read("sh", "-c", "echo $NCCL_TOPO_FILE").strip() == TOPOLOGY
    refused = namespace.kubectl("exec", "told", "-c", "main", "--", "sh", "-c", f"echo x >{TOPOLOGY}", check=False)
    assert "Read-only file system" in refused.stderr
    assert read("ls", FOLDER, container="none", check=False) == ""

    def devices() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = namespace.get("resourceclaim", name)["status"].get("devices", [])
        return found

    told = eventually("the claim's status says what it has", lambda: devices() or None)
    assert {d["data"]["uuid"] for d in told} == set(allocated)
    assert {d["data"]["level"] for d in told} == {"nvlink"}
    assert {d["conditions"][0]["type"] for d in told} == {"Ready"}
