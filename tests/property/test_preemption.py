"""Whom a pod has ended: of all choices of units with which it has a place one of the least cost, by trying them all."""

from __future__ import annotations

import itertools
import random

import pytest

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.picture import Picture
from dradriver.cluster.running_units import RunningUnit
from dradriver.controller.decide import decide
from dradriver.controller.preemption_cost import ROUNDED_S, Cost
from dradriver.controller.preemption_plan import Scene, place
from dradriver.queue.placement_request import PlacementRequest
from tests.fakes.preempting import NOW, crowded, scene, waiting

PROFILES = ("rtx-a6000-x4-pairs", "dgx1-v100", "hgx-h100")


def has_place(picture: Picture, wish: PlacementRequest, units: tuple[RunningUnit, ...]) -> bool:
    gone = [one for unit in units for one in unit.pods]
    fleet = picture.inventory.without(*(one.claim for one in gone))
    with picture.nodes.without([(one.node, one.takes) for one in gone]):
        try:
            decide(picture, wish, fleet=fleet)
        except NoPlaceError:
            return False
    return True


def cost(units: tuple[RunningUnit, ...]) -> Cost:
    lost = sum(unit.lost_s(NOW) for unit in units)
    return Cost(max(unit.priority for unit in units), len(units), round(lost / ROUNDED_S))


def cheapest(picture: Picture, wish: PlacementRequest, among: Scene) -> Cost | None:
    """Return the least cost of all choices of units, by trying each."""
    units = [unit for unit, _ in among.units]
    every = (chosen for count in range(1, len(units) + 1) for chosen in itertools.combinations(units, count))
    return min((cost(chosen) for chosen in every if has_place(picture, wish, chosen)), default=None)


@pytest.mark.parametrize("seed", range(40))
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
