"""Fabric, lanes to the CPU and MIG devices."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pynvml
import pytest

from dradriver.api.slices import resource_slices
from dradriver.node.claims.prepare_plan import plan
from dradriver.node.errors import DeviceMissingError
from dradriver.node.vendors.nvidia.discovery import binding, mig_profiles, nvidia_reading
from dradriver.node.vendors.nvidia.discovery.failed_queries import Answers
from dradriver.node.vendors.nvidia.discovery.nvidia_reading import Reading
from dradriver.node.vendors.nvidia.discovery.nvml_calls import NvmlCalls
from dradriver.topology import machine_codec
from dradriver.topology.check import MOST_PROFILES
from dradriver.topology.machine import MigDevice
from dradriver.topology.profiles import simulated_mig_profiles
from tests.fakes import nvml
from tests.fakes.hardware import Server, said, without
from tests.fakes.node import BOOT, NODE, claim, container_env, device_manager, result, typed

CLUSTER = "000102030405060708090a0b0c0d0e0f"
CLIQUE = "00010203-0405-0607-0809-0a0b0c0d0e0f.7"


@pytest.mark.parametrize(
    ("answers", "fabric"),
    [
        ([f"3 0 7 {CLUSTER}"] * 4, CLIQUE),
        ([f"3 0 7 {CLUSTER}", "!999", "!3", "!3"], CLIQUE),
        ([f"2 0 7 {CLUSTER}"] * 4, ""),  # still joining
        ([f"3 999 7 {CLUSTER}"] * 4, ""),  # failed to join
        (["3 0 7 " + "0" * 32] * 4, ""),  # one server alone
    ],
)
def test_the_fabric_is_the_clique_that_the_gpus_have_joined(answers: list[str], fabric: str, tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.table |= {f"nvmlDeviceGetGpuFabricInfoV {index}": answer for index, answer in enumerate(answers)}
    assert server.read().machine.fabric == fabric


def test_a_gpu_that_has_not_joined_the_fabric_is_not_in_it(tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.table["nvmlDeviceGetGpuFabricInfoV 2"] = f"2 0 7 {CLUSTER}"
    reading = server.read()
    ours = server.machine.fabric
    assert [gpu.fabric for gpu in reading.machine.gpus] == [ours, ours, "", ours]
    assert said(reading) == [f"GPU 2: NVLink fabric: not joined, others are in {ours}"]
    (published,) = resource_slices.build(reading.machine, node="n", node_uid="u")
    assert ["fabric" in device["attributes"] for device in by_index(published)] == [True, True, False, True]


def test_gpus_of_two_fabrics_are_told_of(tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.table["nvmlDeviceGetGpuFabricInfoV 3"] = f"3 0 7 {CLUSTER}"
    reading = server.read()
    assert (reading.machine.fabric, reading.machine.gpus[3].fabric) == ("", CLIQUE)
    assert said(reading) == [f"machine: NVLink fabric: its GPUs belong to several: {CLIQUE}, {server.machine.fabric}"]


def test_a_fabric_of_a_driver_that_knows_the_first_version_only(tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    for index in range(4):
        answer = server.table[f"nvmlDeviceGetGpuFabricInfoV {index}"]
        server.fail(f"nvmlDeviceGetGpuFabricInfoV {index}", 25)
        server.table[f"nvmlDeviceGetGpuFabricInfo {index}"] = answer
    assert server.read().machine == server.machine


@pytest.mark.parametrize("field", ["170 0", "171 2", "172 2"])
@pytest.mark.parametrize("code", [3, 999])
def test_a_lane_to_the_cpu_that_fails_costs_its_gpus_lanes_only(field: str, code: int, tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.fail(f"nvmlDeviceGetFieldValues 1 {field}", code)
    machine = server.read().machine
    assert [gpu.c2c_gbps for gpu in machine.gpus] == [223.56, 0.0, 223.56, 223.56]
    assert without(machine, 1) == without(server.machine, 1)


def by_index(published: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of a slice in the order of the GPUs' numbers."""
    devices: list[dict[str, Any]] = published["spec"]["devices"]
    return sorted(devices, key=lambda device: int(device["attributes"]["index"]["int"]))


