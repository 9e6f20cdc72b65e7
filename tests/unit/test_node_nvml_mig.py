"""Fabric, lanes to the CPU and MIG devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api import slices
from dradriver.node.claims.allocation import plan
from dradriver.node.errors import DeviceMissingError
from dradriver.topology import codec
from dradriver.topology.machine import MigDevice
from tests.fakes.hardware import Server, said, without
from tests.fakes.node import BOOT, NODE, claim, result, teller, typed, workshop

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


def test_a_gpu_that_has_not_joined_the_fabric_is_none_of_it(tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.table["nvmlDeviceGetGpuFabricInfoV 2"] = f"2 0 7 {CLUSTER}"
    reading = server.read()
    ours = server.machine.fabric
    assert [gpu.fabric for gpu in reading.machine.gpus] == [ours, ours, "", ours]
    assert said(reading) == [f"GPU 2: NVLink fabric: not joined, others are in {ours}"]
    (published,) = slices.build(reading.machine, node="n", node_uid="u")
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
    MigDevice(slot, f"MIG-0000000{slot}-aaaa-5555-8888-000000000002", slot + 1, 0, profile, 9984)
    for slot, profile in ((0, "3g.40gb"), (2, "1g.10gb"))
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
    assert codec.decode(codec.encode(machine)) == machine


def test_a_gpu_in_mig_mode_is_not_handed_out_as_a_whole(sliced: Server) -> None:
    machine = sliced.read().machine
    (published,) = slices.build(machine, node="n", node_uid="u")
    assert [device["attributes"]["index"]["int"] for device in by_index(published)] == [0, 1, 3, 4, 5, 6, 7]
    name = slices.device_name(machine.gpus[2].uuid)
    with pytest.raises(DeviceMissingError):
        plan(typed(claim("c", results=[result("gpu", name)])), machine, workshop(), teller(), node=NODE, boot=BOOT)


def test_a_mode_that_waits_for_a_reset_is_told_of(sliced: Server) -> None:
    sliced.table |= {"nvmlDeviceGetMigMode 0": "0 1", "nvmlDeviceGetMigMode 2": "1 0"}
    reading = sliced.read()
    assert [gpu.mig is not None for gpu in reading.machine.gpus] == [False, False, True] + [False] * 5
    assert [text for text in said(reading) if "MIG" in text] == [
        "GPU 0: MIG mode: goes on at the GPU's next reset",
        "GPU 2: MIG mode: goes off at the GPU's next reset",
    ]


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
