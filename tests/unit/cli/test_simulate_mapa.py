"""MAPA's policy Preserve against the paper's definitions, by trying every ring and every set."""

from __future__ import annotations

import itertools
import random

import pytest

from dradriver.allocator.sets.masks import mask_of, positions_of
from dradriver.cli.simulator import mapa
from dradriver.cli.simulator.placement_policies import POLICIES
from dradriver.cli.simulator.simulated_cluster import Cluster, Part
from dradriver.topology.machine import Machine
from tests.fakes import machines


def predicted(links: list[int]) -> float:
    """The regression of the authors' simulator, term by term, for the links of a ring's edges."""
    double = sum(count > 1 for count in links)
    single, pcie = links.count(1), links.count(0)
    terms = [
        (16.39670455, double), (4.536821878, single), (1.55623404, pcie),
        (-20.69484581, 1 / (double + 1)), (-9.467461958, 1 / (single + 1)), (7.615106783, 1 / (pcie + 1)),
        (-7.973335727, double * single), (12.73323772, single * pcie), (-4.195655221, double * pcie),
        (-8.413419363, 1 / (double * single + 1)), (62.85125807, 1 / (single * pcie + 1)),
        (27.41832588, 1 / (double * pcie + 1)),
        (-5.114108079, double * single * pcie), (-46.97390071, 1 / (double * single * pcie + 1)),
    ]  # fmt: skip
    return sum(factor * value for factor, value in terms)


def best_ring(machine: Machine, places: tuple[int, ...]) -> float:
    rings = ((places[0], *rest) for rest in itertools.permutations(places[1:]))
    return max(predicted([machine.links[a][b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)])
               for ring in rings)  # fmt: skip


def left(machine: Machine, places: tuple[int, ...]) -> int:
    return sum(machine.links[a][b] for a, b in itertools.combinations(places, 2))


@pytest.mark.parametrize("machine", [machines.dgx1(), machines.bridge_pairs()])
@pytest.mark.parametrize("gpus", [2, 3, 4, 5])
def test_several_gpus_are_the_set_with_the_best_ring(machine: Machine, gpus: int) -> None:
    rng = random.Random(gpus)
    for _ in range(4):
        free = tuple(sorted(rng.sample(range(8), rng.randint(gpus, 8))))
        chosen = positions_of(mapa.preserve(machine, mask_of(free), gpus))
        assert set(chosen) <= set(free)
        assert len(chosen) == gpus
        every = list(itertools.combinations(free, gpus))
        assert best_ring(machine, chosen) == pytest.approx(max(best_ring(machine, places) for places in every))


@pytest.mark.parametrize("places", [(0, 3), (0, 5), (0, 1, 2, 3), (0, 1, 4, 6, 7)])
def test_the_prediction_is_that_of_the_best_of_all_rings(places: tuple[int, ...]) -> None:
    machine = machines.dgx1()
    assert mapa.effective_bandwidth_gbps(machine, places) == pytest.approx(best_ring(machine, places))


def test_one_gpu_leaves_the_most_links_between_the_others() -> None:
    machine = machines.dgx1()
    for size in range(1, 9):
        for free in itertools.combinations(range(8), size):
            (chosen,) = positions_of(mapa.preserve(machine, mask_of(free), 1))
            most = max(left(machine, tuple(other for other in free if other != place)) for place in free)
            assert left(machine, tuple(place for place in free if place != chosen)) == most


def test_it_takes_the_first_node_that_has_room() -> None:
    cluster = Cluster([machines.dgx1()] * 2)
    preserve = POLICIES["mapa preserve"]
    cluster.take([Part(0, 0b1111110)])
    assert preserve(cluster, 2, random.Random(1)) == Part(0, 0b10000001)
    assert preserve(cluster, 3, random.Random(1)) == Part(1, mapa.preserve(machines.dgx1(), 0b11111111, 3))
    assert preserve(cluster, 8, random.Random(1)) == Part(1, 0b11111111)
    assert preserve(cluster, 9, random.Random(1)) is None
