"""The examples for spot nodes and maintenance windows, applied to a cluster in memory with such nodes."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.kube.resources import PODS
from tests.fakes.admission import admit, defaulted
from tests.fakes.gpucluster import GpuCluster
from tests.manifests import check, objects
from tests.paths import REPO

NODES = REPO / "examples" / "nodes"
EXAMPLES = sorted(NODES.glob("*.yaml"))


def applied(cluster: GpuCluster, path: Path) -> list[str]:
    """Put the pods of an example as the webhook admits them; return their names."""
    made = []
    for document in objects(path.read_text()):
        pod: dict[str, Any] = document
        if document["kind"] == "Job":
            template = admit(document, kind="Job", path="/mutate-workloads").admitted["spec"]["template"]
            metadata = {**template["metadata"], "name": document["metadata"]["name"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        admitted = admit(defaulted(pod, namespace="default")).admitted
        admitted["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
        admitted["status"] = {"phase": "Pending"}
        cluster.put(PODS, admitted)
        made.append(admitted["metadata"]["name"])
    return made


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_is_valid_and_says_what_to_expect(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert "Expect: " in text
    for document in objects(text):
        check(document)


def node_of(cluster: GpuCluster, name: str) -> str | None:
    """Return the node that the scheduler binds a pod to; None for one that waits."""
    cluster.schedule()
    node: str | None = cluster.get_pod(name)["spec"].get("nodeName")
    return node


async def test_the_spot_job_goes_to_a_spot_node() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    taint = {"key": "karpenter.sh/capacity-type", "value": "spot", "effect": "NoSchedule"}
    cluster.node("m", labels={"karpenter.sh/capacity-type": "spot"}, taints=[taint])
    cluster.node("z")
    (name,) = applied(cluster, NODES / "spot.yaml")
    await cluster.settle()
    assert node_of(cluster, name) == "m"
    assert cluster.get_pod(name)["spec"]["activeDeadlineSeconds"] == 8 * 3600


@pytest.mark.parametrize("how", ["annotation", "taint"])
async def test_only_a_pod_that_has_ended_before_goes_to_a_node_that_goes(how: str) -> None:
    cluster = GpuCluster()
    at = time.time() + 3600
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    taint = {"key": names.MAINTENANCE, "value": str(int(at)), "effect": "PreferNoSchedule"}
    if how == "taint":
        cluster.node("a", taints=[taint])
    else:
        cluster.node("a", annotations={names.MAINTENANCE: moment})
    short, endless = applied(cluster, NODES / "maintenance.yaml")
    await cluster.settle()
    assert node_of(cluster, short) == "a"
    assert node_of(cluster, endless) is None
    cluster.node("b")
    await cluster.settle()
    assert node_of(cluster, endless) == "b"
