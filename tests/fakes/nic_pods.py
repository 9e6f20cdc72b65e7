"""Pods whose templates ask for GPUs and NICs, on a fake cluster whose nodes have both, and what their claims say."""

from __future__ import annotations

import json
import re
from typing import Any

from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.control_plane.devices import results
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV

Object = dict[str, Any]
RDMA = 'device.attributes["dra.net"].rdma == true && device.attributes["dra.net"].virtual == false'
ODD = 'device.attributes["dra.net"].ifName.matches("^rdma")'  # nobody but the scheduler reads it
# hgx-h100: GPU i and NIC i hang from one switch.
NEAREST = dict(
    enumerate(
        (
            "0000:18:00.0", "0000:40:00.0", "0000:4f:00.0", "0000:5e:00.0", "0000:9a:00.0", "0000:c0:00.0",
            "0000:ce:00.0", "0000:dc:00.0",
        )
    )
)  # fmt: skip


def gpus(name: str = "gpu", count: int = 1, device_class: str = "gpu.topology") -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def wanted(name: str = "nic", count: int = 1, *texts: str, device_class: str = DRANET_CLASS, **more: Any) -> Object:
    exactly: Object = {"deviceClassName": device_class, "count": count} | more
    if texts:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in texts]
    return {"name": name, "exactly": exactly}


def template(cluster: GpuCluster, *requests: Object, name: str = "t", **devices: Any) -> None:
    content = {"spec": {"devices": {"requests": list(requests)} | devices}}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name, "namespace": "default"}, "spec": content})


def pod(cluster: GpuCluster, name: str = "p", template: str = "t", **wishes: str) -> None:
    claims = [{"name": "gpus", "resourceClaimName": claim_of(name)}]
    words = {key.replace("_", "-"): text for key, text in wishes.items()}
    cluster.pod(name, 1, wishes={"template": f"gpus/{template}"} | words, resourceClaims=claims)


def a_cluster(*nodes: str, profile: str = "hgx-h100", kind: type[GpuCluster] = GpuCluster) -> GpuCluster:
    cluster = kind()
    for node in nodes or ("a",):
        cluster.node(node, profile)
        cluster.put(RESOURCE_SLICES, nics.published(node, nics.of_machine(cluster.machines[node])))
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    return cluster


def asked(cluster: GpuCluster, name: str = "p") -> dict[str, Object]:
    claim = cluster.claim(name)
    assert claim is not None, cluster.note(name, "reason")
    return {one["name"]: one["exactly"] for one in claim["spec"]["devices"]["requests"]}


def addresses(cluster: GpuCluster, name: str = "p", request: str = "nic") -> list[str]:
    """Return the addresses that a pod's claim is pinned to: its first selector."""
    text = asked(cluster, name)[request].get("selectors", [{"cel": {"expression": ""}}])[0]["cel"]["expression"]
    found = re.fullmatch(r'device\.attributes\["dra\.net"\]\.\?pciAddress\.orValue\(""\) in (\[.*\])', text)
    return json.loads(found[1]) if found is not None else []


def given(cluster: GpuCluster, name: str = "p", driver: str = DRANET) -> list[str]:
    claim = cluster.claim(name)
    assert claim is not None
    return sorted(one["device"] for one in results(claim) if one["driver"] == driver)


async def run(cluster: GpuCluster) -> None:
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()


def gang(cluster: GpuCluster, *members: str, template: str = "t", **wishes: str) -> None:
    for name in members:
        pod(cluster, name, template, gang="g", gang_size=str(len(members)), **wishes)
