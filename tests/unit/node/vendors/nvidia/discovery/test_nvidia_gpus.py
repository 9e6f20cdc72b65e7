"""The node agent on hardware: GPUs that come and go, drivers that come late, what a claim is given."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pynvml
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.node.discovery import nic_discovery, sysfs
from dradriver.node.errors import RestartError, SetupError
from dradriver.node.faults import KINDS, FaultKind
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import READINGS, Hardware
from tests.effort import sampled
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification, without
from tests.fakes.node import a_node, claim, eventually, result

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH = 12, 9, 18
GPU_IS_LOST, RESET_REQUIRED = 15, 16


@pytest.fixture
def dgx1(tmp_path: Path) -> Iterator[Server]:
    """A DGX-1 whose library answers as its table says while the test runs."""
    server = Server("dgx1-v100", tmp_path)
    with patch.dict(os.environ, server.environment()):
        yield server


@pytest.fixture
def found(dgx1: Server) -> Iterator[Hardware]:
    """The agent's view of it, which lets go of the library at the end."""
    hardware = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root)
    yield hardware
    hardware.close()


def test_the_agent_logs_a_problem_once_and_its_end(
    dgx1: Server, found: Hardware, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    dgx1.table["lost 3"] = "0"
    dgx1.environment()
    machines = [found.read() for _ in range(3)]
    assert [without(machine) for machine in machines] == [without(dgx1.machine, 3)] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "GPU 3: nvmlDeviceGetHandleByIndex: GPU is lost (15)" in caplog.text
    del dgx1.table["lost 3"]
    dgx1.environment()
    assert dgx1.machine in [found.read() for _ in range(4)]  # an open session never sees it again
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO", "INFO"]


def resets(dgx1: Server, found: Hardware, *, readings: int = 1) -> list[int]:
    """The GPUs that so many readings show to have been reset."""
    dgx1.environment()
    seen: set[str] = set()
    for _ in range(readings):
        with contextlib.suppress(SetupError):
            found.read()
        seen |= found.reset
    return [gpu.index for gpu in dgx1.machine.gpus if gpu.uuid in seen]


@pytest.mark.slow
@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED])
def test_a_gpu_that_had_to_be_reset_and_answers_again_was_reset(code: int, dgx1: Server, found: Hardware) -> None:
    assert resets(dgx1, found) == []
    dgx1.fail("nvmlDeviceGetHandleByIndex_v2 3", code)
    assert resets(dgx1, found, readings=2) == []
    dgx1.table["nvmlDeviceGetHandleByIndex_v2 3"] = ""
    assert resets(dgx1, found, readings=4) == [3]
    assert resets(dgx1, found) == []


def test_a_gpu_that_did_not_say_who_it_is_for_a_while_was_not(dgx1: Server, found: Hardware) -> None:
    uuid = dgx1.table["nvmlDeviceGetUUID 3"]
    assert resets(dgx1, found) == []
    dgx1.fail("nvmlDeviceGetUUID 3", 999)
    assert resets(dgx1, found, readings=READINGS + 1) == []
    dgx1.table["nvmlDeviceGetUUID 3"] = uuid
    assert resets(dgx1, found, readings=2) == []


def test_a_bad_row_that_waits_no_more_shows_a_reset_and_a_question_that_fails_none(
    dgx1: Server, found: Hardware
) -> None:
    for answer in ("0 1 1 0", "!3", "!999", "0 1 1 0", "0 1 0 1"):
        dgx1.table["nvmlDeviceGetRemappedRows 5"] = answer
        assert resets(dgx1, found) == ([5] if answer == "0 1 0 1" else [])
    assert resets(dgx1, found) == []


@pytest.mark.parametrize("code", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH])
def test_until_a_driver_answers_there_are_no_gpus(
    code: int, dgx1: Server, found: Hardware, caplog: pytest.LogCaptureFixture
) -> None:
    dgx1.fail("nvmlInitWithFlags", code)
    dgx1.environment()
    assert [found.read().gpus for _ in range(2)] == [(), ()]
    assert len(caplog.records) == 1
    assert "machine: no GPUs: nvmlInit: " in caplog.text
    del dgx1.table["nvmlInitWithFlags"]
    dgx1.environment()
    assert found.read() == dgx1.machine


