"""Which NICs go with GPUs, against all the ways that there are."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import (
    NEVER,
    assign,
    dealt,
    limit,
    near,
    near_gpus,
    ways_from,
)
from dradriver.topology import profiles
from dradriver.topology.machine import PathType
from tests.effort import sampled


def matrix(seed: int, rows: int, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    own = random.Random(seed)
    drawn = [[own.choice([1, 2, 3, 5, NEVER]) for _ in range(columns)] for _ in range(rows)]
    return np.array(drawn, dtype=np.int64)


@pytest.mark.parametrize("seed", sampled(range(200)))
def test_each_row_has_a_column_of_its_own_and_no_way_costs_less(seed: int) -> None:
    rows, columns = 1 + seed % 4, 1 + seed % 6
    costs = matrix(seed, rows, columns)
    ways = itertools.permutations(range(columns), rows)
    best = min((sum(int(costs[row, column]) for row, column in enumerate(way)) for way in ways), default=NEVER)
    found = assign(costs)
    if best >= NEVER:
        assert found is None
    else:
        assert found is not None
        assert len(set(found)) == rows
        assert sum(int(costs[row, column]) for row, column in enumerate(found)) == best
        assert assign(costs) == found


def least(
    costs: np.ndarray[tuple[int, int], np.dtype[np.int64]], usable: Sequence[Collection[int]], counts: Sequence[int]
) -> int:
    """Return what the cheapest choice costs of all that there are."""
    (gpus, columns), wanted = costs.shape, sum(counts)
    every, some = divmod(wanted, gpus)
    takers = [at for at, count in enumerate(counts) for _ in range(count)]
    best = NEVER
    for more in itertools.combinations(range(gpus), some):
        parts = [gpu for gpu in range(gpus) for _ in range(every + (gpu in more))]
        for way in set(itertools.permutations(parts)):
            for own in itertools.permutations(range(columns), wanted):
                if all(column in usable[at] for at, column in zip(takers, own, strict=True)):
                    best = min(best, sum(int(costs[gpu, column]) for gpu, column in zip(way, own, strict=True)))
    return best


@pytest.mark.parametrize("seed", sampled(range(200)))
def test_every_request_has_its_nics_and_every_gpu_as_many_or_one_less_and_no_way_costs_less(seed: int) -> None:
    own = random.Random(seed)
    gpus, columns, counts = 1 + seed % 3, 1 + seed % 5, [own.randint(1, 2) for _ in range(own.randint(1, 2))]
    costs = matrix(seed, gpus, columns)
    usable = [{column for column in range(columns) if own.random() < 0.7} for _ in counts]
    best = least(costs, usable, counts)
    found = dealt(costs, usable, counts)
    if best >= NEVER:
        assert found is None
        return
    assert found is not None
    assert [len(each) for each in found] == counts
    assert all(column in each for pairs, each in zip(found, usable, strict=True) for _, column in pairs)
    pairs = [pair for each in found for pair in each]
    assert len({column for _, column in pairs}) == len(pairs)
    load = [sum(gpu == each for each, _ in pairs) for gpu in range(gpus)]
    assert max(load) - min(load) <= 1
    assert sum(int(costs[gpu, column]) for gpu, column in pairs) == best
    assert found == tuple(tuple(sorted(each)) for each in found)
    assert dealt(costs, usable, counts) == found


def test_of_equal_ways_the_first_nics_are_taken() -> None:
    assert assign(np.ones((2, 4), dtype=np.int64)) == (0, 1)
    assert dealt(np.ones((2, 5), dtype=np.int64), [range(5)], [3]) is not None
    assert dealt(np.ones((1, 4), dtype=np.int64), [{1, 2, 3}, {0, 1, 2, 3}], [1, 1]) == (((0, 1),), ((0, 0),))
    assert assign(np.ones((3, 2), dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("profile", "most", "gpus"),
    [
        ("hgx-h100", PathType.PXB, range(8)),
        ("gb200-nvl72-tray", PathType.NODE, range(4)),
        ("dgx1-v100", PathType.PXB, range(8)),
    ],
)
def test_near_is_below_a_switch_or_as_far_as_the_machines_nearest(profile: str, most: PathType, gpus: range) -> None:
    machine = profiles.load(profile)
    assert (near(machine), near_gpus(machine)) == (most, frozenset(gpus))


def test_nothing_is_near_where_no_way_is_known_or_there_is_no_nic() -> None:
    assert limit([]) is None
    assert limit([PathType.SYS, PathType.SYS]) is None
    assert limit([PathType.SYS, PathType.PHB]) is PathType.PHB


def test_a_nic_that_the_machine_does_not_know_is_where_its_parent_is_else_where_it_says() -> None:
    machine = profiles.load("hgx-h100")
    own = machine.nics[3]
    assert ways_from(machine, [own.pci], None, None) == machine.nic_paths[3]
    assert ways_from(machine, ["0000:ff:00.1", own.pci], None, None) == machine.nic_paths[3]
    by_root = ways_from(machine, ["0000:ff:00.1"], machine.gpus[2].pcie_root, None)
    assert [way for way in by_root if way < PathType.SYS] == [PathType.PHB]
    by_numa = ways_from(machine, ["0000:ff:00.1"], None, 1)
    assert by_numa == tuple(PathType.NODE if gpu.numa == 1 else PathType.SYS for gpu in machine.gpus)
    assert set(ways_from(machine, ["0000:ff:00.1"], None, None)) == {PathType.SYS}


class Counting:
    """numpy, which counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(np, name)


def test_the_first_row_that_can_have_nothing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_nics, "np", counting := Counting())
    costs = np.full((40, 60), NEVER, dtype=np.int64)
    costs[:, :2] = 1
    assert assign(costs) is None
    assert counting.asked["where"] < 20, "of three rows, not of forty"


def test_a_gpu_that_can_never_have_its_part_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_nics, "_assigned", None)
    costs = np.zeros((2, 60), dtype=np.int64)
    costs[1, 16:] = NEVER
    assert dealt(costs, [range(60)], [34]) is None
    assert dealt(costs, [range(60), range(30)], [30, 4]) is None