MIG = tuple(
    MigDevice(slot, f"MIG-0000000{slot}-aaaa-5555-8888-000000000002", slot + 1, 0, profile, 9984, number, start)
    for slot, profile, number, start in ((0, "3g.40gb", 9, 4), (2, "1g.10gb", 19, 1))
)


@pytest.fixture
def sliced(tmp_path: Path) -> Server:
    """An HGX H100 whose GPU 2 is in MIG mode, where NVLink has no peer access."""
    whole = Server("hgx-h100", tmp_path / "whole").machine
    gpus = tuple(msgspec.structs.replace(gpu, mig=MIG if gpu.index == 2 else None) for gpu in whole.gpus)
    server = Server(msgspec.structs.replace(whole, gpus=gpus), tmp_path)
    server.table |= {f"nvmlDeviceGetP2PStatus 2 {a} {b}": "5" for a in range(8) for b in range(8) if 2 in (a, b)}
    return server


def test_mig_devices_are_read_with_their_gpu(sliced: Server) -> None:
    server = sliced
    server.table["nvmlDeviceGetUUID 2/0"] = MIG[0].uuid.replace("aaaa", "AAAA")
    machine = server.read().machine
    assert machine.gpus == server.machine.gpus
    assert machine.gpus[2].mig == MIG
    assert not any(machine.links[2])
    assert machine_codec.decode(machine_codec.encode(machine)) == machine


def test_of_a_gpu_in_mig_mode_its_instances_are_handed_out_and_never_the_whole(sliced: Server) -> None:
    machine = sliced.read().machine
    (published,) = resource_slices.build(machine, node="n", node_uid="u")
    assert [device["attributes"]["index"]["int"] for device in by_index(published)] == [0, 1, 2, 2, 3, 4, 5, 6, 7]
    gpu = machine.gpus[2].uuid
    assert [device["name"] for device in by_index(published)[2:4]] == [
        resource_slices.part_name(gpu, 19, 1),
        resource_slices.part_name(gpu, 9, 4),
    ]
    whole = typed(claim("c", results=[result("gpu", resource_slices.device_name(gpu))]))
    with pytest.raises(DeviceMissingError):
        plan(whole, machine, device_manager(), container_env(), node=NODE, boot=BOOT)


def test_profiles_are_read_in_mig_mode_and_out_of_it(sliced: Server) -> None:
    gpus = sliced.read().machine.gpus
    assert [gpu.profiles for gpu in gpus] == [simulated_mig_profiles.profiles("NVIDIA H100 80GB HBM3")] * 8


@pytest.mark.parametrize("code", [2, 3])
def test_a_gap_in_the_enumeration_hides_nothing_that_follows(code: int, sliced: Server) -> None:
    gap = sliced.table.pop("nvmlDeviceGetGpuInstanceProfileInfoV 2 1").split()[0]
    sliced.fail("nvmlDeviceGetGpuInstanceProfileInfoV 2 1", code)
    reading = sliced.read()
    profiles = simulated_mig_profiles.profiles("NVIDIA H100 80GB HBM3")
    assert reading.machine.gpus[2].profiles == tuple(one for one in profiles if one.id != int(gap))
    assert not [text for text in said(reading) if "Instance" in text]


def test_an_enumeration_of_nothing_but_refusals_is_no_answer(sliced: Server) -> None:
    for number in range(18):
        sliced.fail(f"nvmlDeviceGetGpuInstanceProfileInfoV 2 {number}", 2)
    reading = sliced.read()
    assert reading.machine.gpus[2].profiles == ()
    assert [text for text in said(reading) if "Instance" in text]


def test_a_product_without_mig_has_no_profiles_and_that_is_no_problem(tmp_path: Path) -> None:
    found = Server("l40s-x8", tmp_path).read()
    assert not any(gpu.profiles for gpu in found.machine.gpus)
    assert not [text for text in said(found) if "Instance" in text]


def read_again(server: Server, answers: Answers) -> Reading:
    """Discover it as the next reading of the same agent does."""
    with patch.dict(os.environ, server.environment()), binding.opened(driver_root=nvml.compiled()) as library:
        return nvidia_reading.discover(library, root=server.sys.root, answers=answers)


