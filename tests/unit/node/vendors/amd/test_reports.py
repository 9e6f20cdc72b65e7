"""What amdgpu reports in the kernel's log."""

from __future__ import annotations

import pytest

from dradriver.node.vendors.amd.reports import AmdReports

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


def test_other_lines_and_other_devices_are_nobodys_fault() -> None:
    reports = told("amdgpu: ring gfx_0.0.0 uses VM inv eng 0")
    reports.take("NVRM: Xid (PCI:0000:63:00): 79, GPU has fallen off the bus.", 1.0)
    reports.take("amdgpu 0000:99:00.0: amdgpu: GPU reset begin!", 1.0)
    assert kinds(reports) == {}


def test_a_driver_that_is_loaded_anew_begins_anew() -> None:
    reports = told("amdgpu: GPU reset(3) failed")
    reports.take("[drm] amdgpu kernel modesetting enabled.", 2.0)
    assert kinds(reports) == {}


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
