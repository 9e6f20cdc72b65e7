"""AMD's GPUs read again and again: what stands, what is wrong with them, and what containers are given."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dradriver.node.container_edits import GPU_FILE, Edits
from dradriver.node.errors import SetupError
from dradriver.node.gpu_work import UNKNOWN, GpuWork
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.vendors.amd.amd_error_counters import GROWING_S, Ras
from dradriver.node.vendors.amd.amd_gpus import READINGS, AmdGpus
from dradriver.node.vendors.amd.amd_specification import AmdSpecification
from dradriver.topology import profiles
from tests.fakes.kfd import KFD, AmdServer, amd
from tests.fakes.server import complete

VIDEO, RENDER = 44, 109


@pytest.fixture
def server(tmp_path: Path) -> AmdServer:
    return AmdServer(tmp_path / "root", amd(complete(profiles.load("mi210-x8"))))


def found(server: AmdServer) -> AmdGpus:
    return AmdGpus(root=server.root, base=None)


def test_a_node_of_the_driver_that_says_nothing_is_waited_for_and_others_are_not_kept_for_ever(
    server: AmdServer, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = found(server)
    assert len(gpus.read().gpus) == 8
    (server.node(3) / "properties").write_text("")
    for _ in range(READINGS - 1):
        with pytest.raises(SetupError, match="1 of the driver's nodes did not say what they are"):
            gpus.read()
    assert len(gpus.read().gpus) == 7
    assert caplog.text.count("properties: they cannot be read") == 1


def test_links_that_cannot_be_read_for_once_stand_and_the_gpu_is_said_to_be_unreadable(server: AmdServer) -> None:
    gpus = found(server)
    before = gpus.read()
    for gpu in (0, 1):
        shutil.rmtree(server.node(gpu) / "io_links")
    for _ in range(5):  # longer than a flutter
        assert gpus.read().links == before.links
    assert [fault.kind for fault in gpus.faults[before.gpus[0].uuid]] == ["unreadable"]
    assert gpus.faults[before.gpus[2].uuid] == ()


def test_a_machine_that_becomes_partitioned_says_why_and_is_well_again_later(server: AmdServer) -> None:
    gpus = found(server)
    mode = server.device(0) / "current_compute_partition"
    mode.write_text("CPX\n")
    assert (gpus.read().gpus, "CPX mode" in (gpus.refused or "")) == ((), True)
    mode.write_text("SPX\n")
    assert (len(gpus.read().gpus), gpus.refused) == (8, None)


def test_without_its_driver_a_node_has_no_gpus_and_who_had_some_is_told_why(server: AmdServer, tmp_path: Path) -> None:
    gpus, record = found(server), Record(clock=lambda: 0.0)
    watch = HealthWatch(record, gpus, None)
    whole = gpus.read()
    watch.looked(whole, None)
    shutil.move(server.root / KFD, tmp_path / "away")
    (server.root / KFD).parent.rmdir()
    machine = gpus.read()
    watch.looked(machine, None)
    assert machine.gpus == ()
    told = {uuid: [(one.fault.kind, one.fault.said) for one in some] for uuid, some in record.standing().items()}
    said = [("driver", "amdgpu does not offer the GPU for work now")]
    assert told == {gpu.uuid: said for gpu in whole.gpus}, "and not that it is lost, which needs a reboot"
    (server.root / KFD).parent.mkdir()
    shutil.move(tmp_path / "away", server.root / KFD)
    watch.looked(gpus.read(), None)
    assert gpus.read() == whole
    assert record.standing() == {}


def test_while_the_driver_loads_those_it_does_not_have_yet_are_not_lost(server: AmdServer, tmp_path: Path) -> None:
    gpus, record = found(server), Record(clock=lambda: 0.0)
    watch = HealthWatch(record, gpus, None)
    whole = gpus.read()
    watch.looked(whole, None)
    for gpu in (6, 7):
        shutil.move(server.node(gpu), tmp_path / str(gpu))
    device = server.root / "sys/bus/pci/devices" / whole.gpus[7].pci
    shutil.rmtree(device.resolve())
    device.unlink()
    watch.looked(gpus.read(), None)
    told = {uuid: [one.fault.kind for one in some] for uuid, some in record.standing().items()}
    assert told == {whole.gpus[6].uuid: ["driver"], whole.gpus[7].uuid: ["lost"]}


def test_a_gpu_in_whose_place_another_is_is_lost(server: AmdServer) -> None:
    gpus, record = found(server), Record(clock=lambda: 0.0)
    watch = HealthWatch(record, gpus, None)
    whole = gpus.read()
    watch.looked(whole, None)
    said = server.node(7) / "properties"
    lines = [line for line in said.read_text().splitlines() if not line.startswith("unique_id ")]
    said.write_text("\n".join([*lines, "unique_id 4711", ""]))
    watch.looked(gpus.read(), None)
    assert [gpu.pci for gpu in gpus.read().gpus] == [gpu.pci for gpu in whole.gpus]
    told = {uuid: [one.fault.kind for one in some] for uuid, some in record.standing().items()}
    assert told == {whole.gpus[7].uuid: ["lost"]}


def test_errors_that_grow_taint_for_an_hour_and_others_are_only_said(tmp_path: Path) -> None:
    now = [0.0]
    ras, counts = Ras(lambda: now[0]), tmp_path / "ras"
    counts.mkdir()
    (counts / "umc_err_count").write_text("ue: 2\nce: 7\n")
    (counts / "gfx_err_count").write_text("ue: 0\nce: 0\n")
    assert [(fault.kind, fault.effect) for fault in ras.read("GPU-a", tmp_path)] == [("ecc", "None")]
    (counts / "umc_err_count").write_text("ue: 5\nce: 7\n")
    first, _ = ras.read("GPU-a", tmp_path)
    assert (first.kind, first.value, first.effect) == ("ras", "umc", "NoSchedule")
    assert "3 of umc" in first.said
    assert [fault.kind for fault in ras.read("GPU-b", tmp_path)] == ["ecc"]
    now[0] = GROWING_S - 1
    assert [fault.kind for fault in ras.read("GPU-a", tmp_path)] == ["ras", "ecc"]
    now[0] = GROWING_S
    assert [fault.kind for fault in ras.read("GPU-a", tmp_path)] == ["ecc"]


def test_counters_that_begin_again_with_the_driver_are_no_fault(tmp_path: Path) -> None:
    ras = Ras(lambda: 0.0)
    (tmp_path / "ras").mkdir()
    for count, kinds in ((1, ["ecc"]), (3, ["ras", "ecc"]), (0, []), (0, [])):
        (tmp_path / "ras/umc_err_count").write_text(f"ue: {count}\nce: 0\n")
        assert [fault.kind for fault in ras.read("GPU-a", tmp_path)] == kinds


def test_counters_of_a_gpu_are_read_with_it(server: AmdServer) -> None:
    gpus = found(server)
    (server.device(4) / "ras").mkdir()
    (server.device(4) / "ras/umc_err_count").write_text("ue: 1\nce: 0\n")
    machine = gpus.read()
    assert {uuid for uuid, some in gpus.faults.items() if some} == {machine.gpus[4].uuid}


def test_processes_with_memory_or_a_queue_are_on_a_gpu(server: AmdServer) -> None:
    gpus = found(server)
    machine = gpus.read()
    ids = [1000 + gpu.index for gpu in machine.gpus]
    server.file(f"{KFD}/proc/4711/vram_{ids[0]}", "4096")
    server.file(f"{KFD}/proc/4711/vram_{ids[1]}", "0")
    server.file(f"{KFD}/proc/42/queues/1/gpuid", str(ids[0]))
    uuids = [gpu.uuid for gpu in machine.gpus[:2]]
    assert gpus.processes([*uuids, "GPU-unknown"]) == {uuids[0]: (42, 4711), uuids[1]: ()}


def test_work_is_what_the_driver_says_of_the_gpu(server: AmdServer) -> None:
    gpus = found(server)
    machine = gpus.read()
    server.file(f"{KFD}/proc/4711/vram_1000", "4096")
    (server.device(0) / "gpu_busy_percent").write_text("87\n")
    (server.device(1) / "gpu_busy_percent").write_text("0\n")
    uuids = [gpu.uuid for gpu in machine.gpus[:3]]
    told = gpus.work(dict.fromkeys(uuids, 0))
    assert told == {uuids[0]: GpuWork(87, frozenset({4711})), uuids[1]: GpuWork(0, frozenset()), uuids[2]: UNKNOWN}


def nodes(root: Path, *names: str, group: int) -> None:
    """Make device nodes with /dev/null behind them, of a group."""
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(1, 3))
        path.chmod(0o660)
        os.chown(path, 0, group)


def lay(server: AmdServer) -> None:
    nodes(server.root, "kfd", *(f"dri/renderD{gpu.minor}" for gpu in server.machine.gpus), group=RENDER)
    nodes(server.root, *(f"dri/card{gpu.index + 1}" for gpu in server.machine.gpus), group=VIDEO)


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / GPU_FILE).read_text())
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_a_container_is_given_the_gpus_nodes_and_their_groups(server: AmdServer, tmp_path: Path) -> None:
    lay(server)
    gpus = AmdGpus(root=server.root, base=AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root))
    gpu = gpus.read().gpus[2]
    made = written(tmp_path / "cdi")
    assert (made["cdiVersion"], made["kind"], len(made["devices"])) == ("0.7.0", "gpu.topology/gpu", 8)
    assert gpus.edits(gpu) == Edits(cdi=(f"gpu.topology/gpu={gpu.uuid}",))
    edits = next(device["containerEdits"] for device in made["devices"] if device["name"] == gpu.uuid)
    assert edits["additionalGids"] == [VIDEO, RENDER]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD130"]
    assert [node["hostPath"] for node in edits["deviceNodes"]] == [node["path"] for node in edits["deviceNodes"]]
    assert [(node["gid"], node["fileMode"]) for node in edits["deviceNodes"]] == [
        (RENDER, 0o660),
        (VIDEO, 0o660),
        (RENDER, 0o660),
    ]
    assert set(edits) == {"deviceNodes", "additionalGids"}


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_numbers_that_others_have_after_a_reboot_are_written_again(server: AmdServer, tmp_path: Path) -> None:
    lay(server)
    base = AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root, on_host="/captured")
    gpus = AmdGpus(root=server.root, base=base)
    uuid = gpus.read().gpus[0].uuid
    (server.device(0) / "drm/card1").rename(server.device(0) / "drm/card9")
    nodes(server.root, "dri/card9", group=VIDEO)
    gpus.read()
    edits = next(one["containerEdits"] for one in written(tmp_path / "cdi")["devices"] if one["name"] == uuid)
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/kfd", "/dev/dri/card9", "/dev/dri/renderD128"]
    assert edits["deviceNodes"][1]["hostPath"] == "/captured/dev/dri/card9"


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_by_numbers_of_a_load_of_the_driver_that_is_over_no_container_starts(server: AmdServer, tmp_path: Path) -> None:
    lay(server)
    bound, busid = server.root / "sys/bus/pci/drivers/amdgpu", "0000:63:00.0"
    bound.mkdir(parents=True)
    (bound / busid).symlink_to("../../../../devices")
    gpus = AmdGpus(root=server.root, base=AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root))
    gpus.read()
    assert not gpus.is_stale()
    (bound / "fresh").symlink_to("../../../../devices")
    (bound / "fresh").rename(bound / busid)
    assert gpus.is_stale()
    gpus.withdraw()
    assert not (tmp_path / "cdi" / GPU_FILE).exists()
    gpus.read()
    assert not gpus.is_stale()
    assert len(written(tmp_path / "cdi")["devices"]) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_a_gpu_whose_nodes_the_host_lacks_is_left_out_and_said(
    server: AmdServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(server)
    (server.root / "dev/dri/renderD131").unlink()
    (server.root / "dev/dri/renderD132").unlink()
    (server.root / "dev/dri/renderD132").write_text("no device")
    gpus = AmdGpus(root=server.root, base=AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root))
    assert [gpu.minor for gpu in gpus.read().gpus] == [128, 129, 130, 133, 134, 135]
    assert "left out: /dev/dri/renderD131 is no device node of the host" in caplog.text
    assert len(written(tmp_path / "cdi")["devices"]) == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_no_file_stays_that_names_nodes_of_gpus_that_no_container_can_be_given(
    server: AmdServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(server)
    gpus = AmdGpus(root=server.root, base=AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root))
    assert len(gpus.read().gpus) == 8
    (server.root / "dev/kfd").unlink()
    assert gpus.read().gpus == ()
    assert not (tmp_path / "cdi" / GPU_FILE).exists()
    assert "left out: /dev/kfd is no device node of the host" in caplog.text
    assert gpus.read().gpus == (), "and it is gone already"
    nodes(server.root, "kfd", group=RENDER)
    assert len(gpus.read().gpus) == 8
    assert len(written(tmp_path / "cdi")["devices"]) == 8
    shutil.rmtree(server.root / KFD)
    assert gpus.read().gpus == ()
    assert not (tmp_path / "cdi" / GPU_FILE).exists()


def test_a_node_that_never_had_gpus_has_no_file_and_needs_no_folder(tmp_path: Path) -> None:
    assert AmdSpecification(cdi_root=tmp_path / "none" / "cdi", root=tmp_path).keep({}) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are root's to make")
def test_where_nodes_are_roots_alone_no_group_and_no_newer_version_is_written(
    server: AmdServer, tmp_path: Path
) -> None:
    nodes(server.root, "kfd", group=0)
    nodes(server.root, *(f"dri/renderD{gpu.minor}" for gpu in server.machine.gpus), group=0)
    nodes(server.root, *(f"dri/card{gpu.index + 1}" for gpu in server.machine.gpus), group=0)
    AmdGpus(root=server.root, base=AmdSpecification(cdi_root=tmp_path / "cdi", root=server.root)).read()
    made = written(tmp_path / "cdi")
    assert made["cdiVersion"] == "0.5.0"
    assert all("additionalGids" not in device["containerEdits"] for device in made["devices"])
