"""A pod that does not use a feature does not run the feature's code, from its creation until it is bound."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import dradriver
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from tests.fakes import domains, nic_pods
from tests.fakes.gpucluster import GpuCluster, claim_of

ROOT = Path(dradriver.__file__).parent
AUDIT = str(ROOT / "controller/audit.py")
NICS = "cluster/nics/nic_inventory.py"
CHANNELS = "cluster/pods/nvlink_channels.py"
# The modules of each feature.
FEATURES = {
    "caps": {"queue/caps.py"},
    "reservations": {
        "cluster/gpus/reserved.py",
        "controller/features/reservations.py",
        "controller/placing/reservable.py",
        "queue/reservation_access.py",
        "queue/reservation_rules.py",
    },
    "GPUs of one namespace": {"cluster/gpus/exclusive_namespaces.py"},
    "NICs": {
        NICS,
        "api/vocabulary/nic_requests.py",
        "cluster/nics/nic_counts.py",
        "cluster/nics/nic_devices.py",
        "cluster/nics/nic_distances.py",
        "controller/placing/nic_choice.py",
        "controller/placing/nic_limit.py",
        "controller/placing/nic_node.py",
        "controller/placing/nic_places.py",
        "controller/placing/nic_refusals.py",
    },
    "NVLink channels": {CHANNELS, "api/claims/compute_domains.py", "controller/placing/channel_limit.py"},
    "host ports": {"cluster/nodes/host_ports.py"},
    "rules about foreign pods": {"cluster/pods/foreign_pods.py"},
    "claims of other drivers": {"cluster/pods/other_claims.py", "controller/placing/claim_limit.py"},
    "spot nodes": {"controller/placing/spot_limit.py"},
    "maintenance": {"api/base/node_maintenance.py"},
    "idle pods": {
        "api/claims/idleness.py",
        "controller/features/idle_pods.py",
        "controller/features/idle_step.py",
        "controller/features/idle_workloads.py",
        "controller/owners/idle_writer.py",
    },
    "usage": {"controller/writing/usage_store.py"},
    "preemption": {"api/claims/preemption_note.py", "controller/placing/preemption_plan.py"},
    "gangs": {
        "api/claims/gang_plan_note.py",
        "cluster/pods/kept_places.py",
        "controller/placing/gang_plan.py",
        "controller/steps/gang_step.py",
    },
}


@contextmanager
def entered() -> Iterator[set[str]]:
    """Yield the modules of the driver whose functions are called, without those that only the audit calls."""
    found = set[str]()

    def called(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(str(ROOT)):
            return
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_filename != AUDIT:
            caller = caller.f_back
        if caller is None:
            found.add(str(Path(file).relative_to(ROOT)))

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


async def bound(cluster: GpuCluster, name: str) -> None:
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod(name)["spec"].get("nodeName")


async def test_a_plain_pod_runs_the_code_of_no_feature() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.node("b")
    cluster.pod("first", 1)
    await bound(cluster, "first")
    with entered() as files:
        cluster.pod("p", 4)
        await bound(cluster, "p")
        cluster.node("a", None, ready="False")
        cluster.remove(PODS, "p", "default")
        await cluster.settle()
    assert "controller/placing/decide.py" in files
    assert {feature: entered_of for feature, own in FEATURES.items() if (entered_of := files & own)} == {}
    assert all((ROOT / file).is_file() for own in FEATURES.values() for file in own)


def with_nic() -> GpuCluster:
    cluster = nic_pods.a_cluster()
    nic_pods.template(cluster, nic_pods.gpus(), nic_pods.wanted())
    nic_pods.pod(cluster)
    return cluster


def with_channel() -> GpuCluster:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.put(RESOURCE_SLICES, domains.resource_slice("a"))
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "domain"))
    own = {"name": "gpu-topology", "resourceClaimName": claim_of("p")}
    cluster.pod("p", 4, resourceClaims=[own, domains.entry("t")])
    return cluster


def with_cap() -> GpuCluster:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.worker.follow(Policies(tenants={"t": Tenant(namespaces=("default",), cap=(Cap(gpus=8),))}))
    cluster.pod("p", 4)
    return cluster


@pytest.mark.parametrize(
    ("made", "file"),
    [(with_nic, NICS), (with_channel, CHANNELS), (with_cap, "queue/caps.py")],
    ids=["NIC", "channel", "cap"],
)
async def test_a_pod_that_uses_a_feature_runs_its_code(made: Callable[[], GpuCluster], file: str) -> None:
    with entered() as files:
        cluster = made()
        await cluster.settle()
        assert cluster.claim("p") is not None
    assert file in files