@pytest.mark.parametrize("code", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED])
def test_who_had_gpus_of_a_driver_that_is_unloaded_is_told_so(code: int, dgx1: Server, found: Hardware) -> None:
    record = Record(clock=lambda: 0.0)
    watch = HealthWatch(record, found, None)
    watch.looked(found.read(), None)
    found.close()
    dgx1.fail("nvmlInitWithFlags", code)
    dgx1.environment()
    watch.looked(found.read(), None)
    told = {uuid: [one.fault.kind for one in some] for uuid, some in record.standing().items()}
    assert told == {gpu.uuid: ["driver"] for gpu in dgx1.machine.gpus}, "and not that it is lost, which needs a reboot"
    del dgx1.table["nvmlInitWithFlags"]
    dgx1.environment()
    watch.looked(found.read(), None)
    assert record.standing() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", sampled(sorted({*range(1, 31), 999} - {LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, DRIVER_MISMATCH}))
)
@pytest.mark.parametrize("query", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_any_other_failure_says_nothing_of_the_gpus(query: str, code: int, dgx1: Server, found: Hardware) -> None:
    dgx1.fail(query, code)
    dgx1.environment()
    for _ in range(5):
        with pytest.raises(DriverError):
            found.read()
    del dgx1.table[query]
    dgx1.table["nvmlDeviceGetCount_v2"] = "8"
    dgx1.environment()
    assert found.read() == dgx1.machine


def every_query(server: Server, *more: str) -> list[str]:
    """What is asked of GPU 3 of a healthy machine, and of its pair with GPU 0."""
    single = [key for key in server.table if re.match(r"\S+ 3( |$)", key)]
    return [key for key in single if not key.startswith(("nvmlDeviceGetTopology", "nvmlDeviceGetP2P"))] + [*more]


@pytest.mark.slow
def test_one_failed_question_changes_nothing(dgx1: Server, found: Hardware) -> None:
    assert found.read() == dgx1.machine
    pairs = ("nvmlDeviceGetTopologyCommonAncestor 0 3", "nvmlDeviceGetP2PStatus 2 0 3", "nvmlSystemGetDriverVersion")
    for query in every_query(dgx1, *pairs):
        whole = dict(dgx1.table)
        dgx1.fail(query, 999)
        dgx1.environment()
        try:
            assert found.read() == dgx1.machine, query
        except DriverError:  # as good: the watch lets the last state stand
            assert query.split()[0] in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"), query
        dgx1.table = whole
        dgx1.environment()
        assert found.read() == dgx1.machine, query


def test_the_drivers_word_is_as_old_as_the_reading_that_was_answered(dgx1: Server, found: Hardware) -> None:
    before_s = time.monotonic()
    found.read()
    said_s = found.read_s
    assert before_s <= said_s <= time.monotonic()
    dgx1.fail("nvmlDeviceGetCount_v2", 999)
    dgx1.environment()
    with pytest.raises(DriverError):
        found.read()
    assert found.read_s == said_s


def test_a_gpu_that_goes_on_being_silent_is_left_out_at_last(dgx1: Server, found: Hardware) -> None:
    assert found.read() == dgx1.machine
    dgx1.fail("nvmlDeviceGetUUID 3", 999)
    dgx1.environment()
    for _ in range(READINGS - 1):
        with pytest.raises(DriverError, match="1 GPUs did not say who they are"):
            found.read()
    assert without(found.read()) == without(dgx1.machine, 3)


def sessions(server: Server) -> int:
    return Path(server.environment()[nvml.TABLE] + ".sessions").read_text().count("begun")


def test_one_session_serves_all_readings(dgx1: Server, found: Hardware) -> None:
    for _ in range(10):
        found.read()
        dgx1.environment()  # touched, and the same
    assert sessions(dgx1) == 1


@pytest.mark.slow
def test_a_gpu_that_stays_lost_is_looked_for_ever_more_rarely(dgx1: Server, found: Hardware) -> None:
    dgx1.table["lost 3"] = "0"
    dgx1.environment()
    for _ in range(32):
        assert len(found.read().gpus) == 7
    assert sessions(dgx1) == 6  # after readings 1, 3, 7, 15 and 31


def test_gpus_that_come_or_go_are_seen_by_a_new_session(dgx1: Server, found: Hardware) -> None:
    dgx1.table["nvmlDeviceGetCount_v2"] = "6"
    dgx1.sys.file("sys/bus/pci/drivers/nvidia/0000:06:00.0", "")
    dgx1.environment()
    assert len(found.read().gpus) == 6
    dgx1.table["nvmlDeviceGetCount_v2"] = "8"
    dgx1.environment()
    assert len(found.read().gpus) == 6
    dgx1.sys.file("sys/bus/pci/drivers/nvidia/0000:07:00.0", "")
    assert found.read() == dgx1.machine
    assert sessions(dgx1) == 2


def test_a_node_whose_gpus_are_all_lost_has_none(dgx1: Server, found: Hardware) -> None:
    dgx1.table |= {f"lost {index}": "0" for index in range(8)}
    dgx1.environment()
    assert found.read().gpus == ()


def test_a_driver_that_is_replaced_needs_a_process_with_its_own_library(dgx1: Server, found: Hardware) -> None:
    assert found.read() == dgx1.machine
    found.close()
    dgx1.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    dgx1.environment()
    assert found.read().gpus == ()
    dgx1.fail("nvmlInitWithFlags", DRIVER_MISMATCH)
    dgx1.environment()
    with pytest.raises(RestartError, match="the driver was replaced, start again with its new library"):
        found.read()


def test_a_driver_that_is_about_to_be_replaced_is_let_go_and_its_gpus_stay_until_it_is_gone(dgx1: Server) -> None:
    reason: list[str | None] = [None]
    found = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root, released=lambda: reason[0])
    module = dgx1.sys.file("sys/module/nvidia/version", "535.104.05").parent
    assert found.read() == dgx1.machine
    reason[0] = "node label x"
    with pytest.raises(DriverError, match="the driver is let go: node label x"):
        found.read()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    shutil.rmtree(module)
    assert found.read().gpus == ()
    reason[0] = None
    assert found.read() == dgx1.machine
    found.close()


