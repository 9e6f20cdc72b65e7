"""What amdgpu reports in the kernel's log."""

from __future__ import annotations

import pytest

from dradriver.node.vendors.amd.amd_reports import AmdReports

BUSID = "0000:63:00.0"
UUIDS = {BUSID: "GPU-a", "0000:43:00.0": "GPU-b"}


def kinds(reports: AmdReports) -> dict[str, list[tuple[str, str]]]:
    return {uuid: [(one.kind, one.value) for one in some] for uuid, some in reports.faults(UUIDS).items()}


def told(*lines: str) -> AmdReports:
    reports = AmdReports()
    for line in lines:
        reports.take(f"amdgpu {BUSID}: {line}", 1.0)
    return reports


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (("amdgpu: GPU reset begin!",), [("gpu-reset", "")]),
        (("amdgpu: GPU reset begin!", "amdgpu: GPU reset(3) succeeded!"), None),
        (("amdgpu: GPU reset begin!", "amdgpu: GPU reset succeeded, trying to resume"), [("gpu-reset", "")]),
        (("amdgpu: GPU reset begin!. Source:  4",), [("gpu-reset", "")]),
        (("amdgpu: GPU reset begin!", "amdgpu: GPU reset(3) failed"), [("gpu-reset", "failed")]),
        (("GPU reset begin!", "GPU reset end with ret = -5"), [("gpu-reset", "failed")]),
        (("amdgpu: GPU reset begin!", "amdgpu: GPU reset end with ret = 0"), [("gpu-reset", "")]),
        (("amdgpu: 2 uncorrectable hardware errors detected in umc block",), [("ras", "umc")]),
        (("amdgpu: socket: 0, die: 0, 4 new uncorrectable hardware errors detected in gfx block",), [("ras", "gfx")]),
        (("amdgpu: {7} die: 0, 9 uncorrectable hardware errors detected in total in gfx block",), [("ras", "gfx")]),
        (("amdgpu: 2 uncorrectable hardware errors detected in UMC block",), [("ras", "umc")]),
        (("amdgpu: no uncorrectable hardware errors detected in umc block",), None),
        (("amdgpu: 0 uncorrectable hardware errors detected in umc block",), None),
        (("amdgpu: 9 correctable hardware errors detected in umc block",), None),
        (
            (
                "amdgpu: 1 uncorrectable hardware errors detected in umc block",
                "amdgpu: GPU reset begin!",
                "amdgpu: GPU reset(1) succeeded!",
            ),
            None,
        ),
    ],
)
def test_resets_and_uncorrected_errors_are_told(lines: tuple[str, ...], faults: list[tuple[str, str]] | None) -> None:
    assert kinds(told(*lines)) == ({} if faults is None else {"GPU-a": faults})


def test_other_lines_and_other_devices_are_no_fault() -> None:
    reports = told("amdgpu: ring gfx_0.0.0 uses VM inv eng 0")
    reports.take("NVRM: Xid (PCI:0000:63:00): 79, GPU has fallen off the bus.", 1.0)
    reports.take("amdgpu 0000:99:00.0: amdgpu: GPU reset begin!", 1.0)
    assert kinds(reports) == {}


def test_a_driver_that_is_loaded_again_begins_again() -> None:
    reports = told("amdgpu: GPU reset(3) failed")
    reports.take("[drm] amdgpu kernel modesetting enabled.", 2.0)
    assert kinds(reports) == {}


LOADING = """[drm] amdgpu kernel modesetting enabled.
amdgpu 0000:63:00.0: amdgpu: detected ip block number 5 <gfx_v9_0>
amdgpu 0000:63:00.0: amdgpu: MODE1 reset
amdgpu 0000:63:00.0: amdgpu: GPU mode1 reset
amdgpu 0000:63:00.0: amdgpu: GPU smu mode1 reset
amdgpu 0000:63:00.0: amdgpu: SMU is initialized successfully!
kfd kfd: amdgpu: added device 1002:740f
[drm] Initialized amdgpu 3.61.0 20150101 for 0000:63:00.0 on minor 1"""


def test_a_reset_by_which_the_driver_begins_is_no_fault() -> None:
    reports = AmdReports()
    for line in LOADING.splitlines():
        reports.take(line, 1.0)
        assert kinds(reports) == {}, line


@pytest.mark.parametrize("how", ["mode1", "mode2", "smu mode1", "psp mode1"])
def test_how_a_gpu_is_reset_is_said_within_a_recovery_and_changes_nothing(how: str) -> None:
    lines = ("amdgpu: GPU reset begin!", f"amdgpu: GPU {how} reset", "amdgpu: GPU reset succeeded, trying to resume")
    assert kinds(told(*lines)) == {"GPU-a": [("gpu-reset", "")]}
    assert kinds(told(*lines, "amdgpu: GPU reset(1) succeeded!")) == {}


@pytest.mark.parametrize("prefix", ["", f"amdgpu {BUSID}: "])
@pytest.mark.parametrize("date", ["20150101 ", ""])
@pytest.mark.parametrize("before", ["amdgpu: GPU reset(3) failed", "amdgpu: GPU reset begin!"])
def test_a_gpu_that_the_driver_takes_again_is_out_of_its_reset_and_its_errors_stay(
    before: str, date: str, prefix: str
) -> None:
    reports = told(before, "amdgpu: 2 uncorrectable hardware errors detected in umc block")
    reports.take("amdgpu 0000:43:00.0: amdgpu: GPU reset(3) failed", 2.0)
    reports.take(f"{prefix}[drm] Initialized amdgpu 3.61.0 {date}for {BUSID} on minor 1", 3.0)
    reports.take("[drm] Initialized ast 0.1.0 20120228 for 0000:43:00.0 on minor 0", 4.0)
    assert kinds(reports) == {"GPU-a": [("ras", "umc")], "GPU-b": [("gpu-reset", "failed")]}


def test_a_gpu_that_was_reset_is_forgotten() -> None:
    reports = told("amdgpu: GPU reset(3) failed")
    reports.reset([BUSID])
    assert kinds(reports) == {}


def test_no_log_fills_the_memory() -> None:
    reports = AmdReports()
    busids = {f"{n:04x}:63:00.0": f"GPU-{n}" for n in range(2000)}
    for busid in busids:
        reports.take(f"amdgpu {busid}: amdgpu: GPU reset begin!", 1.0)
    assert 0 < len(reports.faults(busids)) <= 1024
