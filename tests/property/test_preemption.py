"""A pod has those workloads ended that cost least: of all choices that make a place, by trying them all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.workloads import Workload
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.plan import plan
from dradriver.controller.placing.preemption_cost import ROUNDED_S, Cost
from dradriver.controller.placing.preemption_plan import plan_preemption
from dradriver.controller.placing.preemption_search import Scene, without
from dradriver.kube.resources import PODS
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from tests.effort import sampled
from tests.fakes.preempting import KUBELET, NOW, crowded, scene, waiting

PROFILES = ("rtx-a6000-x4-pairs", "dgx1-v100", "hgx-h100")


def has_place(picture: Picture, wish: PlacementRequest, workloads: tuple[Workload, ...]) -> bool:
    gone = [one for workload in workloads for one in workload.pods]
    try:
        decide(without(Snapshot(picture, "default"), gone), wish)
    except NoPlaceError:
        return False
    return True


def cost(workloads: tuple[Workload, ...]) -> Cost:
    lost = sum(workload.lost_gpu_s(NOW) for workload in workloads)
    return Cost(max(workload.priority for workload in workloads), len(workloads), round(lost / ROUNDED_S))


def cheapest(picture: Picture, wish: PlacementRequest, among: Scene) -> Cost | None:
    """Return the least cost of all choices of workloads, by trying each."""
    workloads = [workload for workload, _ in among.workloads]
    every = (chosen for count in range(1, len(workloads) + 1) for chosen in itertools.combinations(workloads, count))
    return min((cost(chosen) for chosen in every if has_place(picture, wish, chosen)), default=None)


@pytest.mark.parametrize("seed", sampled(range(40)))
async def test_those_end_that_cost_least(seed: int) -> None:
    rng = random.Random(seed)
    cluster = await crowded(rng, [rng.choice(PROFILES) for _ in range(rng.randint(1, 2))], most=11)
    words = rng.choice(({}, {}, {"policy": "nvlink"}, {"preferred": "nvlink"}))
    cluster.pod("me", rng.choice((1, 2, 3, 4, 8)), priority=15, requests={"cpu": rng.choice(("0", "2"))}, wishes=words)
    cluster.deliver()
    picture, me = cluster.worker.picture, waiting(cluster, "me")
    wish = me.wish
    if has_place(picture, wish, ()):
        return
    among = scene(picture, 15)
    found, best = plan_preemption(picture, [me], among), cheapest(picture, wish, among)
    assert (found is None) == (best is None)
    if found is not None:
        assert cost(found.victims) == best
        assert has_place(picture, wish, found.victims)
        assert all(workload.priority < 15 for workload in found.victims)
        taken = {device for workload in found.victims for one in workload.pods for device in one.devices}
        free = {device for device in found.places[me].taken if not picture.inventory.holders(device)}
        assert set(found.places[me].taken) <= taken | free


def of_gang(picture: Picture, members: list[Member], workloads: tuple[Workload, ...]) -> bool:
    """Return whether a gang has places without some workloads."""
    gone = [one for workload in workloads for one in workload.pods]
    try:
        gang_plan.plan(without(Snapshot(picture, "default"), gone), members, GangTerms(None, "g"))
    except NoPlaceError:
        return False
    return True


def planned(
    picture: Picture, members: list[Member], gang: GangTerms | None, nodes: Iterable[str] | None = None
) -> dict[Member, Placement] | None:
    """Return the places that pods have now, on some nodes or on all; None if they have none."""
    rows = None if nodes is None else picture.nodes.named(nodes)
    try:
        return plan(Snapshot(picture, "default").among(rows), members, gang)
    except NoPlaceError:
        return None


@pytest.mark.parametrize("seed", sampled(range(40)))
async def test_for_a_gang_those_end_without_whom_it_has_places_and_no_pod_of_needless_priority(seed: int) -> None:
    rng = random.Random(seed)
    cluster = await crowded(rng, [rng.choice(PROFILES) for _ in range(3)], most=16)
    cpu, gpus = rng.choice(("0", "2")), rng.choice((2, 4))
    for index in range(2):
        cluster.pod(f"me-{index}", gpus, priority=15, requests={"cpu": cpu}, wishes={"gang": "me", "gang-size": "2"})
    cluster.deliver()
    picture = cluster.worker.picture
    members = [waiting(cluster, f"me-{index}") for index in range(2)]
    if of_gang(picture, members, ()):
        return
    among = scene(picture, 15)
    workloads = [workload for workload, _ in among.workloads]
    found = plan_preemption(picture, members, among, GangTerms(None, "g", least=2))
    assert (found is None) == (not of_gang(picture, members, tuple(workloads)))
    if found is None:
        return
    assert set(found.places) == set(members)
    assert of_gang(picture, members, found.victims)
    highest = max(workload.priority for workload in found.victims)
    assert not of_gang(picture, members, tuple(workload for workload in workloads if workload.priority < highest))
    for spared in found.victims:
        assert not set().union(*(place.taken for place in found.places.values())).isdisjoint(
            {device for one in spared.pods for device in one.devices}
        ) or not of_gang(picture, members, tuple(workload for workload in found.victims if workload is not spared))


@pytest.mark.parametrize("seed", sampled(range(60)))
async def test_once_its_victims_are_gone_a_workload_gets_the_places_that_were_found_for_it(seed: int) -> None:
    rng = random.Random(seed)
    cluster = await crowded(rng, [rng.choice(PROFILES) for _ in range(rng.randint(1, 4))], most=16)
    picture, count = cluster.worker.picture, rng.choice((1, 1, 2, 3))
    cpu, gpus = rng.choice(("0", "2")), rng.choice((2, 4, 8))
    for index in range(count):
        words = {"gang": "me", "gang-size": str(count)} if count > 1 else {}
        cluster.pod(f"me-{index}", gpus, priority=15, requests={"cpu": cpu}, wishes=words)
    # The GPUs of a lost pod of a gang that runs on are kept for the pod that replaces it.
    alone = sorted(key[1] for key, pod in picture.pods.items() if pod.spec.node_name and picture.gangs.of(key) is None)
    for name in rng.sample(alone, min(len(alone), rng.choice((0, 1, 2)))):
        cluster.store.edit(PODS, ("default", name), lambda pod: pod["metadata"].setdefault("finalizers", [KUBELET]))
        cluster.store.remove(PODS, ("default", name))
    cluster.deliver()
    members = [waiting(cluster, f"me-{index}") for index in range(count)]
    gang, among = GangTerms(None, "g", least=count) if count > 1 else None, scene(picture, 15)
    if planned(picture, members, gang) is not None or (found := plan_preemption(picture, members, among, gang)) is None:
        return
    gone = [member for workload in found.victims for member in workload.pods]
    for key in (member.key for member in (*gone, *among.ending)):
        cluster.store.edit(PODS, key, lambda pod: pod["metadata"].pop("finalizers", None))
        cluster.store.remove(PODS, key)
    cluster.collect()
    cluster.deliver()
    nodes = None if gang is not None else {place.node for place in found.places.values()}
    places = planned(picture, members, gang, nodes)
    assert places is not None
    assert {member: place.taken for member, place in places.items()} == {
        member: place.taken for member, place in found.places.items()
    }
