"""What NVML says of a GPU's condition, and lost links."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dradriver.node.discovery import link_faults
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.faults import KINDS, Fault
from dradriver.node.vendors.nvidia import xids
from dradriver.node.vendors.nvidia.xids import severity
from dradriver.topology import profiles
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.server import complete


@pytest.fixture
def h100(tmp_path: Path) -> Server:
    return Server("hgx-h100", tmp_path)


def faults(server: Server, gpu: int = 2) -> list[Fault]:
    found = server.read().faults
    assert {uuid for uuid, some in found.items() if some} <= {server.machine.gpus[gpu].uuid}
    return list(found[server.machine.gpus[gpu].uuid])


def test_a_healthy_gpu_has_no_fault(h100: Server) -> None:
    h100.table |= {
        "nvmlDeviceGetTotalEccErrors 2": "0",
        "nvmlDeviceGetRemappedRows 2": "17 2 0 0",  # remapped long ago
        "nvmlDeviceGetFieldValues 2 230 0": "0",
        "fabric health 2": str(2 | 2 << 4 | 1 << 8 | 1 << 12),
        "nvmlDeviceGetCurrentClocksEventReasons 2": str(0x4 | 0x1),  # at its power cap, as a busy one is
    }
    assert faults(h100) == []
    assert h100.read().sound == {h100.machine.gpus[2].uuid}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "answer", "kind", "value", "said"),
    [
        ("nvmlDeviceGetTotalEccErrors 2", "3", "ecc", "uncorrected", "3 uncorrected memory errors"),
        ("nvmlDeviceGetTotalEccErrors 2", "5000000000", "ecc", "uncorrected", "5000000000 uncorrected"),
        ("nvmlDeviceGetRemappedRows 2", "0 1 0 1", "row-remap-failed", "", "could not be remapped"),
        ("nvmlDeviceGetRemappedRows 2", "0 1 1 0", "row-remap-pending", "", "at the next reset"),
        ("nvmlDeviceGetFieldValues 2 230 0", "1", "recovery", "reset", "asks for a reset of the GPU"),
        ("nvmlDeviceGetFieldValues 2 230 0", "2", "recovery", "reboot", "asks for a reboot of the node"),
        ("nvmlDeviceGetFieldValues 2 230 0", "4", "recovery", "drain-reset", "asks to drain the GPU"),
        ("fabric health 2", "1", "fabric", "", "bandwidth is degraded"),
        ("fabric health 2", str(1 << 4), "fabric", "", "routes are unhealthy"),
        ("fabric health 2", str(5 << 8), "fabric", "", "too few NVLinks"),
        (
            "nvmlDeviceGetGpuFabricInfoV 2",
            "2 0 0 " + "0" * 32,
            "fabric",
            "in-progress",
            "has not joined its NVLink fabric",
        ),
        ("nvmlDeviceGetGpuFabricInfoV 2", "3 10 0 " + "0" * 32, "fabric", "failed", "refused the GPU (NVML status 10)"),
        ("nvmlDeviceGetCurrentClocksEventReasons 2", str(0x40 | 0x8), "thermal", "", "too hot"),
        ("nvmlDeviceGetCurrentClocksEventReasons 2", str(0x20), "thermal", "", "too hot"),
        ("nvmlDeviceGetCurrentClocksEventReasons 2", str(0x80 | 0x8), "power", "", "power brake"),
        ("nvmlDeviceGetNvLinkState 2 5", "0", "nvlink", "lost", "17 of 18 NVLinks are up"),
    ],
)
def test_each_fault_is_that_gpus_alone(query: str, answer: str, kind: str, value: str, said: str, h100: Server) -> None:
    h100.table["nvmlDeviceGetGpuFabricInfoV 2"] = "3 0 1 " + "0" * 32
    h100.table[query] = answer
    (fault,) = faults(h100)
    assert (fault.kind, fault.value) == (kind, value)
    assert said in fault.said
    assert fault.advice


@pytest.mark.parametrize("answer", ["0 0 0", "1 0 0", "2 999 0"])
def test_a_status_counts_once_the_gpu_has_joined_and_who_has_no_fabric_misses_none(answer: str, h100: Server) -> None:
    h100.table["nvmlDeviceGetGpuFabricInfoV 2"] = f"{answer} {'0' * 32}"
    assert [fault.value for fault in faults(h100)] == (["in-progress"] if answer.startswith("2") else [])


def test_a_driver_that_knows_the_first_version_of_the_fabrics_state_tells_it_too(h100: Server) -> None:
    h100.fail("nvmlDeviceGetGpuFabricInfoV 2", 13)
    h100.table["nvmlDeviceGetGpuFabricInfo 2"] = "2 0 0 " + "0" * 32
    assert [(fault.kind, fault.value) for fault in faults(h100)] == [("fabric", "in-progress")]


@pytest.mark.slow
def test_what_a_driver_does_not_know_is_no_fault_and_no_problem(h100: Server) -> None:
    for query in ("nvmlDeviceGetTotalEccErrors 2", "nvmlDeviceGetRemappedRows 2", "nvmlDeviceGetFieldValues 2 230 0"):
        for code in (2, 3, 13, 25):
            h100.fail(query, code)
            reading = h100.read()
            assert not any(reading.faults.values())
            assert reading.problems == ()
            assert reading.sound == frozenset()


@pytest.mark.parametrize("answer", ["4294967295", "!999", "!1"])
def test_nonsense_is_a_problem_and_no_fault(answer: str, h100: Server) -> None:
    h100.table["nvmlDeviceGetFieldValues 2 230 0"] = answer
    assert faults(h100) == []
    assert any("condition" in problem.where for problem in h100.read().problems)


def test_a_gpu_whose_questions_fail_is_unreadable(h100: Server) -> None:
    h100.fail("nvmlDeviceGetMemoryInfo 2", 999)
    assert [fault.kind for fault in faults(h100)] == ["unreadable"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in profiles.names("nvidia") if "degraded" not in name])
def test_no_profile_of_a_sound_machine_has_lost_links(name: str, tmp_path: Path) -> None:
    machine = complete(profiles.load(name))
    assert link_faults.lost(link_faults.of_machine(machine)) == {}
    assert not any(Server(machine, tmp_path).read().faults.values())


def test_all_links_of_a_gpu_on_switches_are_missed_and_a_gpu_without_a_bridge_is_sound(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    server.table |= {key: "0" for key in server.table if key.startswith("nvmlDeviceGetNvLinkState 2 ")}
    assert [fault.said for fault in faults(server)] == ["0 of 18 NVLinks are up"]
    pairs = Server("h100-pcie-x8-bridge-pairs", tmp_path / "pairs")
    for gpu in (0, 1):
        pairs.table |= {key: "0" for key in pairs.table if key.startswith(f"nvmlDeviceGetNvLinkState {gpu} ")}
    assert not any(pairs.read().faults.values())


def test_the_neighbours_of_a_lost_gpu_are_healthy(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    server.table |= {"lost 0": "0"} | {
        key.replace("RemotePciInfo_v2", "State"): "0"
        for key, remote in server.table.items()
        if key.startswith("nvmlDeviceGetNvLinkRemotePciInfo_v2") and remote.endswith("06:00.0")
    }
    assert not any(server.read().faults.values())


@pytest.mark.parametrize("gone", range(8))
def test_the_neighbours_of_a_gpu_that_is_dead_since_the_start_are_healthy(gone: int, tmp_path: Path) -> None:
    """Neither NVML nor /sys knows of it any more."""
    left = msgspec.structs.replace(without(complete(profiles.load("dgx1-v100")), {str(gone)}), pci=())
    server = Server(left, tmp_path)
    assert len({one.links for one in link_faults.of_machine(server.machine)}) > 1
    assert not any(server.read().faults.values())


def test_the_neighbours_of_gpus_that_virtual_machines_have_are_healthy(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)  # of which /sys shows all
    server.table = nvml.table(without(server.machine, {"0", "1", "2", "3"}))
    found = server.read()
    assert len(found.machine.gpus) == 4
    assert len({one.links for one in link_faults.of_machine(found.machine)}) > 1
    assert not any(found.faults.values())


def test_a_link_that_is_down_on_both_sides_is_missed_from_the_start(tmp_path: Path) -> None:
    server = Server("dgx1-v100", tmp_path)
    for gpu, peer in ((0, 3), (3, 0)):
        remote = server.table[f"nvmlDeviceGetPciInfo_v3 {peer}"]
        link = next(n for n in range(6) if server.table[f"nvmlDeviceGetNvLinkRemotePciInfo_v2 {gpu} {n}"] == remote)
        server.table[f"nvmlDeviceGetNvLinkState {gpu} {link}"] = "0"
    found = server.read().faults
    assert {uuid for uuid, some in found.items() if some} == {server.machine.gpus[gpu].uuid for gpu in (0, 3)}


def test_part_of_a_server_in_a_virtual_machine_is_healthy(tmp_path: Path) -> None:
    part = msgspec.structs.replace(complete(profiles.load("dgx1-v100")).subset([0, 1, 2]), virtual=True, pci=())
    assert len({one.links for one in link_faults.of_machine(part)}) > 1
    server = Server(part, tmp_path)
    server.sys.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 79\nflags\t: hypervisor")
    assert not any(server.read().faults.values())


def test_another_products_links_are_no_measure() -> None:
    found = [link_faults.Linked("a", "A100", 12, True), link_faults.Linked("h", "H100", 18, True)]
    assert link_faults.lost(found) == {}


def test_a_gpu_whose_memory_error_was_contained_takes_new_work_until_something_says_that_it_cannot(
    h100: Server,
) -> None:
    h100.table |= {
        "nvmlDeviceGetTotalEccErrors 2": "1",
        "nvmlDeviceGetRemappedRows 2": "0 1 1 0",
        "nvmlDeviceGetFieldValues 2 230 0": "0",
    }
    assert {fault.kind: fault.effect for fault in faults(h100)} == {"ecc": "None", "row-remap-pending": "None"}
    h100.table["nvmlDeviceGetFieldValues 2 230 0"] = "1"
    assert {fault.kind: fault.effect for fault in faults(h100)}["recovery"] == "NoSchedule"
    h100.table |= {"nvmlDeviceGetFieldValues 2 230 0": "0", "nvmlDeviceGetRemappedRows 2": "0 1 0 1"}
    assert {fault.kind: fault.effect for fault in faults(h100)}["row-remap-failed"] == "NoSchedule"
    assert {severity(xids.read(number, ""), {}) for number in (48, 64, 95, 140)} == {"taint"}


def test_every_kind_says_what_to_do_and_is_a_taints_key() -> None:
    for name, kind in KINDS.items():
        assert kind.advice.endswith(".")
        assert name.replace("-", "").isalnum()
        assert name == name.lower()
