"""GPUs whose MIG instances are made for claims, as devices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL, SliceFeatures
from dradriver.node.publishing import pool
from dradriver.topology import profiles
from dradriver.topology.machine import Gpu, Machine, MigDevice
from dradriver.topology.mig_limits import binding_limits

Object = dict[str, Any]

DYNAMIC, PLACEMENTS = Mode(mig="dynamic"), Mode(mig="placements")
KINDS = ("dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200")


def build(machine: Machine, mode: Mode, features: SliceFeatures = ALL) -> list[Object]:
    modes = {gpu.uuid: mode for gpu in machine.gpus}
    return resource_slices.build(machine, node="n", node_uid="u", modes=modes, features=features)


def devices(machine: Machine, mode: Mode, features: SliceFeatures = ALL) -> list[Object]:
    return [one for piece in build(machine, mode, features) for one in piece["spec"].get("devices", ())]


def one_gpu(profile: str) -> Machine:
    machine = profiles.load(profile, seed="n")
    return msgspec.structs.replace(
        machine,
        gpus=machine.gpus[:1],
        links=((0,),),
        paths=(machine.paths[0][:1],),
        nic_paths=tuple(row[:1] for row in machine.nic_paths),
    )


def text(device: Object, name: str) -> str:
    return str(next(iter(device["attributes"].get(name, {"": ""}).values())))


@pytest.mark.parametrize("kind", KINDS)
def test_on_demand_is_one_device_that_a_claim_without_a_word_takes_whole(kind: str) -> None:
    (device,) = devices(one_gpu(kind), DYNAMIC)

    assert device["allowMultipleAllocations"] is True
    assert text(device, "mig") == "dynamic"
    assert text(device, "type") == ("mig" if kind == "dgx-a100" else "gpu")
    assert {name: amount["value"] for name, amount in device["capacity"].items()} == {
        "memorySlices": "8",
        "computeSlices": "7",
    }
    assert all(amount["requestPolicy"]["default"] == amount["value"] for amount in device["capacity"].values())


def test_before_hopper_a_gpu_in_parts_is_in_no_set_of_whole_ones() -> None:
    for device in devices(profiles.load("dgx-a100", seed="n"), DYNAMIC):
        assert not [name for name in device["attributes"] if name.startswith("nvlink")]
    assert any("nvlinkGroup4" in d["attributes"] for d in devices(profiles.load("hgx-h100", seed="n"), DYNAMIC))


@pytest.mark.parametrize("kind", KINDS)
def test_no_placements_that_counters_allow_together_are_too_much_for_a_gpu(kind: str) -> None:
    """All sets of placements that the counters allow, by brute force, against the profiles themselves."""
    machine = one_gpu(kind)
    gpu = machine.gpus[0]
    parts = [device for device in devices(machine, PLACEMENTS) if text(device, "type") == "mig"]
    taken = [frozenset(device["consumesCounters"][0]["counters"]) for device in parts]
    assert len(parts) == sum(len(profile.starts) for profile in gpu.profiles)
    by_name = {profile.name: profile for profile in gpu.profiles}
    seen = 0

    def grow(chosen: tuple[int, ...], used: frozenset[str], first: int) -> None:
        nonlocal seen
        seen += 1
        wanted = [by_name[text(parts[n], "profile")] for n in chosen]
        assert sum(profile.compute for profile in wanted) <= max(profile.compute for profile in gpu.profiles)
        assert all(wanted.count(profile) <= profile.most for profile in wanted)
        for n in range(first, len(parts)):
            if not used & taken[n]:
                grow((*chosen, n), used | taken[n], n + 1)

    grow((), frozenset(), 0)
    assert seen > 300


@pytest.mark.parametrize("kind", KINDS)
def test_what_overlaps_on_the_gpu_overlaps_in_the_counters(kind: str) -> None:
    machine = one_gpu(kind)
    by_name = {profile.name: profile for profile in machine.gpus[0].profiles}
    parts = [device for device in devices(machine, PLACEMENTS) if text(device, "type") == "mig"]

    def span(device: Object) -> set[int]:
        start = int(text(device, "placement"))
        return set(range(start, start + by_name[text(device, "profile")].size))

    for a, b in itertools.combinations(parts, 2):
        counters = [set(device["consumesCounters"][0]["counters"]) for device in (a, b)]
        engines = [by_name[text(device, "profile")].engines[-1] for device in (a, b)]  # OFA, of which a GPU has one
        assert bool(counters[0] & counters[1]) == (bool(span(a) & span(b)) or all(engines))


def test_the_whole_gpu_takes_all_counters_and_is_there_where_mig_mode_needs_no_reset() -> None:
    machine = one_gpu("hgx-h100")
    counters, pieces = build(machine, PLACEMENTS)
    (whole,) = [d for d in pieces["spec"]["devices"] if text(d, "type") == "gpu"]

    assert whole["name"] == resource_slices.device_name(machine.gpus[0].uuid)
    assert whole["consumesCounters"][0]["counters"] == counters["spec"]["sharedCounters"][0]["counters"]
    assert {text(d, "type") for d in devices(one_gpu("dgx-a100"), PLACEMENTS)} == {"mig"}


def test_the_scheduler_which_takes_the_first_that_fits_leaves_the_start_free() -> None:
    """A ``1g`` at the front would block all that can only start at 0."""
    starts = [
        int(text(d, "placement")) for d in devices(one_gpu("dgx-a100"), PLACEMENTS) if text(d, "profile") == "1g.5gb"
    ]

    assert starts == sorted(starts, reverse=True)


def test_counters_and_devices_stand_in_slices_of_their_own_each_gpu_in_one() -> None:
    built = build(profiles.load("hgx-h100", seed="n"), PLACEMENTS)

    assert all(("devices" in piece["spec"]) != ("sharedCounters" in piece["spec"]) for piece in built)
    assert all(len(piece["spec"].get("devices", ())) <= 64 for piece in built)
    assert all(len(piece["spec"].get("sharedCounters", ())) <= 8 for piece in built)
    homes = [{d["consumesCounters"][0]["counterSet"] for d in piece["spec"].get("devices", ())} for piece in built]
    assert sum(map(len, homes)) == 8


@pytest.mark.parametrize("mode", [DYNAMIC, PLACEMENTS])
def test_instances_made_for_claims_change_no_slice(mode: Mode) -> None:
    machine = profiles.load("hgx-h100", seed="n")
    made = MigDevice(0, "MIG-7a1c44a4-7a1c-5d09-a1b6-02c0a7a7fd0e", 1, 0, "1g.10gb", 9984)
    used = (msgspec.structs.replace(machine.gpus[0], mig=(made,)), *machine.gpus[1:])

    assert build(msgspec.structs.replace(machine, gpus=used), mode) == build(machine, mode)


@pytest.mark.parametrize(
    ("mode", "lacking"), [(DYNAMIC, SliceFeatures(shares=False)), (PLACEMENTS, SliceFeatures(counters=False))]
)
def test_a_server_that_cannot_count_gets_whole_gpus_or_none(mode: Mode, lacking: SliceFeatures) -> None:
    machine = profiles.load("hgx-h100", seed="n")
    gpus = (msgspec.structs.replace(machine.gpus[0], mig=()), *machine.gpus[1:])

    found = devices(msgspec.structs.replace(machine, gpus=gpus), mode, lacking)
    assert {d["attributes"]["uuid"]["string"] for d in found} == {gpu.uuid for gpu in gpus[1:]}
    assert not any("allowMultipleAllocations" in d or "consumesCounters" in d for d in found)


def test_every_reader_can_rebuild_the_machine_from_several_slices() -> None:
    machine = profiles.load("hgx-h100", seed="n")
    typed = [msgspec.convert(piece, ResourceSlice) for piece in build(machine, PLACEMENTS)]

    assert resource_slices.read_machine(typed) == machine


def test_slices_of_an_agent_that_counted_media_alone_are_read_and_replaced() -> None:
    """That agent told of no engines, and its only counter for them was ``media``."""
    machine = one_gpu("hgx-h100")
    new = build(machine, PLACEMENTS)
    old = json.loads(json.dumps(new).replace('"ofa-engines"', '"media"'))
    document = json.loads(old[0]["metadata"]["annotations"][names.MACHINE])
    for gpu in document["gpus"]:
        gpu["profiles"] = [profile[:7] for profile in gpu["profiles"]]
    old[0]["metadata"]["annotations"][names.MACHINE] = json.dumps(document)
    for number, piece in enumerate(old):
        piece["metadata"]["resourceVersion"] = str(number)
        piece["spec"]["pool"]["generation"] = 3

    earlier = resource_slices.read_machine([msgspec.convert(piece, ResourceSlice) for piece in old])
    assert earlier is not None
    (gpu,) = earlier.gpus
    assert [profile.name for profile in gpu.profiles] == [profile.name for profile in machine.gpus[0].profiles]
    (limit,) = binding_limits(gpu.profiles)
    assert {profile.name for profile, need in limit.needs.items() if need} == {"1g.10gb+me"}

    todo = pool.writes(new, old, tolerated={})
    assert [piece["metadata"]["name"] for piece in todo.update] == [piece["metadata"]["name"] for piece in new]
    assert (todo.create, todo.delete, todo.generation) == ([], [], 4)


def whole_or_parts(found: Sequence[Object], gpu: Gpu) -> int:
    return sum(gpu.uuid in (text(d, "uuid"), text(d, "parentUUID")) for d in found)


def test_a_gpu_without_profiles_stays_whole() -> None:
    machine = profiles.load("l40s-x8", seed="n")
    for mode in (DYNAMIC, PLACEMENTS):
        assert all(whole_or_parts(devices(machine, mode), gpu) == 1 for gpu in machine.gpus)


def in_mig_mode(machine: Machine, *instances: tuple[int, int]) -> Machine:
    """The machine with these instances on its first GPU: profile ids and starts."""
    gpu = machine.gpus[0]
    by_id = {profile.id: profile for profile in gpu.profiles}
    there = tuple(
        MigDevice(slot, f"MIG-{slot}", slot + 1, 0, by_id[number].name, by_id[number].memory_mib, number, start)
        for slot, (number, start) in enumerate(instances)
    )
    gpus = (msgspec.structs.replace(gpu, mig=there), *machine.gpus[1:])
    return msgspec.structs.replace(machine, gpus=gpus)


@pytest.mark.parametrize("able", [ALL, SliceFeatures(shares=False, counters=False, taints=False)])
def test_instances_that_exist_are_plain_devices_on_every_server(able: SliceFeatures) -> None:
    machine = in_mig_mode(profiles.load("hgx-h100", seed="n"), (9, 4), (19, 0), (20, 1))
    gpu = machine.gpus[0]
    found = [one for one in devices(machine, Mode(mig="static"), able) if text(one, "type") == "mig"]
    assert [one["name"] for one in found] == [
        resource_slices.part_name(gpu.uuid, 19, 0),
        resource_slices.part_name(gpu.uuid, 20, 1),
        resource_slices.part_name(gpu.uuid, 9, 4),
    ]
    last = found[-1]
    assert last.keys() == {"name", "attributes", "capacity"}
    assert (text(last, "profile"), last["attributes"]["placement"]) == ("3g.40gb", {"int": 4})
    assert (text(last, "parentUUID"), "uuid" in last["attributes"]) == (gpu.uuid, False)
    assert {name: amount["value"] for name, amount in last["capacity"].items()} == {
        "memorySlices": "4",
        "computeSlices": "3",
        "memory": "39936Mi",
    }


def test_a_gpu_in_mig_mode_is_static_where_nothing_is_said_and_nothing_where_mig_is_off() -> None:
    machine = in_mig_mode(one_gpu("hgx-h100"), (9, 4))
    (piece,) = resource_slices.build(machine, node="n", node_uid="u")
    assert [text(one, "profile") for one in piece["spec"]["devices"]] == ["3g.40gb"]
    assert devices(machine, Mode()) == []


@pytest.mark.parametrize("mode", [DYNAMIC, PLACEMENTS])
def test_where_none_can_be_made_for_claims_those_that_exist_are_handed_out(mode: Mode) -> None:
    machine = in_mig_mode(one_gpu("hgx-h100"), (9, 4))
    able = SliceFeatures(shares=False, counters=False)
    assert [text(one, "profile") for one in devices(machine, mode, able)] == ["3g.40gb"]
    read = resource_slices.read_machine(msgspec.convert(build(machine, mode, able), list[ResourceSlice]))
    assert read == machine


def test_an_instance_is_the_same_device_as_its_placement_but_for_counters() -> None:
    machine = in_mig_mode(one_gpu("hgx-h100"), (9, 4))
    (static,) = devices(machine, Mode(mig="static"))
    (placed,) = [one for one in devices(machine, PLACEMENTS) if one["name"] == static["name"]]
    assert static == {key: value for key, value in placed.items() if key != "consumesCounters"}


def test_one_that_is_gone_is_no_device_and_one_that_is_back_is_the_same() -> None:
    whole = in_mig_mode(one_gpu("hgx-h100"), (9, 4), (19, 0))
    left = in_mig_mode(one_gpu("hgx-h100"), (19, 0))
    static = Mode(mig="static")
    assert devices(left, static) == devices(whole, static)[:1]
    assert devices(in_mig_mode(one_gpu("hgx-h100"), (19, 0), (9, 4)), static) == devices(whole, static)
