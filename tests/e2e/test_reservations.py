"""GPUs that are kept for one that was passed by for long on a real Kubernetes, until a pod's declared end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod, told_why
from tests.e2e.parts import another_leads, kill_leader

pytestmark = pytest.mark.chart("policies.queue.reservation.afterMinutes=1")


@pytest.fixture
def patient(driver: Cluster) -> Iterator[Namespace]:
    """A namespace on a cluster where GPUs are reserved after a minute."""
    own = Namespace(driver, f"t-reserve-{uuid.uuid4().hex[:6]}")
    driver.kubectl("create", "namespace", own.name)
    yield own
    own.kubectl("delete", "pods", "--all", "--timeout=120s")
    driver.kubectl("delete", "namespace", own.name, "--wait=false")


def test_small_ones_no_longer_pass_by_a_large_one_and_the_next_leader_knows_it(patient: Namespace) -> None:
    def wants(name: str, gpus: int, **words: str) -> None:
        patient.apply(pod(name, gpus=gpus, words={names.POLICY: "best-effort"} | words, node="node-a"))

    wants("short", 4, **{names.MAX_DURATION: "180s"})
    patient.wait_running("short")
    assert patient.get("pod", "short")["spec"]["activeDeadlineSeconds"] == 180
    wants("large", 8)
    eventually(
        "GPUs are reserved for this workload",
        lambda: "are reserved for this workload" in told_why(patient, "large") or None,
        timeout_s=120,
    )
    wants("small", 1)
    assert "reserved for a workload that has waited longer" in told_why(patient, "small")
    killed = kill_leader(patient.cluster)
    another_leads(patient.cluster, killed)
    wants("smaller", 1)
    told_why(patient, "smaller")
    queue = json.loads(gputopo(patient.cluster.kubeconfig, "queue", "-o", "json").stdout)
    assert [one["name"] for one in queue if one.get("reserved")] == [f"{patient.name}/large"]
    patient.wait_running("large", timeout_s=200)
    assert patient.get("pod", "short")["status"]["reason"] == "DeadlineExceeded"
    assert len(patient.devices("large")) == 8
    patient.delete("large")
    patient.wait_running("small", "smaller")
