"""What MIG instances leave of a GPU, against brute force over the placements of real products."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from dradriver.allocator.parts.layouts import NONE, Layout, layout_of
from dradriver.topology.machine import MigProfile
from dradriver.topology.profiles import simulated_mig_profiles
from tests.fakes import mig_model

Placement = tuple[str, int]

RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
PRODUCTS = ["NVIDIA A30", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", RTX]


def layout(product: str) -> Layout:
    found = layout_of(simulated_mig_profiles.profiles(product))
    assert found is not None
    return found


def possible(profiles: tuple[MigProfile, ...], placed: tuple[Placement, ...]) -> bool:
    """Return whether instances can be there together, by NVML's own rules."""
    by_name = {profile.name: profile for profile in profiles}
    return mig_model.possible(profiles, [(by_name[name], start) for name, start in placed])


def packings(profiles: tuple[MigProfile, ...]) -> set[tuple[Placement, ...]]:
    """Return every set of instances that can be there together, sorted."""
    single = [(profile.name, start) for profile in profiles for start in profile.starts]
    found: set[tuple[Placement, ...]] = {()}
    edge = found
    while edge:
        edge = {
            tuple(sorted((*placed, one)))
            for placed in edge
            for one in single
            if one not in placed and possible(profiles, (*placed, one))
        }
        found |= edge
    return found


@cache
def all_packings(product: str) -> frozenset[tuple[Placement, ...]]:
    return frozenset(packings(simulated_mig_profiles.profiles(product)))


@pytest.mark.slow
@pytest.mark.parametrize("product", ["NVIDIA A30", "NVIDIA H100 80GB HBM3", RTX])
def test_every_packing_is_a_state_with_the_room_that_brute_force_finds(product: str) -> None:
    profiles, table = simulated_mig_profiles.profiles(product), layout(product)
    every = all_packings(product)
    by_state: dict[int, tuple[Placement, ...]] = {}
    for placed in every:
        state = table.state(placed)
        assert state != table.closed
        by_state.setdefault(state, placed)
    assert len(by_state) == table.closed  # no state that nothing leads to
    for state, placed in by_state.items():
        free = {
            (profile.name, start)
            for profile in profiles
            for start in profile.starts
            if possible(profiles, (*placed, (profile.name, start)))
        }
        for number, profile in enumerate(profiles):
            starts = [start for name, start in free if name == profile.name]
            assert (table.cost[state, number] < NONE) == bool(starts)
            if starts:
                costs = {s: table.worth[state] - table.worth[table.state((*placed, (profile.name, s)))] for s in starts}
                assert table.cost[state, number] == min(costs.values())
                assert table.start[state, number] == max(s for s in starts if costs[s] == min(costs.values()))


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_worth_of_a_state_is_what_each_profile_alone_could_take(product: str) -> None:
    profiles, table = simulated_mig_profiles.profiles(product), layout(product)

    def most(placed: tuple[Placement, ...], profile: MigProfile) -> int:
        options = [(profile.name, start) for start in profile.starts]
        sizes = range(len(options), -1, -1)
        fits = (n for n in sizes for c in itertools.combinations(options, n) if possible(profiles, (*placed, *c)))
        return next(fits, 0)

    small, large = profiles[0], max(profiles, key=lambda p: (p.size, p.compute))
    for placed in ((), ((small.name, 0),), ((small.name, 1), (small.name, 2)), ((large.name, 0),)):
        room = [most(placed, profile) for profile in profiles]
        state = table.state(placed)
        assert table.most[state].tolist() == room
        ranked = sorted(n * p.size for n, p in zip(room, profiles, strict=True))
        assert table.worth[state] == sum(slices << rank for rank, slices in enumerate(ranked))


@pytest.mark.parametrize("product", PRODUCTS)
def test_from_an_empty_gpu_every_multiset_that_fits_by_counts_finds_placements(product: str) -> None:
    profiles, table = simulated_mig_profiles.profiles(product), layout(product)
    slices = max(profile.size for profile in profiles)
    compute = max(profile.compute for profile in profiles)
    ways = table.ways(0, tuple(profile.most for profile in profiles))
    assert len(ways) > 10
    by_counts = [
        counts
        for counts in counts_up_to([p.size for p in profiles], slices)
        if sum(n * p.compute for n, p in zip(counts, profiles, strict=True)) <= compute
        and all(n <= p.most for n, p in zip(counts, profiles, strict=True))
        and not engines_exceeded(profiles, counts)
    ]
    assert set(ways) == set(by_counts)
    for counts in by_counts:
        placed = [(profiles[number].name, start) for number, start in ways[counts].placements]
        assert [sum(name == p.name for name, _ in placed) for p in profiles] == list(counts)
        assert possible(profiles, tuple(placed))


