"""NVLink as each GPU tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dradriver.node.vendors.nvidia.discovery import binding
from dradriver.node.vendors.nvidia.discovery.nvidia_reading import discover
from dradriver.node.vendors.nvidia.discovery.nvml_interface import Handle, Nvml
from dradriver.topology.machine import PathType
from tests.fakes import nvml
from tests.fakes.hardware import Server, said, without


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    return Server("dgx1-v100", tmp_path)


def test_links_that_are_down_do_not_count(dgx1: Server) -> None:
    """GPU 0 and 3 are joined by two links: one of them is down on both sides, as hardware has it."""
    for gpu, peer in ((0, 3), (3, 0)):
        remote = dgx1.table[f"nvmlDeviceGetPciInfo_v3 {peer}"]
        link = next(n for n in range(6) if dgx1.table[f"nvmlDeviceGetNvLinkRemotePciInfo_v2 {gpu} {n}"] == remote)
        dgx1.table[f"nvmlDeviceGetNvLinkState {gpu} {link}"] = "0"
        dgx1.fail(f"nvmlDeviceGetNvLinkRemotePciInfo_v2 {gpu} {link}", 3)
    links = [list(row) for row in dgx1.machine.links]
    links[0][3] = links[3][0] = 1
    reading = dgx1.read()
    assert reading.machine.links == tuple(map(tuple, links))
    assert reading.problems == ()


def test_where_two_sides_disagree_the_smaller_counts(dgx1: Server) -> None:
    remote = dgx1.table["nvmlDeviceGetPciInfo_v3 0"]
    link = next(n for n in range(6) if dgx1.table[f"nvmlDeviceGetNvLinkRemotePciInfo_v2 3 {n}"] == remote)
    dgx1.table[f"nvmlDeviceGetNvLinkState 3 {link}"] = "0"
    reading = dgx1.read()
    assert reading.machine.links[0][3] == reading.machine.links[3][0] == 1
    assert said(reading) == ["GPU 0 - GPU 3: NVLink: 2 links from one side, 1 from the other. The smaller value counts"]


def test_a_link_whose_end_one_side_cannot_say_is_the_other_sides(dgx1: Server) -> None:
    """As long as both sides have it up: what the other side does not know of is none."""
    for link in range(6):
        dgx1.fail(f"nvmlDeviceGetNvLinkRemotePciInfo_v2 3 {link}", 999)
    reading = dgx1.read()
    assert reading.machine.links == dgx1.machine.links
    assert [problem.where for problem in reading.problems] == [f"GPU 3 link {link}" for link in range(6)]
    for link in range(6):
        dgx1.fail(f"nvmlDeviceGetNvLinkRemotePciInfo_v2 0 {link}", 999)
    links = dgx1.read().machine.links
    assert links[0][3] == 0
    assert links[0][1] == dgx1.machine.links[0][1]


def test_over_switches_a_pair_has_the_links_of_its_weaker_side(tmp_path: Path) -> None:
    server = Server("dgx-h100", tmp_path)
    down = [(5, link) for link in range(4)] + [(6, link) for link in range(18)]
    server.table |= {f"nvmlDeviceGetNvLinkState {gpu} {link}": "0" for gpu, link in down}
    machine = server.read().machine
    assert [gpu.switch_links for gpu in machine.gpus] == [18, 18, 18, 18, 18, 14, 0, 18]
    assert machine.links[0] == (0, 18, 18, 18, 18, 14, 0, 18)
    assert machine.links[5] == (14, 14, 14, 14, 14, 0, 0, 14)
    assert machine.switched


@pytest.mark.parametrize("seen", [True, False])
def test_a_link_that_does_not_say_what_it_ends_in(seen: bool, tmp_path: Path) -> None:
    """Old drivers: what is no GPU is a switch, whether /sys shows it or not."""
    server = Server("dgx-h100", tmp_path)
    if seen:
        server.sys.file("sys/bus/pci/devices/0000:07:00.0/class", "0x068000")
    for key in server.table:
        if key.startswith("nvmlDeviceGetNvLinkRemoteDeviceType"):
            server.table[key] = "255"
        if seen and "RemotePciInfo" in key:
            server.table[key] = "00000000:07:00.0"
    assert server.read().machine == server.machine


def test_a_link_to_a_gpu_that_is_gone_is_no_link_to_a_switch(dgx1: Server) -> None:
    dgx1.table["lost 3"] = "0"
    dgx1.table |= {key: "!13" for key in dgx1.table if key.startswith("nvmlDeviceGetNvLinkRemoteDeviceType")}
    assert without(dgx1.read().machine) == without(dgx1.machine, 3)


def test_links_to_a_cpu_are_none_between_gpus(dgx1: Server) -> None:
    dgx1.table |= {f"nvmlDeviceGetNvLinkRemoteDeviceType 0 {link}": "1" for link in range(6)}
    machine = dgx1.read().machine
    assert not any(machine.links[0])
    assert not machine.switched


def test_a_pair_without_peer_access_has_no_links(tmp_path: Path) -> None:
    """A fabric manager with partitions: all links to the switches are up, and two halves cannot reach each other."""
    server = Server("hgx-h100", tmp_path)
    server.table |= {f"nvmlDeviceGetP2PStatus 2 {a} {b}": "5" for a in range(4) for b in range(4, 8)}
    reading = server.read()
    assert reading.machine.links[0] == (0, 18, 18, 18, 0, 0, 0, 0)
    assert len(reading.problems) == 16
    assert "no peer access over NVLink, so their 18 links do not count" in said(reading)[0]
    assert not any(reading.faults.values())


def refuse(server: Server, *pairs: tuple[int, int]) -> dict[int, list[str]]:
    """What is wrong with each GPU, by its number, where these pairs have no peer access."""
    server.table |= {f"nvmlDeviceGetP2PStatus 2 {a} {b}": "5" for pair in pairs for a, b in (pair, pair[::-1])}
    reading = server.read()
    by_uuid = {gpu.uuid: gpu.index for gpu in reading.machine.gpus}
    return {
        by_uuid[uuid]: [f"{fault.key}={fault.value}:{fault.effect}" for fault in some]
        for uuid, some in reading.faults.items()
        if some
    }


REFUSED = ["gpu.topology/nvlink=refused:NoSchedule"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100", "a100-pcie-x8-bridge-pairs", "dgx1-v100", "a100-x4-mesh"])
def test_of_a_pair_whose_links_are_up_without_peer_access_one_gpu_is_kept_off(name: str, tmp_path: Path) -> None:
    """NCCL ends with an error in a job that has both, over switches and over direct links."""
    server = Server(name, tmp_path)
    assert refuse(server, (0, 1)) == {1: REFUSED}
    reading = server.read()
    (fault,) = next(some for some in reading.faults.values() if some)
    other = reading.machine.gpus[0].uuid  # the driver's numbers are not those that users know
    assert fault.said.startswith(f"its NVLinks are up, but peer access to GPU {other} is refused: NCCL ends with an")


def test_a_gpu_that_no_other_reaches_is_the_one_that_is_kept_off(tmp_path: Path) -> None:
    assert refuse(Server("hgx-h100", tmp_path), *((3, b) for b in range(8) if b != 3)) == {3: REFUSED}


def test_without_a_fabric_manager_no_pair_has_peer_access_and_none_is_at_fault(tmp_path: Path) -> None:
    pairs = [(a, b) for a in range(8) for b in range(a)]
    assert refuse(Server("dgx-a100", tmp_path), *pairs) == {}  # an Ampere's driver does not tell how the fabric is


def test_a_gpu_that_has_not_joined_the_fabric_is_told_of_by_its_fabric_alone(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    server.table["nvmlDeviceGetGpuFabricInfoV 3"] = "2 0 0 " + "0" * 32
    assert refuse(server, *((3, b) for b in range(8) if b != 3)) == {3: ["gpu.topology/fabric=in-progress:NoSchedule"]}


def test_a_gpu_in_mig_mode_has_no_peer_access_and_is_not_at_fault(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    server.table["nvmlDeviceGetMigMode 3"] = "1 1"
    assert refuse(server, *((3, b) for b in range(8) if b != 3)) == {}


class MigModeMeanwhile:
    """An open NVML of which one GPU comes into MIG mode after it was asked whether it is."""

    def __init__(self, opened: Nvml, uuid: str) -> None:
        self._opened, self._uuid, self._on = opened, uuid, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def nvlink_p2p(self, a: Handle, b: Handle) -> bool:
        self._on = True
        return self._uuid not in (self._opened.uuid(a), self._opened.uuid(b))

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        return (True, True) if self._on and self._opened.uuid(gpu) == self._uuid else self._opened.mig_mode(gpu)


def test_a_gpu_that_comes_into_mig_mode_during_a_reading_is_not_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("hgx-h100", tmp_path)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    with binding.opened(driver_root=nvml.compiled()) as opened:
        meanwhile = MigModeMeanwhile(opened, server.machine.gpus[3].uuid)
        reading = discover(cast("Nvml", meanwhile), root=server.sys.root)
    assert not any(reading.machine.links[3])
    assert not any(reading.faults.values())


def test_a_gpu_that_is_kept_off_for_its_links_takes_no_other_along(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    server.table["nvmlDeviceGetNvLinkState 0 5"] = "0"
    assert refuse(server, (0, 1)) == {0: ["gpu.topology/nvlink=lost:NoSchedule"]}


def test_a_link_has_the_bandwidth_of_its_rate_where_the_part_is_not_known(tmp_path: Path) -> None:
    server = Server("a40-x8-bridge-pairs", tmp_path)
    for index in range(8):
        server.fail(f"nvmlDeviceGetCudaComputeCapability {index}", 999)
        server.table[f"nvmlDeviceGetFieldValues {index} 90 0"] = "14062"
    machine = server.read().machine
    assert machine.link_gbps == server.machine.link_gbps == 12.0
    assert {(gpu.compute_capability, gpu.architecture) for gpu in machine.gpus} == {("", "")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "gbps"), [("20000", 18.0), ("25000", 20.0), ("25781", 20.0), ("26562", 20.6), ("53125", 40.1), ("", 20.0)]
)
def test_rates_of_all_parts(rate: str, gbps: float, dgx1: Server) -> None:
    for index in range(8):
        del dgx1.table[f"nvmlDeviceGetCudaComputeCapability {index}"]
        if rate:
            dgx1.table |= {f"nvmlDeviceGetFieldValues {index} 164 {link}": rate for link in range(6)}
    assert dgx1.read().machine.link_gbps == gbps


@pytest.mark.parametrize(("level", "path"), [("0", PathType.PIX), ("20", PathType.PXB), ("60", PathType.PIX)])
def test_a_level_of_topology_that_is_not_known_is_read_from_sys(level: str, path: PathType, dgx1: Server) -> None:
    dgx1.table["nvmlDeviceGetTopologyCommonAncestor 0 1"] = level
    assert dgx1.read().machine.paths[0][1] is path


def test_a_pcie_link_that_sys_does_not_know_is_nvmls(dgx1: Server) -> None:
    for folder in (dgx1.sys.device(dgx1.machine.gpus[0].pci), dgx1.sys.device(dgx1.machine.gpus[0].pci).parent):
        (folder / "max_link_speed").write_text("Unknown\n")
    dgx1.table |= {"nvmlDeviceGetMaxPcieLinkGeneration 0": "4", "nvmlDeviceGetMaxPcieLinkWidth 0": "8"}
    assert [gpu.pcie_gbps for gpu in dgx1.read().machine.gpus] == [12.0] * 8  # x8 Gen 4
    dgx1.table["nvmlDeviceGetMaxPcieLinkGeneration 0"] = "9"
    assert dgx1.read().machine.gpus[0].pcie_gbps == 6.0  # as NCCL counts words that it does not know
