"""Claims with NICs that a killed controller left, of pods that are gated still: the next leader knows no NICs yet."""

from __future__ import annotations

import pytest

from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, Resource
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster, Killed
from tests.fakes.nic_pods import a_cluster, gang, given, gpus, pod, run, template, wanted
from tests.fakes.nics import DRANET_CLASS

UNREAD = "Waiting until the slices of drivers dra.net, sriovnetwork.k8snetworkplumbingwg.io are read."
NO_CLASS = "Waiting for DeviceClass 'dranet.net', which does not exist. Create it."
NO_TEMPLATE = "Waiting for ResourceClaimTemplate 't', which does not exist. Create it in the pod's namespace."


async def left(kill_at: int, *members: str) -> GpuCluster:
    """Return a cluster whose controller was killed at this write of a gang of these pods, or of one pod."""
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 2))
    if members:
        gang(cluster, *members, near_nic="required")
    else:
        pod(cluster, near_nic="required")
    cluster.client.kill_at = kill_at
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    return cluster


def uids(cluster: GpuCluster, *members: str) -> list[str | None]:
    claims = [cluster.claim(name) for name in members]
    return [None if claim is None else claim["metadata"]["uid"] for claim in claims]


def unharmed(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("kill_at", [6, 8])  # before any gate is lifted, and between the two
async def test_a_gang_waits_until_nics_are_known_and_goes_on(kill_at: int, caplog: pytest.LogCaptureFixture) -> None:
    cluster = await left(kill_at, *"pq")
    before = uids(cluster, *"pq")
    cluster.nics_are_read = False
    cluster.restart()
    for _ in range(3):
        cluster.deliver()
        await cluster.worker.rest()
    assert uids(cluster, *"pq") == before
    assert cluster.note("q", "reason") == UNREAD
    cluster.nics_are_read = True
    await run(cluster)
    assert uids(cluster, *"pq") == before
    assert [len(given(cluster, name)) for name in "pq"] == [2, 2]
    assert unharmed(caplog)


@pytest.mark.parametrize("members", ["pq", "p"])
@pytest.mark.parametrize(
    ("kind", "what", "reason"),
    [(DEVICE_CLASSES, DRANET_CLASS, NO_CLASS), (RESOURCE_CLAIM_TEMPLATES, "t", NO_TEMPLATE)],
)
async def test_without_the_class_or_the_template_claims_are_given_back_and_it_is_told(
    kind: Resource, what: str, reason: str, members: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await left(6, *members) if len(members) > 1 else await left(3)
    assert None not in uids(cluster, *members)
    namespace = "default" if kind is RESOURCE_CLAIM_TEMPLATES else ""
    cluster.remove(kind, what, namespace)
    cluster.restart()
    await cluster.settle()
    assert uids(cluster, *members) == [None] * len(members)
    assert {cluster.note(name, "reason") for name in members} == {reason}
    cluster.put(DEVICE_CLASSES, nics.device_class())
    template(cluster, gpus(count=2), wanted("nic", 2))
    await run(cluster)
    assert [len(given(cluster, name)) for name in members] == [2] * len(members)
    assert unharmed(caplog)


@pytest.mark.parametrize(("members", "kill_at"), [("pq", 6), ("p", 3)])
async def test_a_claim_one_of_whose_gpus_is_gone_is_given_back(
    members: str, kill_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await left(kill_at, *members) if len(members) > 1 else await left(kill_at)
    node, (gone, *_) = cluster.gpus("p")
    machine = cluster.machines[node]
    cluster.publish(node, machine.subset([at for at, gpu in enumerate(machine.gpus) if gpu.index != gone]))
    cluster.restart()
    await run(cluster)
    assert gone not in [gpu for name in members for at, some in [cluster.gpus(name)] if at == node for gpu in some]
    assert [len(given(cluster, name)) for name in members] == [2] * len(members)
    assert unharmed(caplog)


@pytest.mark.parametrize(("members", "kill_at"), [("pq", 8), ("p", 3)])
async def test_claims_whose_nics_the_scheduler_chooses_are_kept_until_nics_are_known(
    members: str, kill_at: int
) -> None:
    cluster = a_cluster()
    text = 'device.attributes["dra.net"].ifName.matches("^rdma")'  # which is not read here
    cluster.put(DEVICE_CLASSES, nics.device_class(DRANET_CLASS, nics.DRANET, text))
    template(cluster, gpus(count=2), wanted("nic", 2))
    if len(members) > 1:
        gang(cluster, *members)
    else:
        pod(cluster)
    cluster.client.kill_at = kill_at
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    before = uids(cluster, *members)
    assert None not in before
    cluster.nics_are_read = False
    cluster.restart()
    for _ in range(3):
        cluster.deliver()
        await cluster.worker.rest()
    assert uids(cluster, *members) == before
    assert {cluster.note(name, "reason") for name in members[-1:]} == {UNREAD}