def counts_up_to(sizes: list[int], room: int) -> list[tuple[int, ...]]:
    """Every count of each size that together take no more room."""
    if not sizes:
        return [()]
    first, *others = sizes
    return [(n, *more) for n in range(room // first + 1) for more in counts_up_to(others, room - n * first)]


def engines_exceeded(profiles: tuple[MigProfile, ...], counts: tuple[int, ...]) -> bool:
    """Whether instances need more engines of a kind than the GPU has, if instances do not share that kind."""
    for needs in zip(*(profile.engines for profile in profiles), strict=True):
        shared = any(need * profile.most > max(needs) for need, profile in zip(needs, profiles, strict=True))
        if not shared and sum(n * need for n, need in zip(counts, needs, strict=True)) > max(needs):
            return True
    return False


def test_what_is_put_down_first_spoils_least() -> None:
    table = layout("NVIDIA H100 80GB HBM3")
    starts = {p.name: int(table.start[0, number]) for number, p in enumerate(table.profiles)}
    assert starts == {
        "1g.10gb": 6, "1g.10gb+me": 6, "1g.20gb": 6, "2g.20gb": 4, "3g.40gb": 4, "4g.40gb": 0, "7g.80gb": 0,
    }  # fmt: skip
    assert table.cost[0, 0] == 263  # as the class' docstring has it


@pytest.mark.parametrize(
    "placed",
    [
        [("1g.10gb", 7)],  # no start of this profile, and yet a slice
        [("1g.99gb", 0)],
        [("3g.40gb", 0), ("1g.10gb", 3)],
        [("1g.10gb+me", 0), ("1g.10gb+me", 1)],
    ],
)
def test_instances_that_cannot_be_close_the_gpu(placed: list[Placement]) -> None:
    table = layout("NVIDIA H100 80GB HBM3")
    state = table.state(placed)
    assert state == table.closed
    assert not table.most[state].any()
    assert (table.cost[state] == NONE).all()
    assert table.ways(state, (1, 0, 0, 0, 0, 0, 0)) == {(0,) * 7: (0, ())}


def profile(name: str, *, compute: int, most: int, starts: tuple[int, ...], size: int) -> MigProfile:
    return MigProfile(id=0, name=name, compute=compute, memory_mib=1024, most=most, starts=starts, size=size)


def test_compute_that_runs_out_before_memory_counts() -> None:
    big = profile("4g.4gb", compute=4, most=1, starts=(0,), size=4)
    small = profile("3g.1gb", compute=3, most=4, starts=(0, 1, 2, 3), size=1)
    table = layout_of((big, small))
    assert table is not None
    assert table.most[0].tolist() == [1, 1]  # a second one would take 6 of 4 compute slices
    assert table.state([("3g.1gb", 0), ("3g.1gb", 1)]) == table.closed


def test_a_gpu_without_profiles_has_no_layout_nor_one_with_more_states_than_can_be_kept() -> None:
    assert layout_of(()) is None
    many = tuple(profile(f"1g.{n + 1}gb", compute=1, most=16, starts=tuple(range(16)), size=1) for n in range(2))
    assert layout_of(many) is None


def nonsense(profiles: int, slices: int, *, most: int = 16, compute: int = 1) -> tuple[MigProfile, ...]:
    """Profiles as no GPU has them, each of one memory slice anywhere."""
    return tuple(
        MigProfile(
            id=number, name=f"{number + 1}g.1gb", size=1, starts=tuple(range(slices)), most=most, compute=compute,
            memory_mib=1000,
        )
        for number in range(profiles)
    )  # fmt: skip


def test_of_as_many_profiles_as_a_machine_may_have_costs_stay_costs() -> None:
    found = layout_of(nonsense(32, 4))
    assert found is not None
    assert found.worth[0] == found.worth.max() > found.worth.min() == 0
    fits = found.cost < NONE
    assert fits[0].all()
    assert not fits[found.closed].any()
    assert (found.cost[fits] > 0).all()
    assert (found.order[fits] < NONE).all()
    assert (found.order[fits] >= found.cost[fits]).all()


def test_a_gpu_with_more_ways_to_be_sliced_than_any_has_is_not_sliced() -> None:
    assert layout_of(nonsense(32, 13)) is None
    assert layout_of(nonsense(32, 16)) is None
    assert layout_of(nonsense(3, 10)) is not None