@pytest.mark.parametrize("what", ["ProfileInfoV 2 2", "PossiblePlacements_v2 2 9"])
def test_profiles_that_cannot_be_read_cost_nothing_else_and_are_asked_for_again(what: str, sliced: Server) -> None:
    answers = Answers()
    good = dict(sliced.table)
    sliced.fail(f"nvmlDeviceGetGpuInstance{what}", 999)
    first = read_again(sliced, answers)
    assert [bool(gpu.profiles) for gpu in first.machine.gpus] == [gpu.index != 2 for gpu in first.machine.gpus]
    assert [gpu.mig for gpu in first.machine.gpus] == [gpu.mig for gpu in sliced.machine.gpus]
    assert first.unsure == frozenset()  # it is no worse a GPU for that
    assert [text for text in said(first) if "GpuInstance" in text]
    sliced.table = good
    assert read_again(sliced, answers).machine.gpus == sliced.machine.gpus


def test_profiles_are_asked_for_once_in_each_mode(sliced: Server) -> None:
    answers = Answers()
    read_again(sliced, answers)
    for key in [key for key in sliced.table if "InstanceProfile" in key or "PossiblePlacements" in key]:
        sliced.fail(key, 999)
    again = read_again(sliced, answers)
    assert (again.machine.gpus, again.unsure) == (sliced.machine.gpus, frozenset())
    sliced.table["nvmlDeviceGetMigMode 2"] = "0 0"  # and in another mode NVML may say something else
    assert [text for text in said(read_again(sliced, answers)) if text.startswith("GPU 2: nvmlDeviceGetGpuInstance")]


@pytest.mark.parametrize(
    "answers",
    [
        {"nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 9": "0:4 4:2"},
        {"nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 9": "60:8"},
    ],
)
def test_profiles_that_can_be_none_are_not_believed(answers: dict[str, str], sliced: Server) -> None:
    sliced.table |= answers
    reading = sliced.read()
    assert reading.machine.gpus[0].profiles == ()
    assert [text for text in said(reading) if text.startswith("GPU 0: nvmlDeviceGetGpuInstance")]


