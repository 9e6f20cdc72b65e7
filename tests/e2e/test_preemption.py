"""Who ends for those of higher priority on a real Kubernetes: evicted within its budget, and both sides are told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, pod, told_why

CLASS: Final = "preempting"
ON: Final = (
    "controller.preemption=true",
    "policies.queue.preemption.enabled=true",
    "policies.queue.preemption.minRunMinutes=0",
)
BUDGET: Final = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "kept"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
}


pytestmark = pytest.mark.chart(*ON)


@pytest.fixture
def preempting(driver: Cluster) -> Iterator[Namespace]:
    """A namespace where others end for whoever has the class."""
    own = Namespace(driver, f"t-preempt-{uuid.uuid4().hex[:6]}")
    driver.kubectl("create", "namespace", own.name)
    above = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": CLASS}, "value": 1000}
    driver.kubectl("apply", "-f", "-", input=yaml.safe_dump(above))
    yield own
    own.kubectl("delete", "pods", "--all", "--timeout=120s")
    driver.kubectl("delete", "namespace", own.name, "--wait=false")
    driver.kubectl("delete", "priorityclass", CLASS)


def wanting(name: str, *, above: bool = False, **labels: str) -> dict[str, Any]:
    """Return a pod that wants all GPUs of a node."""
    made = pod(name, gpus=8, words={names.POLICY: "best-effort"}, node="node-a")
    made["metadata"]["labels"] = labels
    if above:
        made["spec"]["priorityClassName"] = CLASS
    return made


def conditions(own: Namespace, name: str) -> dict[str, str]:
    """Return the reasons of a pod's conditions by type; none where it is gone."""
    status: dict[str, Any] = next((one["status"] for one in own.list("pods") if one["metadata"]["name"] == name), {})
    return {one["type"]: one.get("reason", "") for one in status.get("conditions", [])}


def events(own: Namespace, name: str) -> str:
    """Return what Events of one reason say of a pod."""
    of_pod = [one for one in own.list("events") if one["involvedObject"]["name"] == name]
    return " ".join(one["message"] for one in of_pod if one["reason"] == "PreemptedForGPUs")


def test_one_ends_for_another_of_higher_priority_and_both_are_told(preempting: Namespace) -> None:
    preempting.apply(wanting("low"))
    preempting.wait_running("low")
    preempting.apply(wanting("equal"))
    told_why(preempting, "equal")
    preempting.apply(wanting("high", above=True))
    eventually("the one is told to end", lambda: events(preempting, "low"))
    assert f"for {preempting.name}/high (priority 1000)" in events(preempting, "low")
    preempting.wait_running("high")
    assert conditions(preempting, "low").get("DisruptionTarget", "EvictionByEvictionAPI") == "EvictionByEvictionAPI"
    assert len(preempting.devices("high")) == 8
    assert not preempting.get("pod", "equal")["spec"].get("nodeName")


def test_a_disruption_budget_is_kept_and_named(preempting: Namespace) -> None:
    preempting.apply(BUDGET, wanting("low", app="kept"))
    preempting.wait_running("low")
    eventually(
        "the budget counts it",
        lambda: preempting.get("pdb", "kept").get("status", {}).get("currentHealthy") == 1 or None,
    )
    preempting.apply(wanting("high", above=True))
    eventually("it is told whose budget", lambda: "kept" in told_why(preempting, "high") or None)
    assert preempting.get("pod", "low")["status"]["phase"] == "Running"
    preempting.kubectl("delete", "pdb", "kept")
    preempting.wait_running("high", timeout_s=150)