def test_gpus_without_persistence_mode_are_told_of_once(
    dgx1: Server, found: Hardware, caplog: pytest.LogCaptureFixture
) -> None:
    dgx1.table |= {f"nvmlDeviceGetPersistenceMode {index}": str(int(index != 2)) for index in range(8)}
    dgx1.environment()
    assert [found.read() for _ in range(2)] == [dgx1.machine] * 2
    assert [record.getMessage()[:26] for record in caplog.records] == ["GPU 2: persistence mode: o"]


def test_a_machine_that_cannot_be_looked_at_stays_as_it_was(found: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/sys/bus/pci/devices")

    monkeypatch.setattr(nic_discovery, "read_nics", refuse)
    with pytest.raises(DriverError, match=r"cannot be looked at: .*Permission denied: '/sys/bus/pci/devices'"):
        found.read()


def test_the_cpu_is_the_agents_own_where_the_hosts_proc_is_not_mounted(dgx1: Server, found: Hardware) -> None:
    """A container's /proc/cpuinfo is the host's, so that only the host's /sys must be there."""
    (dgx1.sys.root / "proc/cpuinfo").unlink()
    assert found.read().cpu == sysfs.cpu(dgx1.sys.root, proc_root=Path("/"))[0]
    assert dgx1.read().machine.cpu is None  # a reading that names its root has that root's alone


async def test_an_agent_publishes_what_it_reads_and_hands_it_out_with_the_base_specification(dgx1: Server) -> None:
    device = resource_slices.device_name(dgx1.machine.gpus[2].uuid)
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": dgx1.sys.root}
    file = dgx1.sys.file("etc/cdi/nvidia.yaml", cdi_specification(dgx1.machine))
    async with a_node() as node, node.agent(**how):
        await node.published()
        assert resource_slices.read_machine(msgspec.convert(node.slices, list[ResourceSlice])) == dgx1.machine
        asked = node.put_claim(claim("c", results=[result("gpu", device)]))
        (prepared,) = (await node.kubelet.prepare(asked))[asked[2]].devices
        assert {device["name"] for device in node.specs["gpu.topology-gpu.json"]["devices"]} == {
            "driver",
            *(gpu.uuid for gpu in dgx1.machine.gpus),
        }
        (ours,) = node.specs["gpu.topology-claim_uid-c.json"]["devices"]
        assert list(prepared.cdi_device_ids) == [
            f"gpu.topology/gpu={dgx1.machine.gpus[2].uuid}",
            f"gpu.topology/claim={ours['name']}",
        ]
        assert ours["containerEdits"].keys() == {"env", "mounts"}
        assert ours["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
        dgx1.table["lost 2"] = "0"
        dgx1.environment()
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 7)
        file.unlink()
        (node.cdi / "gpu.topology-gpu.json").unlink()
        await eventually(lambda: node.slices == [])


def test_a_gpu_that_no_specification_names_is_left_out_and_one_in_mig_mode_stays(
    dgx1: Server, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    base = BaseSpecification(cdi_root=tmp_path / "cdi", host_root=dgx1.sys.root, driver_root=None)
    found = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root, base=base)
    assert found.read().gpus == ()
    dgx1.sys.file("etc/cdi/nvidia.json", cdi_specification(dgx1.machine.subset([0, 1, 2, 3, 5, 6])))
    assert without(found.read()) == without(dgx1.machine, 4, 7)
    assert caplog.text.count("or run: nvidia-ctk cdi generate") == 10
    dgx1.table["nvmlDeviceGetMigMode 7"] = "1 1"
    dgx1.environment()
    machine = found.read()
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 3, 5, 6, 7]
    assert machine.gpus[-1].mig == ()
    assert len(resource_slices.build(machine, node="n", node_uid="u")[0]["spec"]["devices"]) == 6
    found.close()


