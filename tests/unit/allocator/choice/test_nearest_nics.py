"""Which NICs go with GPUs, against all the ways that there are."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import (
    NEVER,
    assign,
    evenly,
    limit,
    near,
    near_gpus,
    served,
    ways_from,
)
from dradriver.topology import profiles
from dradriver.topology.machine import PathType


def matrix(seed: int, rows: int, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    own = random.Random(seed)
    drawn = [[own.choice([1, 2, 3, 5, NEVER]) for _ in range(columns)] for _ in range(rows)]
    return np.array(drawn, dtype=np.int64)


@pytest.mark.parametrize("seed", range(200))
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


def shares(gpus: int, nics: int) -> list[tuple[int, ...]]:
    every, some = divmod(nics, gpus)
    more = itertools.combinations(range(gpus), some)
    return [tuple(every + (gpu in chosen) for gpu in range(gpus)) for chosen in more]


@pytest.mark.parametrize("seed", range(120))
def test_every_gpu_has_as_many_or_one_less_and_no_way_costs_less(seed: int) -> None:
    gpus, nics, columns = 1 + seed % 3, 1 + seed % 5, 5
    costs = matrix(seed, gpus, columns)
    best = NEVER
    for share in shares(gpus, nics):
        rows = [gpu for gpu, count in enumerate(share) for _ in range(count)]
        for way in itertools.permutations(range(columns), nics):
            best = min(best, sum(int(costs[row, column]) for row, column in zip(rows, way, strict=True)))
    found = evenly(costs, nics)
    if best >= NEVER:
        assert found is None
    else:
        assert found is not None
        counts = sorted(sum(gpu == each for each, _ in found) for gpu in range(gpus))
        assert sum(counts) == nics == len({column for _, column in found})
        assert counts[-1] - counts[0] <= 1
        assert sum(int(costs[gpu, column]) for gpu, column in found) == best
        assert found == tuple(sorted(found))


def test_of_equal_ways_the_first_nics_are_taken() -> None:
    assert assign(np.ones((2, 4), dtype=np.int64)) == (0, 1)
    assert evenly(np.ones((2, 5), dtype=np.int64), 3) is not None
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
    monkeypatch.setattr(nearest_nics, "assign", None)
    costs = np.zeros((2, 60), dtype=np.int64)
    costs[1, 16:] = NEVER
    assert evenly(costs, 34) is None


@pytest.mark.parametrize("seed", range(200))
def test_gpus_are_served_together_and_no_other_could_be_beside_them(seed: int) -> None:
    own = random.Random(seed)
    gpus, most = list(range(own.randint(1, 5))), own.randint(1, 3)
    own.shuffle(gpus)
    wants = {gpu: own.choice([most - 1, most]) for gpu in gpus} if seed % 2 else dict.fromkeys(gpus, most)
    every = [frozenset(gpu for gpu in gpus if own.random() < 0.5) for _ in range(own.randint(1, 10))]

    def can(some: Iterable[int]) -> bool:
        rows = [[0 if gpu in kind else NEVER for kind in every] for gpu in sorted(some) for _ in range(wants[gpu])]
        return not rows or assign(np.array(rows, dtype=np.int64)) is not None

    found = served(Counter(every), wants)
    assert can(found)
    assert not any(can({*found, gpu}) for gpu in set(gpus) - set(found))
    first = next((gpu for gpu in gpus if can({gpu})), None)
    assert (first is None and not found) or found[0] == first
    if max(wants.values()) == min(wants.values()) == 1:
        assert len(found) == max(
            len(some)
            for n in range(len(gpus) + 1)
            for some in map(frozenset, itertools.combinations(gpus, n))
            if can(some)
        )
