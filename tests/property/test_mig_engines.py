"""MIG instances and engines: the scheduler's counters and the node agent against simulated GPUs."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator.parts.layouts import NONE, layout_of
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.node.devices.control_interface import INSUFFICIENT_RESOURCES, Placed
from dradriver.node.errors import HardwareError
from dradriver.node.vendors.nvidia.devices.mig_packing import pack, taken
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology import machine_codec
from dradriver.topology import profiles as machines
from dradriver.topology.machine import Machine, MigProfile
from dradriver.topology.profiles import simulated_mig_profiles
from tests.effort import examples
from tests.fakes.mig_model import possible
from tests.paths import SHARED_DATA

Profiles = tuple[MigProfile, ...]
Device = dict[str, Any]

RTX = simulated_mig_profiles.profiles("NVIDIA RTX PRO 6000 Blackwell Server Edition")
PRODUCTS = ("NVIDIA A30", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200")


@st.composite
def invented(draw: st.DrawFn) -> Profiles:
    """Profiles of a GPU that does not exist: sizes, counts and engines at random."""
    end = draw(st.integers(2, 5))
    kinds = draw(st.integers(0, 5))
    found = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, end))
        starts = draw(st.sets(st.integers(0, end - size), min_size=1))
        engines = draw(st.tuples(*(st.integers(0, 3) for _ in range(kinds))))
        found.append(
            MigProfile(
                id=number, name=f"{size}g.{number + 1}gb", compute=draw(st.integers(1, 4)), memory_mib=1000,
                most=draw(st.integers(1, 4)), starts=tuple(sorted(starts)), size=size, engines=engines,
            )
        )  # fmt: skip
    return tuple(found)


ANY = st.one_of(st.sampled_from([RTX, *map(simulated_mig_profiles.profiles, PRODUCTS)]), invented())


def sliced(profiles: Profiles) -> Machine:
    """A machine with one GPU that has these profiles."""
    machine = machines.load("hgx-h100", seed="n")
    return msgspec.structs.replace(
        machine,
        gpus=(msgspec.structs.replace(machine.gpus[0], profiles=profiles),),
        links=((0,),),
        paths=(machine.paths[0][:1],),
        nic_paths=tuple(row[:1] for row in machine.nic_paths),
    )


def published(machine: Machine) -> tuple[dict[str, int], list[Device]]:
    """The counters of the only GPU, and its placements."""
    gpu = machine.gpus[0]
    built = resource_slices.build(machine, node="n", node_uid="u", modes={gpu.uuid: Mode(mig="placements")})
    (counters,) = [found for piece in built for found in piece["spec"].get("sharedCounters", ())]
    devices = [device for piece in built for device in piece["spec"].get("devices", ())]
    parts = [device for device in devices if device["attributes"]["type"]["string"] == "mig"]
    return amounts(counters["counters"]), parts


def amounts(counters: Device) -> dict[str, int]:
    return {name: int(counter["value"]) for name, counter in counters.items()}


def consumed(device: Device) -> dict[str, int]:
    (entry,) = device["consumesCounters"]
    return amounts(entry["counters"])


def placement(profiles: Profiles, device: Device) -> tuple[MigProfile, int]:
    name = device["attributes"]["profile"]["string"]
    return next(p for p in profiles if p.name == name), device["attributes"]["placement"]["int"]


def overlap_nowhere(profiles: Profiles) -> bool:
    """Whether all placements can be there together: such a GPU tells of instances that it has, not of ones to make."""
    spans = [n for p in profiles for start in p.starts for n in range(start, start + p.size)]
    return len(spans) == len(set(spans))


@given(profiles=ANY, draw=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_the_counters_allow_what_the_gpu_allows_in_any_order(profiles: Profiles, draw: st.DataObject) -> None:
    if overlap_nowhere(profiles):
        return
    machine = sliced(profiles)
    left, parts = published(machine)
    assert len(left) <= 32
    assert len(parts) == sum(len(profile.starts) for profile in profiles)
    with tempfile.TemporaryDirectory() as folder:
        gpu = machine.gpus[0]
        control = SimulatedGpu(Path(folder) / "hardware.json", lambda _: gpu)
        control.set_mig_mode(gpu.uuid, True)
        for device in draw.draw(st.permutations(parts)):
            profile, start = placement(profiles, device)
            needs = consumed(device)
            if all(left[name] >= count for name, count in needs.items()):
                left = {name: count - needs.get(name, 0) for name, count in left.items()}
                control.create_gpu_instance(gpu.uuid, profile, start)
            else:
                with pytest.raises(HardwareError) as refused:
                    control.create_gpu_instance(gpu.uuid, profile, start)
                assert refused.value.code == INSUFFICIENT_RESOURCES


@given(profiles=ANY, draw=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_the_agent_and_the_allocator_put_an_instance_where_brute_force_does(
    profiles: Profiles, draw: st.DataObject
) -> None:
    if overlap_nowhere(profiles):
        return
    there: list[tuple[MigProfile, int]] = []
    for profile in draw.draw(st.lists(st.sampled_from(profiles), max_size=4)):
        start = draw.draw(st.sampled_from(profile.starts))
        if possible(profiles, [*there, (profile, start)]):
            there.append((profile, start))
    room = taken(profiles, [Placed(profile.id, start) for profile, start in there])
    layout = layout_of(profiles)
    assert layout is not None
    state = layout.state((profile.name, start) for profile, start in there)
    for number, profile in enumerate(profiles):
        free = [start for start in profile.starts if possible(profiles, [*there, (profile, start)])]
        packed = pack(profiles, room, [profile])
        assert (packed is not None) == bool(free)
        assert packed is None or packed[0] in free
        assert (layout.cost[state, number] < NONE) == bool(free)
        assert not free or layout.start[state, number] in free


@pytest.mark.parametrize("told", [True, False], ids=["counts of NVML", "names alone"])
def test_next_to_all_media_engines_only_instances_without_any_fit(told: bool) -> None:
    profiles = RTX if told else tuple(msgspec.structs.replace(profile, engines=()) for profile in RTX)
    left, parts = published(sliced(profiles))
    together = set()
    for a, b in itertools.combinations(parts, 2):
        needs = {name: consumed(a).get(name, 0) + consumed(b).get(name, 0) for name in left}
        pair = [placement(profiles, device)[0] for device in (a, b)]
        fits = all(count <= left[name] for name, count in needs.items())
        spans = {n for d in (a, b) for n in consumed(d) if n.startswith("memory-slice")}
        if fits:
            together.add(tuple(sorted(profile.name for profile in pair)))
        by_pack = pack(profiles, taken(profiles, [Placed(pair[0].id, int(placement(profiles, a)[1]))]), [pair[1]])
        assert by_pack is not None or not fits
        assert len(spans) <= 4
    all_of_them = {"1g.24gb+me.all", "2g.48gb+me.all"}
    assert {next(iter({*pair} - all_of_them)) for pair in together if all_of_them & {*pair}} == {
        "1g.24gb-me",
        "2g.48gb-me",
    }
    assert ("1g.24gb", "1g.24gb+me") in together
    assert ("1g.24gb+gfx", "2g.48gb") in together


def test_an_a30_has_one_instance_with_media_engines_of_any_size() -> None:
    profiles = simulated_mig_profiles.profiles("NVIDIA A30")
    by_name = {profile.name: profile for profile in profiles}
    small, large, plain = by_name["1g.6gb+me"], by_name["2g.12gb+me"], by_name["2g.12gb"]
    assert pack(profiles, taken(profiles, [Placed(small.id, 0)]), [large]) is None
    assert pack(profiles, taken(profiles, [Placed(small.id, 0)]), [plain]) == [2]
    layout = layout_of(profiles)
    assert layout is not None
    state = layout.state([("1g.6gb+me", 0)])
    assert layout.cost[state, layout.number["2g.12gb+me"]] == NONE
    assert layout.cost[state, layout.number["2g.12gb"]] < NONE


def test_engines_that_instances_share_forbid_nothing() -> None:
    """NVML says of a B200 that 7 instances fit, each with a decoder, and that all slices have one decoder."""
    profiles = simulated_mig_profiles.profiles("NVIDIA B200")
    assert {profile.engines[1] for profile in profiles} == {1}
    left, parts = published(sliced(profiles))
    small = [consumed(device) for device in parts if device["attributes"]["profile"]["string"] == "1g.23gb"]
    assert len(small) == 7
    assert all(sum(needs.get(name, 0) for needs in small) <= count for name, count in left.items())


def test_a_gpu_whose_limits_find_no_place_among_the_counters_is_published_within_the_bounds() -> None:
    """The API server takes 32 counters of a set; a slice with more is refused, and the node has no GPU at all."""
    small = MigProfile(id=0, name="1g.1gb", compute=1, memory_mib=1000, most=1, starts=tuple(range(16)), size=1)
    large = MigProfile(id=31, name="16g.99gb", compute=16, memory_mib=1000, most=1, starts=(0,), size=16)
    profiles = (*(msgspec.structs.replace(small, id=n, name=f"1g.{n + 1}gb") for n in range(31)), large)
    counters, parts = published(sliced(profiles))
    assert len(counters) == 32
    for device in parts:
        needs = consumed(device)
        assert needs.keys() <= counters.keys()
        assert any(not name.startswith("memory") for name in needs) or len(needs) == 16


@pytest.mark.shared_data
def test_a_machine_of_an_agent_that_told_of_no_engines_is_placed_by_names() -> None:
    machine = machine_codec.decode((SHARED_DATA / "reports" / "23-rtxpro6000-mig.json").read_bytes())
    for gpu in machine.gpus:
        layout = layout_of(gpu.profiles)
        assert layout is not None
        state = layout.state([("1g.24gb+me.all", 0)])
        fits = {name for name, number in layout.number.items() if layout.cost[state, number] < NONE}
        assert fits == {"1g.24gb-me", "2g.48gb-me"}
