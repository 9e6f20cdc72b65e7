"""Whom a pod has ended: of all choices of units with which it has a place one of the least cost, by trying them all."""

from __future__ import annotations

import itertools
import random

import pytest

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.derived.workloads import Workload
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.gang_preemption_plan import place_together
from dradriver.controller.placing.preemption_cost import ROUNDED_S, Cost
from dradriver.controller.placing.preemption_plan import Scene, place, without
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.units import Member
from tests.effort import sampled
from tests.fakes.preempting import NOW, crowded, scene, waiting

PROFILES = ("rtx-a6000-x4-pairs", "dgx1-v100", "hgx-h100")


def has_place(picture: Picture, wish: PlacementRequest, units: tuple[Workload, ...]) -> bool:
    gone = [one for unit in units for one in unit.pods]
    try:
        decide(without(Snapshot(picture, "default"), gone), wish)
    except NoPlaceError:
        return False
    return True


def cost(units: tuple[Workload, ...]) -> Cost:
    lost = sum(unit.lost_gpu_s(NOW) for unit in units)
    return Cost(max(unit.priority for unit in units), len(units), round(lost / ROUNDED_S))


def cheapest(picture: Picture, wish: PlacementRequest, among: Scene) -> Cost | None:
    """Return the least cost of all choices of units, by trying each."""
    units = [unit for unit, _ in among.units]
    every = (chosen for count in range(1, len(units) + 1) for chosen in itertools.combinations(units, count))
    return min((cost(chosen) for chosen in every if has_place(picture, wish, chosen)), default=None)


@pytest.mark.parametrize("seed", sampled(range(40)))
async def test_those_end_that_cost_least(seed: int) -> None:
    rng = random.Random(seed)
    cluster = await crowded(rng, [rng.choice(PROFILES) for _ in range(rng.randint(1, 2))], most=11)
    words = rng.choice(({}, {}, {"policy": "nvlink"}, {"preferred": "nvlink"}))
    cluster.pod("me", rng.choice((1, 2, 3, 4, 8)), priority=15, requests={"cpu": rng.choice(("0", "2"))}, wishes=words)
    cluster.deliver()
    picture, wish = cluster.worker.picture, waiting(cluster, "me").wish
    if has_place(picture, wish, ()):
        return
    among = scene(picture, 15)
    found, best = place(picture, wish, among), cheapest(picture, wish, among)
    assert (found is None) == (best is None)
    if found is not None:
        assert cost(found.victims) == best
        assert has_place(picture, wish, found.victims)
        assert all(unit.priority < 15 for unit in found.victims)
        taken = {device for unit in found.victims for one in unit.pods for device in one.devices}
        free = {device for device in found.placement.taken if not picture.inventory.holders(device)}
        assert set(found.placement.taken) <= taken | free


def of_gang(picture: Picture, members: list[Member], units: tuple[Workload, ...]) -> bool:
    """Return whether a gang has places without some units."""
    gone = [one for unit in units for one in unit.pods]
    try:
        gang_plan.plan(without(Snapshot(picture, "default"), gone), members, None, identity="g")
    except NoPlaceError:
        return False
    return True


@pytest.mark.parametrize("seed", sampled(range(40)))
async def test_for_a_gang_those_end_without_whom_it_has_places_and_nobody_of_needless_priority(seed: int) -> None:
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
    units = [unit for unit, _ in among.units]
    found = place_together(picture, members, None, among, identity="g", least=2)
    assert (found is None) == (not of_gang(picture, members, tuple(units)))
    if found is None:
        return
    assert set(found.places) == set(members)
    assert of_gang(picture, members, found.victims)
    highest = max(unit.priority for unit in found.victims)
    assert not of_gang(picture, members, tuple(unit for unit in units if unit.priority < highest))
    for spared in found.victims:
        assert not set().union(*(place.taken for place in found.places.values())).isdisjoint(
            {device for one in spared.pods for device in one.devices}
        ) or not of_gang(picture, members, tuple(unit for unit in found.victims if unit is not spared))
