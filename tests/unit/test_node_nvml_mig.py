"""Fabric, lanes to the CPU and MIG devices."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.fakes.hardware import Server, said, without

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


def test_gpus_of_two_fabrics_belong_to_none(tmp_path: Path) -> None:
    server = Server("gb200-nvl72-tray", tmp_path)
    server.table["nvmlDeviceGetGpuFabricInfoV 3"] = f"3 0 7 {CLUSTER}"
    reading = server.read()
    assert reading.machine.fabric == ""
    assert said(reading) == [
        f"machine: NVLink fabric: GPUs belong to {CLIQUE}, {server.machine.fabric}; none of them is taken"
    ]


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


def mig_on(server: Server, gpu: int) -> None:
    """Two MIG devices in slots 0 and 2 of seven."""
    server.table |= {f"nvmlDeviceGetMigMode {gpu}": "1 1", f"nvmlDeviceGetMaxMigDeviceCount {gpu}": "7"}
    for slot, profile in ((0, "3g.40gb"), (2, "1g.10gb")):
        server.table |= {
            f"nvmlDeviceGetMigDeviceHandleByIndex {gpu} {slot}": "",
            f"nvmlDeviceGetUUID {gpu}/{slot}": f"MIG-0000000{slot}-AAAA-5555-8888-00000000000{gpu}",
            f"nvmlDeviceGetName {gpu}/{slot}": f"NVIDIA H100 80GB HBM3 MIG {profile}",
            f"nvmlDeviceGetMemoryInfo {gpu}/{slot}": str(9984 << 20),
            f"nvmlDeviceGetGpuInstanceId {gpu}/{slot}": str(slot + 1),
            f"nvmlDeviceGetComputeInstanceId {gpu}/{slot}": "0",
        }


def test_mig_devices_are_read_with_their_gpu(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    mig_on(server, 2)
    reading = server.read()
    assert reading.machine == server.machine
    assert [gpu.mig is not None for gpu in reading.gpus] == [False, False, True] + [False] * 5
    assert msgspec.to_builtins(reading.gpus[2].mig) == tuple(
        {
            "slot": slot,
            "uuid": f"MIG-0000000{slot}-aaaa-5555-8888-000000000002",
            "gpu_instance": slot + 1,
            "compute_instance": 0,
            "profile": profile,
            "memory_mib": 9984,
        }
        for slot, profile in ((0, "3g.40gb"), (2, "1g.10gb"))
    )


@pytest.mark.parametrize("what", ["UUID", "Name", "MemoryInfo", "GpuInstanceId", "ComputeInstanceId"])
@pytest.mark.parametrize("code", [4, 999])
def test_a_mig_device_that_fails_costs_no_other(what: str, code: int, tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    mig_on(server, 2)
    server.fail(f"nvmlDeviceGet{what} 2/0", code)
    reading = server.read()
    assert reading.machine == server.machine
    assert [p.where for p in reading.problems] == ["GPU 2 MIG 0"]
    assert (reading.gpus[2].mig or ())[-1].slot == 2


def test_a_gpu_in_mig_mode_is_not_handed_out_as_a_whole(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    mig_on(server, 2)
    reading = server.read(whole=True)
    assert without(reading.machine) == without(server.machine, 2)
    assert said(reading) == ["GPU 2: MIG mode: on; left out, it cannot be used as a whole"]
