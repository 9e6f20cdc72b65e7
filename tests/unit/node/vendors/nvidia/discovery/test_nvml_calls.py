"""How often NVML is called, at most, and what a kept handle and a kept fact are good for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from dradriver.errors import DriverError
from dradriver.node.discovery.debounce import SAME
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.node.vendors.nvidia.discovery import binding, library_sessions
from dradriver.node.vendors.nvidia.discovery.failed_queries import STANDS
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import READINGS, Hardware
from dradriver.node.vendors.nvidia.discovery.nvml_interface import GPU_IS_LOST, NOT_FOUND, NvmlError
from tests.fakes import nvml, nvml_counts
from tests.fakes.hardware import Server
from tests.fakes.instances import in_mig_mode
from tests.fakes.nvml_counts import counted


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Server]:
    """A DGX H100 whose library answers as its table says while the test runs."""
    server = Server("dgx-h100", tmp_path)
    with patch.dict(os.environ, server.environment()):
        yield server
        nvml.end_sessions()


@pytest.fixture
def found(h100: Server) -> Iterator[Hardware]:
    """The agent's view of it."""
    hardware = Hardware(driver_root=nvml.compiled(), host_root=h100.sys.root)
    yield hardware
    hardware.close()


def control(server: Server) -> NvmlControl:
    return NvmlControl(driver_root=nvml.compiled(), mps=MpsFolder(server.file.parent / "mps", boot="b"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "first", "steady"),
    [("dgx-h100", 600, 120), ("dgx-a100", 650, 220), ("dgx1-v100", 530, 160), ("l40s-x8", 820, 120)],
)
def test_a_steady_reading_asks_only_what_can_have_changed(
    machine: str, first: int, steady: int, tmp_path: Path
) -> None:
    calls = [one.total() for one in nvml_counts.readings(Server(machine, tmp_path), STANDS + 3)]
    assert calls[0] <= first
    assert all(one <= steady for one in calls[1 : STANDS + 1])
    assert steady < calls[STANDS + 1] <= first  # a fact that this list has wrong is put right by then
    assert calls[STANDS + 2] <= steady


@pytest.mark.slow
def test_a_prepare_looks_up_no_gpu_and_enumerates_nothing_that_is_known(tmp_path: Path) -> None:
    most = {"whole": 3, "MPS share": 9, "MIG, made": 55, "MIG, there already": 65}
    for kind, calls in nvml_counts.prepares(tmp_path).items():
        assert calls["nvmlDeviceGetHandleByUUID"] == calls["nvmlDeviceGetHandleByIndex_v2"] == 0, kind
        assert calls["nvmlDeviceGetGpuInstanceProfileInfoV"] == 0, kind
        assert calls.total() <= most.pop(kind), kind
    assert not most


def test_a_handle_is_looked_for_once_among_all_gpus_that_answer(h100: Server) -> None:
    uuids = [gpu.uuid for gpu in h100.machine.gpus]
    h100.table["lost 2"] = "0"
    h100.environment()
    with binding.opened(driver_root=nvml.compiled()) as library, counted() as calls:
        assert library.uuid(library.device(uuids[5])) == uuids[5]
        assert calls["nvmlDeviceGetHandleByUUID"] == 0  # it fails where any GPU is lost
        calls.clear()
        library.device(uuids[5])
        library.device(uuids[0])
        assert not calls
        for uuid, code in ((uuids[2], GPU_IS_LOST), ("GPU-none", GPU_IS_LOST)):  # the lost one may be it
            with pytest.raises(NvmlError) as raised:
                library.device(uuid)
            assert raised.value.code == code
    del h100.table["lost 2"]
    h100.environment()
    with binding.opened(driver_root=nvml.compiled()) as library:
        with pytest.raises(NvmlError) as raised:
            library.device("GPU-none")
        assert raised.value.code == NOT_FOUND


def test_a_gpu_that_does_not_answer_hides_who_else_it_may_be(h100: Server) -> None:
    h100.table["lost 2"] = "0"
    h100.fail("nvmlDeviceGetUUID 3", 999)
    h100.environment()
    with (
        binding.opened(driver_root=nvml.compiled()) as library,
        pytest.raises(NvmlError, match="999"),
    ):
        library.device(h100.machine.gpus[3].uuid)


def test_handles_end_with_the_last_session(h100: Server) -> None:
    one, other = (binding.begin(driver_root=nvml.compiled()) for _ in range(2))
    uuid = h100.machine.gpus[0].uuid
    one.device(uuid)
    binding.end(one)
    assert library_sessions.handle(uuid) is not None  # the library is as it was
    binding.end(one)  # twice is once: the other is still open
    assert library_sessions.handle(uuid) is not None
    binding.end(other)
    assert library_sessions.handle(uuid) is None


def test_gpus_that_changed_places_between_sessions_are_found_by_who_they_are(h100: Server, found: Hardware) -> None:
    found.read()
    found.close()
    table, (a, b) = dict(h100.table), (f"nvmlDeviceGetUUID {n}" for n in (0, 1))
    h100.table |= {a: table[b], b: table[a]}
    h100.table |= {"nvmlDeviceGetMinorNumber 0": "1", "nvmlDeviceGetMinorNumber 1": "0"}
    h100.environment()
    assert control(h100).minor(table[a]) == 0
    assert [(gpu.uuid, gpu.minor) for gpu in found.read().gpus[:2]] == [(table[b], 1), (table[a], 0)]


