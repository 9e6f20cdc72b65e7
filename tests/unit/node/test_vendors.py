"""A whole agent on nodes with GPUs of other vendors than NVIDIA: what it publishes, hands out, and says."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import EVENTS
from dradriver.node.faults import Fault, Faults
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.vendors.ascend.simulated_ascend import SHARED
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.kfd import AmdServer, amd
from tests.fakes.node import NODE, NodeUnderTest, a_node, claim, eventually, result
from tests.fakes.server import complete
from tests.unit.node.vendors.amd.test_amd_gpus import lay


def names(node: NodeUnderTest) -> list[str]:
    return [device["name"] for piece in node.slices for device in piece["spec"].get("devices", ())]


def published(node: NodeUnderTest) -> Machine:
    found = resource_slices.read_machine(msgspec.convert(node.slices, list[ResourceSlice]))
    assert found is not None
    return found


def said(node: NodeUnderTest, reason: str) -> list[str]:
    return [obj["message"] for obj in node.api.all(EVENTS) if obj["reason"] == reason]


async def prepared(node: NodeUnderTest, devices: list[str]) -> dict[str, Any]:
    """The CDI spec of a claim of these devices, once the kubelet has had it prepared; empty where it needs none."""
    asked = node.put_claim(claim("c", results=[result("gpu", device) for device in devices]))
    answer = (await node.kubelet.prepare(asked))[asked[2]]
    assert answer.error == ""
    return next((spec for name, spec in node.specs.items() if "claim" in name), {}) | {
        "ids": [one for device in answer.devices for one in device.cdi_device_ids]
    }


@pytest.mark.parametrize(
    ("profile", "nodes"),
    [
        ("mi300x-x8", {"/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card1", "/dev/dri/renderD129"}),
        ("ascend-910b-x8", {"/dev/davinci0", "/dev/davinci1", *SHARED}),
    ],
)
async def test_simulated_gpus_of_any_vendor_are_published_and_handed_out(profile: str, nodes: set[str]) -> None:
    async with a_node() as node, node.agent(simulated_default=profile):
        await node.published()
        assert published(node) == profiles.load(profile, seed=NODE)
        spec = await prepared(node, names(node)[:2])
        edits = [device["containerEdits"] for device in spec["devices"]]
        assert {one["path"] for some in edits for one in some["deviceNodes"]} == nodes
        assert {one["hostPath"] for some in edits for one in some["deviceNodes"]} == {"/dev/null"}
        assert all("env" not in some for some in edits)  # nothing of CUDA's, NCCL's or any runtime's


async def test_the_driver_of_npus_is_mounted_where_the_host_has_it(tmp_path: Path) -> None:
    for path in ("usr/local/Ascend/driver/lib64", "usr/local/dcmi"):
        (tmp_path / path).mkdir(parents=True)
    async with a_node() as node, node.agent(simulated_default="ascend-910b-x8", host_root=tmp_path):
        await node.published()
        (device,) = (await prepared(node, names(node)[:1]))["devices"]
        mounts = [one for one in device["containerEdits"]["mounts"] if one["hostPath"].startswith("/usr")]
        assert [one["hostPath"] for one in mounts] == ["/usr/local/Ascend/driver/lib64", "/usr/local/dcmi"]
        assert all(one["containerPath"] == one["hostPath"] and "ro" in one["options"] for one in mounts)
        assert "env" not in device["containerEdits"]


async def test_of_gpus_without_parts_all_are_whole_under_any_policies_and_that_is_said_once(
    tmp_path: Path,
) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text("gpus: [{numbers: [0, 1], shared: time-slicing}, {numbers: [2], mig: dynamic}]")
    async with a_node() as node, node.agent(simulated_default="mi300x-x8", policies=policies):
        await node.published()
        await eventually(lambda: said(node, "GPUFractionsUnsupported"))
        devices = [device for piece in node.slices for device in piece["spec"]["devices"]]
        assert len(devices) == 8
        assert all("allowMultipleAllocations" not in device for device in devices)
        (told,) = said(node, "GPUFractionsUnsupported")
        assert told.startswith("3 GPUs of node node-a stay whole.")
        assert "GPUs of amd do not have" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
@pytest.mark.parametrize("discovery", ["auto", "amd"])
async def test_an_agent_reads_amds_gpus_publishes_and_hands_them_out(discovery: str, tmp_path: Path) -> None:
    server = AmdServer(tmp_path, amd(complete(profiles.load("mi210-x8"))))
    lay(server)
    async with a_node() as node, node.agent(discovery=discovery, simulated_default=None, host_root=tmp_path):
        await node.published()
        assert published(node).links == server.machine.links
        gpu = server.machine.gpus[1]
        spec = await prepared(node, [resource_slices.device_name(gpu.uuid)])
        base = node.specs["gpu.topology-gpu.json"]
        assert spec["ids"][0] == f"gpu.topology/gpu={gpu.uuid}"
        assert "env" not in spec["devices"][0]["containerEdits"]
        (given,) = [one["containerEdits"] for one in base["devices"] if one["name"] == gpu.uuid]
        assert [one["path"] for one in given["deviceNodes"]] == ["/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"]


async def test_a_partitioned_machine_publishes_nothing_and_an_event_says_why(tmp_path: Path) -> None:
    server = AmdServer(tmp_path, amd(complete(profiles.load("mi300x-x8"))))
    (server.device(3) / "current_compute_partition").write_text("CPX\n")
    async with a_node() as node, node.agent(discovery="auto", simulated_default=None, host_root=tmp_path):
        await eventually(lambda: said(node, "GPUsUnpublished"))
        assert names(node) == []
        (told,) = said(node, "GPUsUnpublished")
        assert "is partitioned (CPX mode)" in told
        assert "amd-smi set --compute-partition SPX" in told


async def test_two_vendors_gpus_for_data_centres_are_not_published_and_an_event_says_why(tmp_path: Path) -> None:
    server = AmdServer(tmp_path, amd(complete(profiles.load("mi300x-x8"))))
    h100 = tmp_path / "sys/bus/pci/devices/0000:fe:00.0"
    h100.mkdir()
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (h100 / name).write_text(text + "\n")
    async with a_node() as node, node.agent(discovery="auto", simulated_default=None, host_root=tmp_path):
        await eventually(lambda: said(node, "GPUsUnpublished"))
        assert names(node) == []
        assert server.machine.gpus
        assert "GPUs of NVIDIA and of AMD" in said(node, "GPUsUnpublished")[0]


class Found:
    """A discovery with faults that a test says."""

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()


def test_both_gpus_of_a_package_are_kept_from_pods_when_one_fails_and_others_are_not() -> None:
    machine = profiles.load("mi250-x4")
    found: Any = Found()
    record = Record(clock=lambda: 0.0)
    watch = HealthWatch(record, found, None)
    watch.looked(machine, None)
    assert record.standing() == {}
    found.faults = {machine.gpus[2].uuid: (Fault("ras", "umc", "3 errors"),)}
    watch.looked(machine, None)
    standing = {uuid: [one.fault.kind for one in some] for uuid, some in record.standing().items()}
    assert standing == {machine.gpus[2].uuid: ["ras"], machine.gpus[3].uuid: ["package"]}  # 2 and 3 have four links
    (neighbour,) = record.standing()[machine.gpus[3].uuid]
    assert neighbour.fault.said == f"GPU {machine.gpus[2].uuid} of the same package has a fault: 3 errors"


def test_of_a_driver_that_is_not_there_each_gpu_is_told_once() -> None:
    machine = profiles.load("mi250-x4")
    found: Any = Found()
    found.faults = {gpu.uuid: (Fault("driver", "", "no driver"),) for gpu in machine.gpus}
    record = Record(clock=lambda: 0.0)
    watch = HealthWatch(record, found, None)
    watch.looked(machine, None)
    assert {one.fault.kind for some in record.standing().values() for one in some} == {"driver"}


def test_what_is_only_said_of_a_gpu_is_not_said_of_the_other() -> None:
    machine = profiles.load("mi250-x4")
    found: Any = Found()
    found.faults = {machine.gpus[2].uuid: (Fault("ecc", "uncorrected", "3 errors"),)}
    record = Record(clock=lambda: 0.0)
    HealthWatch(record, found, None).looked(machine, None)
    assert record.standing().keys() == {machine.gpus[2].uuid}
