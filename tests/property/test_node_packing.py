"""Where MIG instances go, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.node.devices.control_interface import Placed
from dradriver.node.vendors.nvidia.devices.mig_packing import Room, is_plain, left, pack, taken
from dradriver.topology.machine import MigProfile
from dradriver.topology.profiles import simulated_mig_profiles
from tests.effort import examples
from tests.fakes.mig_model import possible
from tests.fakes.parts import PRODUCT

H100 = simulated_mig_profiles.profiles(PRODUCT)
A30 = simulated_mig_profiles.profiles("NVIDIA A30")
RTX = simulated_mig_profiles.profiles("NVIDIA RTX PRO 6000 Blackwell Server Edition")
EACH = pytest.mark.parametrize("profiles", [H100, A30, RTX], ids=["H100", "A30", "RTX PRO 6000"])
PRODUCTS = st.sampled_from([H100, A30, RTX])


def ways(profiles: Sequence[MigProfile], wanted: Sequence[MigProfile]) -> Iterator[tuple[int, ...]]:
    """Every way to place them on an empty GPU."""
    for starts in itertools.product(*(profile.starts for profile in wanted)):
        if possible(profiles, list(zip(wanted, starts, strict=True))):
            yield starts


def fits_by_counts(profiles: Sequence[MigProfile], wanted: Sequence[MigProfile]) -> bool:
    return (
        sum(one.size for one in wanted) <= max(one.size for one in profiles)
        and sum(one.compute for one in wanted) <= max(one.compute for one in profiles)
        and all(sum(w.id == one.id for w in wanted) <= one.most for one in profiles)
    )


def test_compute_slices_are_shared_too() -> None:
    """No product has placements that its compute slices do not allow; NVML may tell of one that has."""
    half = MigProfile(id=9, name="4g.40gb", compute=4, memory_mib=1, most=2, starts=(0, 4), size=4)
    all_of_it = MigProfile(id=0, name="7g.80gb", compute=7, memory_mib=1, most=1, starts=(0,), size=8)
    every = [half, all_of_it]
    assert pack(every, Room(), [half, half]) is None
    assert left(every, taken(every, [Placed(9, 0)])) == (0, 0)
    small = MigProfile(id=19, name="3g.40gb", compute=3, memory_mib=1, most=2, starts=(0, 4), size=4)
    assert pack([*every, small], taken([*every, small], [Placed(9, 0)]), [small]) == [4]


def multisets(profiles: Sequence[MigProfile]) -> list[tuple[MigProfile, ...]]:
    """Every multiset of profiles that fits by counts."""
    return [
        wanted
        for n in range(1, 8)
        for wanted in itertools.combinations_with_replacement(profiles, n)
        if fits_by_counts(profiles, wanted)
    ]


@pytest.mark.slow
@EACH
def test_from_an_empty_gpu_all_that_can_be_placed_is(profiles: tuple[MigProfile, ...]) -> None:
    for wanted in multisets(profiles):
        starts = pack(profiles, Room(), wanted)
        feasible = next(ways(profiles, wanted), None) is not None
        assert (starts is not None) == feasible, [one.name for one in wanted]
        if starts is not None:
            assert possible(profiles, list(zip(wanted, starts, strict=True)))


@EACH
def test_what_fits_by_counts_finds_placements_on_an_empty_gpu(profiles: tuple[MigProfile, ...]) -> None:
    plain = [wanted for wanted in multisets(profiles) if all(map(is_plain, wanted))]
    assert all(pack(profiles, Room(), wanted) is not None for wanted in plain)
    assert len(plain) > 8


@given(profiles=PRODUCTS, draw=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_of_all_ways_the_one_is_taken_that_leaves_the_most(
    profiles: tuple[MigProfile, ...], draw: st.DataObject
) -> None:
    there: list[tuple[MigProfile, int]] = []
    for one in draw.draw(st.lists(st.sampled_from(profiles), max_size=3)):
        start = draw.draw(st.sampled_from(one.starts))
        if possible(profiles, [*there, (one, start)]):
            there.append((one, start))
    wanted = draw.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=3))
    room = taken(profiles, [Placed(one.id, start) for one, start in there])
    every = [
        starts
        for starts in itertools.product(*(profile.starts for profile in wanted))
        if possible(profiles, [*there, *zip(wanted, starts, strict=True)])
    ]
    found = pack(profiles, room, wanted)
    if not every:
        assert found is None
        return
    assert found is not None
    assert tuple(found) in every

    def after(starts: Sequence[int]) -> list[int]:
        placed = [*there, *zip(wanted, starts, strict=True)]
        plain = sorted((p for p in profiles if is_plain(p)), key=lambda p: (-p.size, -p.compute))
        return [most(profiles, placed, profile) for profile in plain]

    assert after(found) == max(map(after, every))


def most(profiles: Sequence[MigProfile], placed: list[tuple[MigProfile, int]], profile: MigProfile) -> int:
    """How many more of a profile there can be, by trying all."""
    for count in range(profile.most, 0, -1):
        for starts in itertools.combinations(profile.starts, count):
            if possible(profiles, [*placed, *((profile, start) for start in starts)]):
                return count
    return 0


def test_an_instance_of_no_known_profile_leaves_no_room() -> None:
    room = taken(H100, [Placed(99, 0)])
    assert set(left(H100, room)) == {0}
    assert pack(H100, room, [H100[0]]) is None