def test_a_session_that_began_next_to_another_is_begun_again(h100: Server, found: Hardware) -> None:
    whole = found.read()
    seventh = "sys/bus/pci/drivers/nvidia/0000:07:00.0"
    with binding.opened(driver_root=nvml.compiled()):  # somebody's question, which is under way
        h100.table["nvmlDeviceGetCount_v2"] = "7"
        h100.environment()
        h100.sys.file(seventh, "")
        assert found.read() == whole  # the library shows what it began with
    assert len(found.read().gpus) == 7


def test_a_lost_gpus_session_goes_on_until_the_next_begins(h100: Server, found: Hardware) -> None:
    h100.table["lost 2"] = "0"
    h100.environment()
    found.read()
    with counted() as calls:
        control(h100).minor(h100.machine.gpus[0].uuid)
    assert calls["nvmlDeviceGetHandleByIndex_v2"] == 0  # and the others do not fall asleep meanwhile


@pytest.mark.parametrize("read", [True, False])
def test_a_gpu_that_is_lost_keeps_no_other_from_being_changed(read: bool, h100: Server, found: Hardware) -> None:
    h100.table |= {"lost 2": "0", "nvmlDeviceGetComputeMode 5": "3"}
    h100.environment()
    if read:
        found.read()
    uuid = h100.machine.gpus[5].uuid
    assert (control(h100).minor(uuid), control(h100).compute_mode(uuid)) == (5, 3)


def test_a_lost_gpu_is_lost_by_its_kept_handle_too(h100: Server, found: Hardware) -> None:
    uuid = found.read().gpus[2].uuid
    h100.table["lost 2"] = "0"
    h100.environment()
    with pytest.raises(HardwareError) as raised:
        control(h100).minor(uuid)
    assert raised.value.code == GPU_IS_LOST
    assert found.processes([uuid]) == {}


def test_profiles_are_asked_for_again_in_another_mig_mode(h100: Server, found: Hardware) -> None:
    gpu = found.read().gpus[0]
    assert control(h100).profiles(gpu.uuid) == gpu.profiles
    for key in [key for key in h100.table if key.startswith("nvmlDeviceGetGpuInstancePossiblePlacements_v2 0 ")]:
        h100.table[key] = "!3"
    h100.environment()
    assert control(h100).profiles(gpu.uuid) == gpu.profiles
    h100.table["nvmlDeviceGetMigMode 0"] = "1 1"
    h100.environment()
    assert control(h100).profiles(gpu.uuid) == ()
    assert found.read().gpus[0].profiles == ()


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["!3", "!2", "1 1 1 1"])
def test_a_profile_that_one_odd_answer_hid_is_there_again_once_facts_are_asked_for_again(
    answer: str, h100: Server, found: Hardware
) -> None:
    key = next(key for key in h100.table if key.startswith("nvmlDeviceGetGpuInstanceProfileInfoV 3 "))
    good, h100.table[key] = h100.table[key], answer
    h100.environment()
    gpus = found.read().gpus
    assert len(gpus[3].profiles) == len(gpus[4].profiles) - 1
    h100.table[key] = good
    h100.environment()
    for _ in range(STANDS + 2 * SAME):
        gpus = found.read().gpus
    assert gpus[3].profiles == gpus[4].profiles == control(h100).profiles(gpus[3].uuid)


@pytest.mark.slow
def test_a_gpu_that_was_away_is_asked_again(h100: Server, found: Hardware) -> None:
    before = found.read()
    h100.fail("nvmlDeviceGetUUID 3", 999)
    h100.table["nvmlDeviceGetMemoryInfo 3"] = str(40 << 30)
    h100.environment()
    for _ in range(READINGS - 1):
        with pytest.raises(DriverError):
            found.read()
    assert before.gpus[3] not in found.read().gpus
    h100.table["nvmlDeviceGetUUID 3"] = before.gpus[3].uuid
    h100.environment()
    assert found.read().gpus[3].memory_mib == 40 << 10


def test_a_gpu_whose_bad_row_waits_no_more_is_asked_again(h100: Server, found: Hardware) -> None:
    h100.table["nvmlDeviceGetRemappedRows 3"] = "0 1 1 0"
    h100.environment()
    found.read()
    h100.table |= {"nvmlDeviceGetRemappedRows 3": "0 1 0 0", "nvmlDeviceGetMemoryInfo 3": str(40 << 30)}
    h100.environment()
    assert [found.read().gpus[3].memory_mib for _ in range(5)][-1] == 40 << 10


def test_links_stand_as_they_were_while_their_states_are_not_told(h100: Server, found: Hardware) -> None:
    h100.fail("nvmlDeviceGetFieldValues 3 165 5", 999)
    h100.environment()
    whole = found.read()
    h100.fail("nvmlDeviceGetFieldValues 3", 999)
    h100.environment()
    assert found.read().gpus[3].switch_links == whole.gpus[3].switch_links == 17


def test_threads_that_begin_and_end_sessions_leave_no_handle_behind(h100: Server) -> None:
    uuid = h100.machine.gpus[0].uuid

    def ask() -> None:
        for _ in range(50):
            with binding.opened(driver_root=nvml.compiled()) as library:
                assert library.uuid(library.device(uuid)) == uuid

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (library_sessions.sessions(), library_sessions.handle(uuid)) == ((), None)


def test_instances_are_read_each_time(tmp_path: Path) -> None:
    machine = Server("dgx-h100", tmp_path / "whole").machine
    before, after = (in_mig_mode(machine, {0: [("1g.10gb", start)]}) for start in (0, 4))
    server = Server(before, tmp_path)
    with nvml_counts.running(server) as hardware:
        assert hardware.read().gpus[0].mig == before.gpus[0].mig
        server.table = nvml.table(after)  # the same number, uuid and profile elsewhere
        server.environment()
        assert hardware.read().gpus[0].mig == after.gpus[0].mig