def load_module(server: Server) -> None:
    """Have the kernel load the driver's module anew."""
    module = server.sys.root / "sys/module/nvidia"
    fresh = server.sys.root / "sys/module/fresh"
    fresh.mkdir(parents=True)  # before the old one goes, so that it has another number
    shutil.rmtree(module, ignore_errors=True)
    fresh.rename(module)


def nodes_by_gpu(folder: Path) -> dict[str, str]:
    """The device node that our own specification brings for each GPU, by uuid."""
    devices = msgspec.json.decode((folder / "gpu.topology-gpu.json").read_bytes())["devices"]
    return {one["name"]: one["containerEdits"]["deviceNodes"][0]["path"] for one in devices if one["name"] != "driver"}


def test_by_numbers_of_a_load_of_the_driver_that_is_over_no_container_starts(dgx1: Server, tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    base = BaseSpecification(cdi_root=folder, host_root=dgx1.sys.root, driver_root=None)
    found = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root, base=base)
    load_module(dgx1)
    dgx1.sys.file("etc/cdi/nvidia.json", cdi_specification(dgx1.machine))
    found.read()
    assert not found.is_stale()
    assert nodes_by_gpu(folder) == {gpu.uuid: f"/dev/nvidia{gpu.index}" for gpu in dgx1.machine.gpus}
    load_module(dgx1)
    assert found.is_stale()
    found.withdraw()
    assert not (folder / "gpu.topology-gpu.json").exists()
    minors = [3, 2, 1, 0, 7, 6, 5, 4]
    gpus = tuple(msgspec.structs.replace(gpu, minor=minors[gpu.index]) for gpu in dgx1.machine.gpus)
    dgx1.table |= {f"nvmlDeviceGetMinorNumber {gpu.index}": str(gpu.minor) for gpu in gpus}
    dgx1.environment()
    dgx1.sys.file("etc/cdi/nvidia.json", cdi_specification(msgspec.structs.replace(dgx1.machine, gpus=gpus)))
    found.close()
    assert found.read().gpus == gpus
    assert not found.is_stale()
    assert nodes_by_gpu(folder) == {gpu.uuid: f"/dev/nvidia{gpu.minor}" for gpu in gpus}
    shutil.rmtree(dgx1.sys.root / "sys/module/nvidia")
    assert found.is_stale()
    dgx1.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    dgx1.environment()
    found.close()
    assert found.read().gpus == ()
    assert not found.is_stale(), "a node without GPUs is read no more often"
    found.close()


