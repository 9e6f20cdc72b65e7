"""Every array over masks against the plainest possible search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from dradriver.allocator.request import Constraint
from dradriver.allocator.sets import cycles, subsets
from dradriver.allocator.sets.criteria import Criteria
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology.machine import Machine
from tests.fakes import machines

Graph = list[list[int]]


def graphs(count: int, *, gpus: int = 6) -> list[Graph]:
    """Random graphs with up to three links a pair; always the same ones."""
    rng = random.Random(7)
    found: list[Graph] = []
    for _ in range(count):
        graph = [[0] * gpus for _ in range(gpus)]
        for a, b in itertools.combinations(range(gpus), 2):
            graph[a][b] = graph[b][a] = rng.choice((0, 0, 1, 2, 3))
        found.append(graph)
    return found


def members(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


@pytest.mark.parametrize("graph", graphs(4))
def test_hamiltonian_cycles_and_paths(graph: Graph) -> None:
    cycles, paths = subsets.hamiltonian(np.array([graph]) > 0)
    for mask in range(1, 64):
        places = members(mask)
        orders = [order for order in itertools.permutations(places) if order[0] <= order[-1]]
        chains = [order for order in orders if all(graph[a][b] for a, b in itertools.pairwise(order))]
        rings = [order for order in chains if len(order) == 1 or graph[order[-1]][order[0]]]
        assert bool(paths[0, mask]) == bool(chains)
        assert bool(cycles[0, mask]) == bool(rings)


@pytest.mark.parametrize("size", range(2, 7))
def test_rings_of_single_graphs(size: int) -> None:
    found = np.array(graphs(12, gpus=size)) > 0
    a, b = cycles.pairs(size)
    for graph, one in zip(found, cycles.have_ring(found[:, a, b], size), strict=True):
        rings = (
            all(graph[a][b] for a, b in itertools.pairwise((*order, order[0])))
            for order in itertools.permutations(range(size))
        )
        assert one == any(rings)


@pytest.mark.parametrize("graph", graphs(4))
def test_min_cuts(graph: Graph) -> None:
    cuts = subsets.min_cuts(subsets.pair_sums(graph).astype(np.int16)[None], np.arange(64))[0]
    for mask in range(64):
        places = members(mask)
        parts = [set(part) for size in range(1, len(places)) for part in itertools.combinations(places, size)]
        sizes = [sum(graph[a][b] for a in part for b in places if b not in part) for part in parts]
        assert cuts[mask] == min(sizes, default=0)


@pytest.mark.parametrize("graph", graphs(2))
def test_cliques_and_parts(graph: Graph) -> None:
    adjacent = np.array(graph) > 0
    cliques, parts = subsets.cliques(adjacent), subsets.part_of_lowest(adjacent)
    for mask in range(64):
        places = members(mask)
        assert cliques[mask] == all(graph[a][b] for a, b in itertools.combinations(places, 2))
        part = set(places[:1])
        while more := {b for a in part for b in places if graph[a][b]} - part:
            part |= more
        assert parts[mask] == sum(1 << place for place in part)


def test_packed_finds_the_best_disjoint_sets() -> None:
    rng = random.Random(3)
    values = np.array([rng.randint(1, 50) for _ in range(128)], dtype=np.float32)

    def best(mask: int, size: int) -> float:
        sets = [sum(1 << place for place in part) for part in itertools.combinations(members(mask), size)]
        return max((float(values[part]) + best(mask ^ part, size) for part in sets), default=0.0)

    pairs, triples = subsets.packed(values, 7, 2), subsets.packed(values, 7, 3)
    for mask in range(0, 128, 5):
        assert pairs[mask] == best(mask, 2)
        assert triples[mask] == best(mask, 3)


@pytest.mark.parametrize("required", [(), (Constraint.NVLINK,), (Constraint.NVLINK, Constraint.SAME_NUMA)])
@pytest.mark.parametrize("build", [machines.dgx1, machines.bridge_pairs])
def test_best_of_every_free_mask_is_the_best_of_its_admissible_subsets(
    build: Callable[[], Machine], required: tuple[Constraint, ...]
) -> None:
    tables = tables_of(build())
    criteria = Criteria(frozenset(required))
    allowed = tables.allowed(criteria)
    for gpus in range(1, 9):
        sets = [(int(mask), float(tables.busbw[mask])) for mask in tables.members(gpus) if allowed[mask]]
        for free in range(256):
            assert tables.best(gpus, criteria)[free] == max(
                (value for mask, value in sets if mask & ~free == 0), default=-1
            )
