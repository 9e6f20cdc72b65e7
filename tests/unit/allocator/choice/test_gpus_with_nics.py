"""Which GPUs can all have their NICs, against all the sets of GPUs that there are."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from dradriver.allocator.choice.gpus_with_nics import served
from dradriver.allocator.choice.nearest_nics import NEVER, dealt
from tests.effort import sampled


def all_of_them() -> bool:
    return True


@pytest.mark.parametrize("seed", sampled(range(300)))
def test_gpus_are_served_if_and_only_if_any_set_of_them_can_be(seed: int) -> None:
    own = random.Random(seed)
    most, columns = own.randint(1, 5), own.randint(1, 6)
    gpus, counts = own.randint(1, min(3, most)), [own.randint(1, 2) for _ in range(own.randint(1, 3))]
    costs = np.array([[own.choice([0, NEVER]) for _ in range(columns)] for _ in range(most)], dtype=np.int64)
    usable = [{column for column in range(columns) if own.random() < 0.7} for _ in counts]
    if own.random() < 0.3:
        usable = [set(range(columns)) for _ in counts]
    kinds: Counter[tuple[frozenset[int], frozenset[int]]] = Counter()
    for column in range(columns):
        if requests := frozenset(at for at, each in enumerate(usable) if column in each):
            kinds[requests, frozenset(gpu for gpu in range(most) if costs[gpu, column] < NEVER)] += 1
    order = own.sample(range(most), most)
    sets = [
        some
        for some in itertools.combinations(range(most), gpus)
        if dealt(costs[list(some)], usable, counts) is not None
    ]
    found = served(kinds, counts, order, gpus, all_of_them)
    assert (len(found) >= gpus) == bool(sets)
    if sets:
        assert {*itertools.combinations(sorted(found), gpus)} <= {*sets}


def test_alike_requests_have_all_gpus_returned_that_will_do_those_first_that_are_first() -> None:
    kinds = {(frozenset([0]), frozenset([gpu])): 16 for gpu in range(8) if gpu != 3}
    assert served(kinds, [4], [7, 6, 5, 4, 3, 2, 1, 0], 2, all_of_them) == [7, 6, 5, 4, 2, 1, 0]
    assert served(kinds, [40], [7, 6], 2, all_of_them) == []


def test_a_search_for_another_set_than_the_first_ends_where_it_is_told_to() -> None:
    # GPU 0 is the best, and with it no other can have two.
    kinds = {
        (frozenset([0]), frozenset([0, 1, 2])): 2,
        (frozenset([0]), frozenset([1])): 1,
        (frozenset([0]), frozenset([2])): 1,
    }
    assert sorted(served(kinds, [4], [0, 1, 2], 2, all_of_them)) == [1, 2]
    assert len(served(kinds, [4], [0, 1, 2], 2, lambda: False)) < 2
