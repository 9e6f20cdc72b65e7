"""A node loses the first GPU of an exclusive partition: no GPU of the partition goes to another tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.parts import no_agent
from tests.e2e.test_node_health import gputopo

NODE: Final = "node-a"
OWN: Final = range(4)  # the partition's numbers
PODS: Final = 8

pytestmark = pytest.mark.chart(
    "policies.tenants.owner.namespaces[0]=t-nobodys",
    "policies.tenants.owner.exclusive=true",
    f"policies.tenants.owner.partition.nodes[0]={NODE}",
    *(f"policies.tenants.owner.partition.numbers[{position}]={number}" for position, number in enumerate(OWN)),
)


@pytest.fixture
def lost(driver: Cluster) -> Iterator[str]:
    """The uuid of the node's first GPU, which is lost; afterwards it is there again."""
    uuid = profiles.load(deploy.MACHINES[NODE], seed=NODE).gpus[0].uuid
    gputopo(driver.nodes[NODE], "fail", "gpu-0", "--lost")
    try:
        eventually("the GPU is not published", lambda: not is_published(driver, uuid), timeout_s=90)
        yield uuid
    finally:
        gputopo(driver.nodes[NODE], "heal")
        eventually("the GPU is published", lambda: is_published(driver, uuid), timeout_s=90)


def is_published(cluster: Cluster, uuid: str) -> bool:
    pieces = [one for one in cluster.api.objects("resourceslices") if one["spec"].get("nodeName") == NODE]
    return any(
        device["name"] == resource_slices.device_name(uuid) for one in pieces for device in one["spec"]["devices"]
    )


def given(namespace: Namespace, prefix: str, count: int) -> set[str]:
    """Create as many pods as the node had GPUs, and return the uuids of the GPUs that they get: at least ``count``."""
    pods = [f"{prefix}-{number}" for number in range(PODS)]
    namespace.apply(*(pod(name, gpus=1, words={names.POLICY: "best-effort"}, node=NODE) for name in pods))

    def is_answered(name: str) -> bool:
        return bool(namespace.annotation(name, names.ALLOCATED) or namespace.annotation(name, names.REASON))

    def found() -> set[str]:
        return {uuid for name in pods if (uuid := namespace.annotation(name, names.ALLOCATED))}

    # A pod can have a reason for a moment before it gets its GPU, for example while its node publishes its devices.
    eventually(f"{count} pods have a GPU", lambda: len(found()) >= count, timeout_s=90)
    eventually("each pod has a GPU or a reason", lambda: all(map(is_answered, pods)), timeout_s=90)
    uuids = found()
    namespace.delete(*pods)
    return uuids


def test_no_gpu_of_an_exclusive_partition_goes_to_others_when_one_is_lost(
    driver: Cluster, namespace: Namespace, lost: str
) -> None:
    gpus = profiles.load(deploy.MACHINES[NODE], seed=NODE).gpus
    others = {gpu.uuid for gpu in gpus if gpu.index not in OWN}
    assert given(namespace, "before", len(others)) == others
    with no_agent(driver, NODE):
        pass
    assert not is_published(driver, lost)
    assert given(namespace, "after", len(others)) == others
