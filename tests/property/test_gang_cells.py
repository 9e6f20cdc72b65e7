"""Sharing a gang's pods over cells, held against every way there is, on small clusters."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dradriver.controller.placing.gang_cells import Apart, Puzzle, Spread, Together, Ways, ways
from tests.effort import examples

VALUES = ["a", "b", "c"]


@st.composite
def puzzles(draw: st.DrawFn) -> Puzzle:
    """Return a gang of at most six pods of three roles, on at most four cells of two labels."""
    pods = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda pods: sum(pods) <= 6))
    keys = draw(st.integers(1, 2))
    value = st.sampled_from([*VALUES, None])
    cells = draw(st.lists(st.tuples(*[value] * keys), min_size=1, max_size=4, unique=True))
    roles = st.frozensets(st.integers(0, len(pods) - 1))
    some_roles = st.frozensets(st.integers(0, len(pods) - 1), min_size=1)
    key = st.integers(0, keys - 1)
    capacity = draw(
        st.lists(
            st.lists(st.integers(0, 4), min_size=len(cells), max_size=len(cells)),
            min_size=len(pods),
            max_size=len(pods),
        )
    )
    gpus = draw(st.lists(st.integers(1, 2), min_size=len(pods), max_size=len(pods)))
    free = draw(st.lists(st.integers(2, 8), min_size=len(cells), max_size=len(cells)))
    apart = draw(st.lists(st.builds(Apart, key=key, holders=some_roles, pods=some_roles), max_size=2))
    together = []
    for role in draw(roles):
        domains = st.lists(st.tuples(key, st.frozensets(st.sampled_from(VALUES), max_size=1)), min_size=1, max_size=2)
        together.append(Together(role, draw(roles), tuple(draw(domains))))
    spread = []
    for _ in range(draw(st.integers(0, 2))):
        label = draw(key)
        there = {values[label] for values in cells} - {None}
        counts = {domain: draw(st.integers(0, 2)) for domain in sorted(there) if domain is not None}
        spread.append(Spread(label, draw(some_roles), draw(roles), draw(st.integers(1, 2)), counts))
    return Puzzle(pods, cells, capacity, gpus, free, apart, together, spread)


def every_way(puzzle: Puzzle) -> Iterator[Ways]:
    """Yield each way to share the pods of each role over the cells within the capacity, whatever the rules say."""
    by_role = []
    for pods, capacity in zip(puzzle.pods, puzzle.capacity, strict=True):
        counts = itertools.product(*(range(most + 1) for most in capacity))
        by_role.append([dict(enumerate(shares)) for shares in counts if sum(shares) == pods])
    for shares in itertools.product(*by_role):
        used = Counter[int]()
        for share, gpus in zip(shares, puzzle.gpus, strict=True):
            used.update({cell: pods * gpus for cell, pods in share.items()})
        if all(used[cell] <= free for cell, free in enumerate(puzzle.free)):
            yield shares


def keeps(puzzle: Puzzle, shares: Ways) -> bool:
    """Return whether the scheduler could place pods like this one by one, those without affinity first."""
    placed = [(role, cell) for role, share in enumerate(shares) for cell, pods in share.items() for _ in range(pods)]
    values = puzzle.cells
    for rule in puzzle.apart:
        for (number, (role, cell)), (other_number, (other, at)) in itertools.permutations(enumerate(placed), 2):
            same = values[cell][rule.key] is not None and values[cell][rule.key] == values[at][rule.key]
            if number != other_number and role in rule.holders and other in rule.pods and same:
                return False
    for spread in puzzle.spread:
        counts = Counter[str | None](spread.counts)
        counts.update(v for role, cell in placed if role in spread.pods and (v := values[cell][spread.key]) in counts)
        for role, cell in placed:
            value = values[cell][spread.key]
            if role in spread.holders and (
                value not in spread.counts or counts[value] - min(counts[v] for v in spread.counts) > spread.skew
            ):
                return False
    return _joins(puzzle, placed)


def _joins(puzzle: Puzzle, placed: list[tuple[int, int]]) -> bool:
    """Return whether each pod with affinity finds another one where it is, in some order of the roles with affinity."""
    rules = {rule.role: rule for rule in puzzle.together}
    free = [pod for pod in placed if pod[0] not in rules]
    roles = sorted({role for role, _ in placed if role in rules})
    return any(_in_order(puzzle, order, rules, placed, free) for order in itertools.permutations(roles))


def _in_order(
    puzzle: Puzzle, order: tuple[int, ...], rules: dict[int, Together], placed: list[tuple[int, int]],
    free: list[tuple[int, int]],
) -> bool:  # fmt: skip
    done = list(free)
    for role in order:
        rule = rules[role]
        for pod in (pod for pod in placed if pod[0] == role):
            if None in (puzzle.cells[pod[1]][key] for key, _ in rule.domains):
                return False
            near = [other for other in done if other[0] in rule.pods]
            domains = [
                (key, {*there, *(puzzle.cells[cell][key] for _, cell in near)} - {None}) for key, there in rule.domains
            ]
            is_first = not any(there for _, there in domains) and role in rule.pods
            if not is_first and any(puzzle.cells[pod[1]][key] not in there for key, there in domains):
                return False
            done.append(pod)
    return True


@settings(max_examples=examples(100), deadline=None, phases=[Phase.generate, Phase.shrink])
@given(puzzles())
def test_a_way_is_found_if_there_is_any_and_each_keeps_the_rules(puzzle: Puzzle) -> None:
    found = list(itertools.islice(ways(puzzle, lambda: True), 50))
    for shares in found:
        assert [sum(share.values()) for share in shares] == list(puzzle.pods)
        assert all(n <= puzzle.capacity[role][c] for role, share in enumerate(shares) for c, n in share.items())
        assert keeps(puzzle, shares)
    assert bool(found) == any(keeps(puzzle, shares) for shares in every_way(puzzle))


def test_an_even_spread_is_found_at_once() -> None:
    """Of 601,080,390 ways to share 16 pods over 16 zones, one keeps a skew of one."""
    steps = itertools.count()
    cells = [(f"zone-{number}",) for number in range(16)]
    spread = Spread(0, frozenset({0}), frozenset({0}), 1, dict.fromkeys((zone for (zone,) in cells), 0))
    puzzle = Puzzle([16], cells, [[16] * 16], [1], [16] * 16, spread=[spread])
    assert next(ways(puzzle, lambda: next(steps) < 100)) == (dict.fromkeys(range(16), 1),)


def test_a_search_ends_when_its_effort_is_spent() -> None:
    cells = [(f"zone-{number}",) for number in range(12)]
    apart = Apart(0, frozenset({0}), frozenset({1}))
    rules = [Together(1, frozenset({0}), ((0, frozenset()),))]
    puzzle = Puzzle([12, 12], cells, [[2] * 12] * 2, [1, 1], [24] * 12, [apart], rules)
    steps = itertools.count()
    assert list(ways(puzzle, lambda: next(steps) < 2000)) == []
    assert next(steps) < 2100
