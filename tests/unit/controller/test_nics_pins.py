"""What a claim is pinned to of NICs: what the controller chose, and nothing that its author wrote like that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dradriver.api.policies.policy_sections import Nics
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.nic_pods import (
    NEAREST,
    ODD,
    a_cluster,
    addresses,
    asked,
    gang,
    given,
    gpus,
    pod,
    run,
    template,
    wanted,
)
from tests.fakes.nics import DRANET

Object = dict[str, Any]
EVERY = sorted(NEAREST.values())
NOTHING = 'device.attributes["dra.net"].ifName.matches("^nothing")'


def like_a_pin(listed: list[str]) -> str:
    return f'device.attributes["dra.net"].?pciAddress.orValue("") in {json.dumps(listed)}'


def foreign_claim(cluster: GpuCluster, device: str = "pci-0000-18-00-0") -> None:
    """Give a NIC to a claim that the controller has nothing to do with."""
    taken = {"driver": DRANET, "pool": "a", "device": device, "request": "nic"}
    given_to = {"allocation": {"devices": {"results": [taken]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "theirs", "namespace": "other"}, "status": given_to})


def as_before(cluster: GpuCluster, name: str) -> None:
    """Have a pod's claim as a release wrote it that did not say which requests it chose for."""
    claim = cluster.claim(name)
    assert claim is not None
    claim["spec"]["devices"]["config"][-1].pop("requests")
    cluster.put(RESOURCE_CLAIMS, claim)


def patient(*nodes: str) -> GpuCluster:
    cluster = a_cluster(*nodes)
    cluster.promise_s, cluster.unschedulable_s = 30, 5
    cluster.restart()
    return cluster


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("count", "listed"), [(1, EVERY), (8, EVERY), (1, EVERY[:1])])
async def test_an_authors_selector_of_the_form_of_a_pin_keeps_no_nic_from_others(
    count: int, listed: list[str], before: bool
) -> None:
    cluster = a_cluster()
    template(cluster, gpus(), wanted("odd", count, like_a_pin(listed), NOTHING), name="decoy")
    pod(cluster, "decoy", "decoy")
    await cluster.settle()
    if before and count < len(listed):  # with as many addresses as devices it looked like one
        as_before(cluster, "decoy")
        cluster.restart()
    template(cluster, gpus(count=4), wanted("nic", 8))
    pod(cluster)
    await cluster.settle()
    assert sorted(addresses(cluster)) == EVERY


async def test_a_claim_that_only_looks_like_ours_keeps_no_nic_from_others() -> None:
    cluster = a_cluster()
    template(cluster, gpus(), wanted("nic", 7))
    pod(cluster)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "forged", "namespace": "default"}, "spec": claim["spec"]})
    cluster.remove(PODS, "p", "default")
    cluster.collect()
    template(cluster, gpus(count=8), wanted("nic", 8), name="u")
    pod(cluster, "q", "u")
    await run(cluster)
    assert len(given(cluster, "q")) == 8


async def test_a_pod_gets_what_its_author_listed_though_one_of_them_is_in_use() -> None:
    cluster = patient()
    foreign_claim(cluster)
    template(cluster, gpus(), wanted("odd", 1, like_a_pin(EVERY), ODD))
    pod(cluster)
    await run(cluster)
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"
    assert len(given(cluster)) == 1


async def test_next_to_a_request_that_only_looks_pinned_others_are() -> None:
    cluster = a_cluster()
    template(cluster, gpus(), wanted("odd", 1, like_a_pin(EVERY), ODD), wanted("nic", 1, like_a_pin(EVERY[3:5])))
    pod(cluster)
    await cluster.settle()
    (chosen,) = addresses(cluster)
    assert chosen in EVERY[3:5]
    cluster.restart()  # another reads it out of the claim
    template(cluster, gpus(count=7), wanted("nic", 7), name="u")
    pod(cluster, "q", "u")
    await cluster.settle()
    assert sorted(addresses(cluster, "q")) == [one for one in EVERY if one != chosen]


async def test_a_claim_of_before_requests_were_named_is_read() -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 4), wanted("odd", 1, ODD))
    pod(cluster)
    await cluster.settle()
    promised = addresses(cluster)
    as_before(cluster, "p")
    cluster.restart()
    pod(cluster, "q")
    await cluster.settle()
    assert addresses(cluster) == promised
    assert sorted((*promised, *addresses(cluster, "q"))) == EVERY


async def test_a_class_of_nics_may_end_as_the_classes_of_gpus_do() -> None:
    cluster = a_cluster()
    cluster.put(DEVICE_CLASSES, nics.device_class("rails.gpu.topology"))
    cluster.worker.picture.nic_classes_changed(Nics(classes={"rails.gpu.topology": "dranet"}).every)
    template(cluster, gpus(), wanted(device_class="rails.gpu.topology"))
    pod(cluster)
    await cluster.settle()
    assert addresses(cluster) == [NEAREST[0]]
    promised, writes = cluster.claim("p"), len(cluster.client.writes)
    await cluster.settle()
    assert (cluster.claim("p"), len(cluster.client.writes)) == (promised, writes)


async def test_a_request_of_the_seats_name_is_next_to_the_seat() -> None:
    cluster = a_cluster()
    cluster.barrier()
    template(cluster, gpus(), wanted("seat"))
    gang(cluster, *"pq")
    await cluster.settle()
    for name in "pq":
        assert list(asked(cluster, name)) == ["gpu", "seat-2", "seat"]
        assert len(addresses(cluster, name, "seat")) == 1
    assert len(cluster.worker.picture.nics.held(("default", claim_of("p")))) == 1