def test_to_ask_whether_a_reading_is_stale_does_not_disturb_the_next_reading(dgx1: Server, tmp_path: Path) -> None:
    """Calls of the kubelet ask while the reading runs in another thread."""

    hardware: Hardware

    def asked_after_each_step() -> float:
        hardware.is_stale()
        return time.monotonic()

    base = BaseSpecification(
        cdi_root=tmp_path / "cdi", host_root=dgx1.sys.root, driver_root=None, clock=asked_after_each_step
    )
    hardware = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root, base=base)
    load_module(dgx1)
    dgx1.sys.file("etc/cdi/nvidia.json", cdi_specification(dgx1.machine))
    for _ in range(2):
        assert len(hardware.read().gpus) == 8
        assert len(nodes_by_gpu(tmp_path / "cdi")) == 8
        load_module(dgx1)
        base.withdraw()
    hardware.close()


def test_a_gpu_that_is_bound_again_makes_a_reading_stale_and_one_that_comes_or_goes_does_not(dgx1: Server) -> None:
    found = Hardware(driver_root=nvml.compiled(), host_root=dgx1.sys.root)
    bound = dgx1.sys.root / "sys/bus/pci/drivers/nvidia"
    bound.mkdir(parents=True)
    busids = [gpu.pci for gpu in dgx1.machine.gpus]
    for busid in busids[:7]:
        (bound / busid).symlink_to("../../../../devices")
    found.read()
    (bound / busids[7]).symlink_to("../../../../devices")
    assert not found.is_stale()
    (bound / busids[0]).unlink()
    assert not found.is_stale()
    (bound / "fresh").symlink_to("../../../../devices")
    (bound / "fresh").rename(bound / busids[1])
    assert found.is_stale()
    found.close()


async def test_faults_of_gpus_are_taints_of_their_devices_until_they_are_gone(
    dgx1: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "nvlink", FaultKind(effect="NoSchedule", words="broken", advice="Look.", leaves_s=0))
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": dgx1.sys.root}
    dgx1.sys.file("etc/cdi/nvidia.yaml", cdi_specification(dgx1.machine))
    dgx1.sys.file("dev/kmsg", f"4,1,1000000,-;NVRM: Xid (PCI:{dgx1.machine.gpus[5].pci[:-2]}): 79, GPU has fallen off")

    def taints() -> dict[int, list[tuple[str, str | None]]]:
        devices = node.slices[0]["spec"]["devices"] if node.slices else []
        return {
            device["attributes"]["minor"]["int"]: [(taint["key"], taint.get("value")) for taint in device["taints"]]
            for device in devices
            if "taints" in device
        }

    async with a_node() as node, node.agent(**how):
        await node.published()
        assert taints() == {5: [("gpu.topology/xid", "79")]}  # from the first slice on
        dgx1.table["nvmlDeviceGetNvLinkState 2 0"] = "0"
        dgx1.environment()
        await eventually(lambda: taints().keys() == {2, 5})
        assert taints()[2] == [("gpu.topology/nvlink", "lost")]
        dgx1.table["nvmlDeviceGetNvLinkState 2 0"] = "1"
        dgx1.environment()
        await eventually(lambda: taints().keys() == {5})
