"""A namespace whose Pod Security Standard forbids the node agents: who says so, and the label that allows them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dradriver.api.base.pod_security import ENFORCE
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import eventually, gputopo
from tests.e2e.parts import agent, parts, wait_ready

HERE = ("-n", deploy.NAMESPACE)
CURE = f"kubectl label namespace {deploy.NAMESPACE} {ENFORCE}=privileged --overwrite"


@pytest.fixture
def restricted(driver: Cluster) -> Iterator[Cluster]:
    """The cluster, with the driver in a namespace that enforces the standard ``restricted``."""
    driver.kubectl("label", "namespace", deploy.NAMESPACE, f"{ENFORCE}=restricted", "--overwrite")
    try:
        yield driver
    finally:
        driver.kubectl("label", "namespace", deploy.NAMESPACE, f"{ENFORCE}-")
        wait_ready(driver)


def verified(cluster: Cluster) -> list[tuple[str, str]]:
    """Return what gputopo verify says of Pod Security, each with its cure."""
    listed = json.loads(gputopo(cluster.kubeconfig, "verify", "-o", "json").stdout)["findings"]
    return [(one["message"], one["cure"]) for one in listed if one["check"] == "pod-security"]


def test_a_namespace_that_forbids_the_agents_is_said_and_the_label_cures_it(restricted: Cluster) -> None:
    cluster = restricted
    notes = cluster.helm(
        *("upgrade", deploy.RELEASE, str(deploy.CHART), "--namespace", deploy.NAMESPACE, "--reuse-values"),
        "--dry-run=server",
    ).stdout
    assert f"WARNING: the namespace {deploy.NAMESPACE} enforces" in notes
    assert CURE in notes
    ((said, cure),) = verified(cluster)
    assert ('"restricted"' in said, cure) == (True, CURE)

    # The next leader looks at once. Its own pod keeps to the standard.
    cluster.kubectl(*HERE, "delete", "pod", "-l", "app.kubernetes.io/component=controller", "--timeout=60s")
    about = "reason=PodSecurityForbidsAgent,involvedObject.kind=DaemonSet"
    told = ("get", "events", "--field-selector", about, "-o", "jsonpath={.items[*].message}")
    eventually("the Event names the label", lambda: CURE in cluster.kubectl(*HERE, *told).stdout, timeout_s=90)

    # The standard of an API server's configuration has no label, and Kubernetes' own Event then says it.
    node = "node-a"
    cluster.kubectl(*HERE, "delete", "pod", agent(cluster, node)["name"], "--timeout=60s")
    refused = ("get", "events", "--field-selector", "reason=FailedCreate,involvedObject.kind=DaemonSet")
    eventually("Kubernetes refuses the agent", lambda: "PodSecurity" in cluster.kubectl(*HERE, *refused).stdout)
    cluster.kubectl("label", "namespace", deploy.NAMESPACE, f"{ENFORCE}=privileged", "--overwrite")
    eventually(
        "the agent is back", lambda: [part for part in parts(cluster, "node") if part["node"] == node], timeout_s=180
    )
    assert verified(cluster) == []