def test_a_profile_of_a_form_that_is_not_known_costs_no_other_and_is_said_once(
    sliced: Server, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {f"nvmlDeviceGetGpuInstanceProfileInfoV {gpu} 2": "9 3 2 40000 MIG 3g.40gb;$(reboot)" for gpu in range(8)}
    sliced.table |= odd
    gpus = [sliced.read() for _ in range(2)][-1].machine.gpus
    left = tuple(one for one in simulated_mig_profiles.profiles("NVIDIA H100 80GB HBM3") if one.id != 9)
    assert [gpu.profiles for gpu in gpus] == [left] * 8
    assert caplog.text.count("MIG profile 9 is not offered") == 1


def test_engines_that_are_not_told_or_cannot_be_are_none(sliced: Server) -> None:
    """A driver that leaves the fields alone, or fills them with all ones, forbids no instance."""
    sliced.table |= {f"profile engines {gpu} 19": "1 4294967295 0 1 0" for gpu in range(8)}
    del sliced.table["profile engines 0 9"]
    first, second, *_ = sliced.read().machine.gpus
    engines = {gpu.uuid: {profile.name: profile.engines for profile in gpu.profiles} for gpu in (first, second)}
    assert engines[first.uuid] == engines[second.uuid] | {"3g.40gb": ()}
    assert engines[second.uuid]["1g.10gb"] == (1, 0, 0, 1, 0)
    assert engines[second.uuid]["7g.80gb"] == (8, 7, 0, 7, 1)


def test_two_profiles_of_one_name_are_the_first_of_them_and_it_is_said(
    sliced: Server, caplog: pytest.LogCaptureFixture
) -> None:
    sliced.table |= {f"nvmlDeviceGetGpuInstanceProfileInfoV {gpu} 9": "15 1 4 20000 MIG 1g.10gb" for gpu in range(8)}
    assert sliced.table["nvmlDeviceGetGpuInstanceProfileInfoV 0 0"].endswith(" MIG 1g.10gb")
    gpus = [sliced.read() for _ in range(2)][-1].machine.gpus
    left = tuple(one for one in simulated_mig_profiles.profiles("NVIDIA H100 80GB HBM3") if one.id != 15)
    assert [gpu.profiles for gpu in gpus] == [left] * 8
    assert caplog.text.count("MIG profile 15 is not offered: profile 19 is '1g.10gb', too") == 1


def test_of_more_profiles_than_a_machine_can_have_the_first_are_read() -> None:
    class Library(NvmlCalls):
        def ask(self, query: str, *arguments: Any) -> None:
            _gpu, _profile, places, count = arguments
            places[0].start, places[0].size, count._obj.value = 0, 1, 1

    infos = [
        SimpleNamespace(id=number, name=f"MIG 1g.{number + 1}gb", sliceCount=1, memorySizeMB=9984, instanceCount=7)
        for number in range(64)
    ]
    found = mig_profiles.read(Library(pynvml), None, infos)
    assert {one.id for one in found} == set(range(MOST_PROFILES))


def test_a_gpu_instance_in_pieces_is_read_told_of_and_not_handed_out(sliced: Server) -> None:
    """Two compute instances of one GPU instance, and one that does not take all of its own."""
    pieces = tuple(
        MigDevice(slot, f"MIG-0000000{slot}-aaaa-5555-8888-000000000002", instance, compute, profile, 9984, 9, start)
        for slot, instance, compute, profile, start in (
            (0, 1, 0, "1c.3g.40gb", 0),
            (1, 1, 1, "1c.3g.40gb", 0),
            (3, 2, 0, "2c.3g.40gb", 4),
        )
    )
    gpus = tuple(msgspec.structs.replace(gpu, mig=pieces) if gpu.index == 2 else gpu for gpu in sliced.machine.gpus)
    server = Server(msgspec.structs.replace(sliced.machine, gpus=gpus), sliced.file.parent / "pieces")
    reading = server.read()
    assert reading.machine.gpus[2].mig == pieces
    assert [one.where for one in reading.problems if one.what == "MIG device"] == [
        f"GPU 2 MIG {slot}" for slot in (0, 1, 3)
    ]
    (published,) = resource_slices.build(reading.machine, node="n", node_uid="u")
    assert 2 not in [device["attributes"]["index"]["int"] for device in by_index(published)]


def test_an_instance_whose_place_is_not_known_is_not_handed_out_and_is_when_it_is(sliced: Server) -> None:
    answers = Answers()
    good = dict(sliced.table)
    sliced.fail("nvmlGpuInstanceGetInfo 2/gi1", 999)
    first = read_again(sliced, answers).machine.gpus[2].mig or ()
    assert [(one.profile_id, one.start) for one in first] == [(None, None), (19, 1)]
    for table in (good, sliced.table):  # and then the last good answer stands
        sliced.table = table
        assert read_again(sliced, answers).machine.gpus[2].mig == MIG


def test_a_mode_that_waits_for_a_reset_is_told_of(sliced: Server) -> None:
    sliced.table |= {"nvmlDeviceGetMigMode 0": "0 1", "nvmlDeviceGetMigMode 2": "1 0"}
    reading = sliced.read()
    assert [gpu.mig is not None for gpu in reading.machine.gpus] == [False, False, True] + [False] * 5
    assert [text for text in said(reading) if "MIG" in text] == [
        "GPU 0: MIG mode: goes on at the GPU's next reset",
        "GPU 2: MIG mode: goes off at the GPU's next reset",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["UUID", "Name", "MemoryInfo", "GpuInstanceId", "ComputeInstanceId"])
@pytest.mark.parametrize("code", [4, 999])
def test_a_mig_device_that_fails_costs_no_other(what: str, code: int, sliced: Server) -> None:
    sliced.fail(f"nvmlDeviceGet{what} 2/0", code)
    reading = sliced.read()
    assert without(reading.machine, 2).gpus == without(sliced.machine, 2).gpus
    assert [p.where for p in reading.problems if "MIG" in p.where] == ["GPU 2 MIG 0"]
    assert (reading.machine.gpus[2].mig or ())[-1] == MIG[1]


def test_a_mig_device_without_an_identity_is_left_out(sliced: Server) -> None:
    sliced.table["nvmlDeviceGetUUID 2/0"] = "GPU-0"
    assert sliced.read().machine.gpus[2].mig == MIG[1:]
