"""A snapshot without some pods is what the cluster cache is once these pods are gone."""

from __future__ import annotations

import random

import pytest

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.snapshot import Snapshot, StaleSnapshotError
from dradriver.controller.placing.decide import decide
from dradriver.kube.resources import PODS
from dradriver.queue.placement_request import PlacementRequest
from tests.effort import sampled
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import crowded, waiting

PROFILES = ("rtx-a6000-x4-pairs", "dgx1-v100", "hgx-h100")


def answers(snapshot: Snapshot, wish: PlacementRequest) -> tuple[object, ...]:
    """Return what a snapshot says of nodes, GPUs and places."""
    nodes, rows = snapshot.picture.nodes, snapshot.eligible(wish.ask)
    left = snapshot.left(["cpu", "memory", "pods"])
    by_node = {
        name: (bool(rows[nodes.row(name)]), left[nodes.row(name)].tolist(), sorted(snapshot.fleet.free(name)))
        for name in sorted(snapshot.fleet.nodes)
    }
    try:
        place = decide(snapshot, wish)
    except NoPlaceError as error:
        return by_node, snapshot.causes(wish.ask), str(error)
    return by_node, snapshot.causes(wish.ask), place.choice, list(place.hostnames)


async def world(rng: random.Random) -> tuple[GpuCluster, PlacementRequest]:
    """Return a crowded cluster, and what a pod requests that waits in it."""
    cluster = await crowded(rng, [rng.choice(PROFILES) for _ in range(rng.randint(1, 3))], most=12, gangs=False)
    words = rng.choice(({}, {"policy": "nvlink"}, {"preferred": "nvlink"}))
    cluster.pod("me", rng.choice((1, 2, 4, 8)), requests={"cpu": rng.choice(("0", "2", "16"))}, wishes=words)
    cluster.deliver()
    return cluster, waiting(cluster, "me").wish


@pytest.mark.parametrize("seed", sampled(range(60)))
async def test_without_some_pods_it_says_what_the_cache_says_once_they_are_gone(seed: int) -> None:
    rng = random.Random(seed)
    cluster, wish = await world(rng)
    picture = cluster.worker.picture
    running = sorted(key for key, pod in picture.pods.items() if pod.spec.node_name)
    gone = rng.sample(running, rng.randint(0, len(running)))
    claims = [claim.key for key in gone if (claim := picture.claim_of(picture.pods[key])) is not None]
    takes = [takes for key in gone if (takes := picture.node_usage.by(key)) is not None]
    live = Snapshot(picture, "default")
    before = answers(live, wish)
    some = rng.randint(0, len(gone))
    # In one step or in two, and in whatever order: it is the same.
    stepwise = live.without(claims[:some], takes[:some], are_own=True).without(
        claims[some:], takes[some:], are_own=True
    )
    foretold = answers(stepwise, wish)
    assert answers(live.without(claims, takes, are_own=True), wish) == foretold
    assert answers(live, wish) == before, "looking changes nothing"
    for namespace, name in gone:
        cluster.remove(PODS, name, namespace)
    cluster.collect()
    cluster.deliver()
    assert answers(Snapshot(picture, "default"), wish) == foretold


@pytest.mark.parametrize("seed", sampled(range(10)))
async def test_nodes_that_are_left_out_are_never_chosen(seed: int) -> None:
    rng = random.Random(seed)
    cluster, wish = await world(rng)
    snapshot = Snapshot(cluster.worker.picture, "default")
    names = sorted(snapshot.fleet.nodes)
    left_out = rng.sample(names, rng.randint(1, len(names)))
    try:
        place = decide(snapshot.avoiding(left_out), wish)
    except NoPlaceError:
        return
    assert not set(left_out) & set(place.hostnames)


@pytest.mark.parametrize("change", ["pod", "claim", "node", "gpus"])
async def test_it_is_not_read_after_the_cache_has_changed(change: str) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    snapshot = Snapshot(cluster.worker.picture, "default")
    derived = snapshot.without([("default", "none")])
    assert snapshot.picture is derived.picture
    match change:
        case "pod":
            spec = {"nodeName": "a", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
            cluster.put(PODS, {"metadata": {"name": "other", "namespace": "x"}, "spec": spec})
        case "claim":
            cluster.rival("rival", "a", range(1))
        case "node":
            cluster.node("b", None)
        case "gpus":
            cluster.node("b")
    cluster.deliver()
    for each in (snapshot, derived):
        with pytest.raises(StaleSnapshotError):
            _ = each.picture


async def test_nodes_of_which_gpus_are_left_out_stand_where_they_stand_in_the_network() -> None:
    cluster = GpuCluster()
    for name, zone in (("a", "z1"), ("b", "z2")):
        cluster.node(name, labels={"topology.kubernetes.io/zone": zone})
    await cluster.settle()
    snapshot = Snapshot(cluster.worker.picture, "default").offering_only({"a": {0, 1}})
    picture = snapshot.picture
    picture.fleets.locate(picture.nodes.labels(), "default")
    assert snapshot.fleet.free("a") == {0, 1}
    assert [snapshot.fleet.location(name) for name in "ab"] == [
        picture.fleets.of("default").location(name) for name in "ab"
    ]
    assert snapshot.fleet.location("a") != snapshot.fleet.location("b")
