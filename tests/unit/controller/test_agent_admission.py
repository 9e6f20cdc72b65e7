"""The Event on the node agents' DaemonSet, where Pod Security forbids them in its namespace."""

from __future__ import annotations

from typing import cast

import pytest

from dradriver.api.base.pod_security import ENFORCE
from dradriver.controller.features import agent_admission
from dradriver.controller.features.agent_admission import AgentAdmission
from dradriver.kube.client import Client
from dradriver.kube.resources import DAEMON_SETS, EVENTS, NAMESPACES
from tests.fakes.gpucluster import GpuCluster

OURS = "gpu-topology"


@pytest.mark.parametrize(
    ("labels", "events"),
    [(None, 0), ({ENFORCE: "privileged"}, 0), ({ENFORCE: "baseline"}, 1), ({ENFORCE: "restricted"}, 1)],
)
async def test_an_event_says_which_label_allows_the_agents(labels: dict[str, str] | None, events: int) -> None:
    cluster = GpuCluster()
    client = cast("Client", cluster.client)
    cluster.put(NAMESPACES, {"metadata": {"name": OURS, "labels": labels}})
    cluster.put(DAEMON_SETS, {"metadata": {"name": "agents", "namespace": OURS, "uid": "u"}})
    record = agent_admission.recorder(client, instance="a")
    looks = AgentAdmission(client, namespace=OURS, daemon_set="agents", record=record)
    await looks.look()
    await looks.look()
    found = cluster.all(EVENTS)
    assert len(found) == events
    for event in found:
        assert (event["metadata"]["namespace"], event["reason"], event["count"]) == (OURS, "PodSecurityForbidsAgent", 2)
        assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("DaemonSet", "u")
        assert f"kubectl label namespace {OURS} {ENFORCE}=privileged" in event["message"]
