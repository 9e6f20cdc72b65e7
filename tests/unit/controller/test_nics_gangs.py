"""NICs beside the GPUs of gangs several pods of which are on one node."""

from __future__ import annotations

import random

import pytest

from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nics import SRIOV
from tests.unit.controller.test_nics import NEAREST, addresses, gang, gpus, run, template, wanted

pytestmark = pytest.mark.looptime

CARDS = (  # of a DGX A100, by the switch that they share with two GPUs
    ("0000:0c:00.0", "0000:12:00.0"), ("0000:4b:00.0", "0000:54:00.0"),
    ("0000:8d:00.0", "0000:94:00.0"), ("0000:ba:00.0", "0000:cc:00.0"),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
async def test_gpus_that_share_near_nics_are_given_to_a_gang_as_far_as_these_go(seed: int) -> None:
    own, cluster = random.Random(seed), GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.node("a", "dgx-a100")
    free = own.sample(range(8), own.randint(4, 8))
    cluster.rival("theirs", "a", [gpu for gpu in range(8) if gpu not in free])
    there = [(pair, number) for pair in range(4) for number in range(2) if own.random() < 0.6]
    devices = [nics.device(CARDS[pair][number], number=2 * pair + number) for pair, number in there]
    cluster.put(RESOURCE_SLICES, nics.published("a", devices))
    pairs = [gpu // 2 for gpu in free]
    room = sum(min(pairs.count(pair), sum(at == pair for at, _ in there)) for pair in range(4))
    pods = "pqrs"[: own.choice([2, 3, 4])]
    template(cluster, gpus(), wanted("nic"))
    gang(cluster, *pods, near_nic="required")
    await run(cluster)
    assert (cluster.claim("p") is not None) is (room >= len(pods)), cluster.note("p", "reason")


async def test_each_pod_of_a_gang_on_a_node_gets_gpus_near_unlike_nics() -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.node("a", "hgx-h100")
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(cluster.machines["a"])))
    some = (f'device.attributes["dra.net"].pciAddress in ["{NEAREST[gpu]}", "{NEAREST[gpu + 4]}"]' for gpu in (2, 3))
    template(cluster, gpus(count=2), *(wanted(f"n{at}", 1, text) for at, text in enumerate(some)))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    for name in "pq":
        given = [*addresses(cluster, name, request="n0"), *addresses(cluster, name, request="n1")]
        assert sorted(given) == sorted(NEAREST[gpu] for gpu in cluster.gpus(name)[1])


@pytest.mark.parametrize("before", [7, 12])
async def test_a_gang_of_one_node_is_looked_for_behind_nodes_that_do_for_one_of_its_pods(before: int) -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    for name, cards in [*((f"a{at:02}", 1) for at in range(before)), ("z", 8)]:
        cluster.node(name, "hgx-h100")
        every = [(NEAREST[card], at) for card in range(cards) for at in range(4)]
        made = [nics.function(f"{card[:-1]}{1 + at}", card, at) for card, at in every]
        cluster.put(RESOURCE_SLICES, nics.published(name, made, driver=SRIOV))
    template(cluster, gpus(), wanted("nic", 1, device_class=SRIOV))
    gang(cluster, *"pq", near_nic="required", max_nodes="1")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    assert {cluster.gpus(name)[0] for name in "pq"} == {"z"}
