"""NICs as dranet publishes them, on a real cluster: pods that have them run, each with those nearest to its GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dradriver.api.base import names
from dradriver.topology import profiles
from dradriver.topology.machine import PathType
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.nic_driver import NicDriver, serving
from tests.fakes import nics

NODE = "node-b"
MACHINE = profiles.load(deploy.MACHINES[NODE], seed=NODE)
NEAR = [row.index(PathType.PIX) if PathType.PIX in row else None for row in MACHINE.nic_paths]  # the GPU of each NIC
NICS = {gpu: nic for gpu, nic in zip(NEAR, nics.of_machine(MACHINE), strict=True) if gpu is not None and gpu < 4}
"""Of the first four GPUs, by their number: two pods have them all, and GPUs are left."""
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"} | nics.device_class("dranet"),
    {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"} | nics.published(NODE, NICS.values()),
]


@pytest.fixture
def driver_of_nics(driver: Cluster) -> Iterator[NicDriver]:
    """dranet's slice of a node, and a plugin in its place."""
    with serving(driver.nodes[NODE], nics.DRANET) as served:
        driver.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(OBJECTS))
        yield served
        driver.kubectl("delete", "-f", "-", "--ignore-not-found", input=yaml.safe_dump_all(OBJECTS))


def template(count: int) -> dict[str, Any]:
    """Return a template of as many GPUs as NICs."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": kind, "count": count}}
        for name, kind in (("gpu", names.DEVICE_CLASS), ("nic", "dranet"))
    ]
    config = [{"requests": ["nic"], "opaque": {"driver": nics.DRANET, "parameters": {"interface": {"mtu": 9000}}}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "pair"},
        "spec": {"spec": {"devices": {"requests": requests, "config": config}}},
    }


def asks(name: str) -> dict[str, Any]:
    """Return a pod of the template, with words of ours."""
    made = pod(name, words={names.POLICY: "nvlink", names.NEAR_NIC: "required"}, node=NODE)
    made["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": "pair"}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "devices"}]
    return made


def got(namespace: Namespace, name: str) -> dict[str, set[str]]:
    """Return the names of the devices that the scheduler gave a pod, by driver."""
    claim = namespace.get("pod", name)["spec"]["resourceClaims"][0]["resourceClaimName"]
    found: dict[str, set[str]] = {}
    for one in namespace.get("resourceclaim", claim)["status"]["allocation"]["devices"]["results"]:
        found.setdefault(one["driver"], set()).add(one["device"])
    return found


def near(uuids: set[str]) -> set[str]:
    """Return the names of the NICs below the switches of GPUs."""
    return {NICS[n]["name"] for n, gpu in enumerate(MACHINE.gpus) if gpu.uuid.lower() in uuids}


def test_pods_run_with_the_nics_nearest_to_their_gpus_and_never_one_twice(
    driver_of_nics: NicDriver, namespace: Namespace
) -> None:
    namespace.apply(template(2), asks("one"), asks("two"))
    namespace.wait_running("one", "two")
    first, second = got(namespace, "one"), got(namespace, "two")
    for found in (first, second):
        assert len(found[nics.DRANET]) == len(found[names.DRIVER]) == 2
        assert found[nics.DRANET] == near(found[names.DRIVER])
    assert not first[nics.DRANET] & second[nics.DRANET]
    assert len(driver_of_nics.prepared) >= 2

    namespace.apply(asks("third"))
    reason = eventually("no NIC is left", lambda: namespace.annotation("third", names.REASON))
    assert "NICs" in reason
    namespace.delete("one")
    namespace.wait_running("third")
    assert got(namespace, "third")[nics.DRANET] == first[nics.DRANET]
