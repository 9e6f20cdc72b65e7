"""GPUs that are reserved for gangs: all of them as one, and as near to each other as the gang asks for."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.kube.resources import PODS
from dradriver.queue.reservation_rules import Terms
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import claim_of
from tests.fakes.reserving import HOUR_S, WAIT_S, Reserving

LEAF = "network.topology.nvidia.com/leaf"


@pytest.mark.slow
async def test_a_gangs_reservation_keeps_the_nodes_that_are_free_when_it_moves() -> None:
    cluster = Reserving()
    for node in "abc":
        cluster.node(node)
    await cluster.settle()
    for number in range(6):
        await cluster.run(f"s{number}", 4)
    on = {name: cluster.gpus(name)[0] for name in (f"s{number}" for number in range(6))}
    gang(cluster, 2, name="train")
    await cluster.settle()
    await cluster.later(WAIT_S)
    first = sorted({node for node, _ in cluster.held[0].gpus})
    (other,) = {"a", "b", "c"}.difference(first)
    for name in [name for name, node in on.items() if node == first[0]]:
        await cluster.end(name)
    for number, name in enumerate(name for name, node in on.items() if node == other):
        await cluster.end(name)
        await cluster.run(f"t{number}", 4, activeDeadlineSeconds=9 * HOUR_S)
    await cluster.later(Terms().idle_s * 2 + 60)
    (held,) = cluster.held
    assert sorted({node for node, _ in held.gpus}) == sorted((first[0], other))
    assert (held.moved, held.endless) == (1, ())


async def test_a_gang_that_loses_one_node_keeps_the_others_and_its_account() -> None:
    cluster = Reserving()
    for node in "abc":
        cluster.node(node)
    await cluster.settle()
    for name in ("s0", "s1", "s2"):
        await cluster.run(name, 8)
    on = {cluster.gpus(name)[0]: name for name in ("s0", "s1", "s2")}
    gang(cluster, 2, name="train")
    await cluster.settle()
    await cluster.later(WAIT_S)
    lost, kept = sorted({node for node, _ in cluster.held[0].gpus})
    await cluster.end(on[kept])
    await cluster.later(600)
    cost = cluster.held[0].idle_gpu_s
    assert cost == pytest.approx(4800, abs=480)
    cluster.node(lost, None, unschedulable=True)
    await cluster.look()
    (held,) = cluster.held
    assert {node for node, _ in held.gpus} == {"a", "b", "c"} - {lost}
    assert held.idle_gpu_s >= cost


async def test_a_gang_gets_all_its_gpus_reserved_as_one() -> None:
    cluster = Reserving()
    for node in "abc":
        cluster.node(node)
    await cluster.settle()
    for name in ("s0", "s1", "s2"):
        await cluster.run(name, 8, **({"activeDeadlineSeconds": HOUR_S} if name != "s0" else {}))
    gang(cluster, 2, name="train")
    await cluster.settle()
    await cluster.later(WAIT_S)
    (held,) = cluster.held
    assert held.who.startswith("default/gang/train-")
    assert {node for node, _ in held.gpus} == {cluster.gpus("s1")[0], cluster.gpus("s2")[0]}
    await cluster.end("s1")
    cluster.pod("late", 8)
    await cluster.settle()
    assert not cluster.runs("late")
    await cluster.end("s2")
    assert cluster.runs("train-0")
    assert cluster.runs("train-1")


@pytest.mark.parametrize("extra", ["train-0a", "train-9"])
async def test_a_pod_that_is_not_needed_and_cannot_be_read_keeps_no_gpus_from_its_gang(extra: str) -> None:
    cluster = Reserving()
    for node in "ab":
        cluster.node(node)
    await cluster.settle()
    for name in ("s0", "s1"):
        await cluster.run(name, 8, activeDeadlineSeconds=HOUR_S)
    gang(cluster, 2, name="train")
    claims = [{"name": "gpus", "resourceClaimName": claim_of(extra)}]
    words = {"gang": "train", "gang-size": "2", "template": "gpus/absent"}
    cluster.pod(extra, 1, wishes=words, resourceClaims=claims)
    await cluster.settle()
    await cluster.later(WAIT_S)
    (held,) = cluster.held
    assert {node for node, _ in held.gpus} == {"a", "b"}


@pytest.mark.slow
@pytest.mark.parametrize("others", ["dgx1-v100", "hgx-h100"])
async def test_a_gang_is_as_near_as_it_says_by_what_nodes_labels_are_now(others: str) -> None:
    cluster = Reserving()
    for node in "ab":
        cluster.node(node, labels={LEAF: "one"})
    cluster.node("c", others, labels={LEAF: "two"})
    await cluster.settle()
    for number in range(6):
        await cluster.run(f"s{number}", 4)
    for pod in ("train-0", "train-1"):
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "2", "near": "leaf", "min-gpus-per-node": "8"})
    await cluster.settle()
    await cluster.later(WAIT_S)
    (held,) = cluster.held
    assert {node for node, _ in held.gpus} == {"a", "b"}
    cluster.node("b", None, labels={LEAF: "three"})
    cluster.node("c", None, labels={LEAF: "four"})
    on = {node: [name for name in (f"s{i}" for i in range(6)) if cluster.gpus(name)[0] == node] for node in "ab"}
    await cluster.end(*on["a"], *on["b"])
    assert not cluster.runs("train-0"), "no two nodes are of one leaf any more"
    assert "near leaf: " in (cluster.note("train-0", "reason") or "")


@pytest.mark.slow
async def test_those_that_differ_let_no_gpus_stand_idle_one_after_another() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("notebook", 1)
    for number in range(4):
        cluster.pod(f"big-{number}", 8, requests={"cpu": str(number + 1)})
    await cluster.settle()
    await cluster.later(WAIT_S)
    first = cluster.held[0].who
    await cluster.later(Terms().idle_s * 8 / 7)
    assert not cluster.held
    cluster.pod("small", 4, activeDeadlineSeconds=9 * HOUR_S)
    await cluster.settle()
    assert cluster.runs("small")
    await cluster.later(2 * Terms().bounded_wait_s - 120)
    await cluster.fail_over()
    await cluster.later(60)
    assert not cluster.held, "another leader knows of it, too"
    await cluster.later(180)
    assert cluster.held[0].who != first


async def test_nothing_is_reserved_for_a_gang_that_lacks_the_cpu_of_others() -> None:
    cluster = Reserving()
    for node in "ab":
        cluster.node(node)
        containers = [{"name": "main", "resources": {"requests": {"cpu": "60"}}}]
        spec = {"nodeName": node, "containers": containers}
        metadata = {"name": f"cpu-{node}", "namespace": "default"}
        cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    await cluster.settle()
    await cluster.run("small", 4)
    for name in ("train-0", "train-1"):
        cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "2"}, requests={"cpu": "32"})
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert not cluster.held
    cluster.pod("late", 4)
    await cluster.settle()
    assert cluster.runs("late")


async def test_a_gang_that_may_have_reserved_gpus_is_as_near_as_it_asks_to_be() -> None:
    cluster = Reserving()
    cluster.worker.picture.levels_changed(["zone"], {})
    for node, zone in zip("abc", "xxy", strict=True):
        cluster.node(node, labels={"zone": zone})
    await cluster.settle()
    for number in range(6):
        await cluster.run(f"s{number}", 4)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(WAIT_S)
    ((reserved, _), *_) = cluster.held[0].gpus
    for name in ("train-0", "train-1"):
        cluster.pod(name, 8, wishes={"gang": "train", "gang-size": "2", "near": "zone"}, priority=1)
    await cluster.settle()
    other = "a" if reserved == "b" else "b"
    gone = [name for name in (f"s{number}" for number in range(6)) if cluster.gpus(name)[0] in "ab"]
    cluster.node(other, labels={"zone": "y"})
    await cluster.end(*gone)
    assert not cluster.runs("train-0"), "one node of each zone is free"


async def _seconds_until_released(cluster: Reserving) -> float:
    """Return how long GPUs stay reserved, by the clock that reservations are judged by; at most ten minutes."""
    began = cluster.now
    while cluster.held and cluster.now < began + 600:
        await asyncio.sleep(1)
        cluster.now += 1
    return cluster.now - began


@pytest.mark.parametrize("shown", [True, False], ids=["the end is shown", "nothing is looked at"])
async def test_what_a_gang_that_is_gone_had_reserved_is_free_at_once(shown: bool) -> None:
    cluster = Reserving()
    for node in "ab":
        cluster.node(node)
    await cluster.settle()
    for name in ("s0", "s1"):
        await cluster.run(name, 8)
    pods = gang(cluster, 2, name="train")
    await cluster.settle()
    await cluster.later(WAIT_S)
    assert sum(len(held.gpus) for held in cluster.held) == 16
    await cluster.end("s0")
    at_work = asyncio.create_task(cluster.features.reservations.run(None))
    await asyncio.sleep(20)
    cluster.now += 20
    assert cluster.held
    cluster.remove(PODS, pods[0], "default")
    cluster.remove(PODS, pods[1], "default")
    cluster.deliver()
    if shown:
        await cluster.settle()
    assert await _seconds_until_released(cluster) <= (1 if shown else 30)
    at_work.cancel()
