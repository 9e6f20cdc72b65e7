"""All-reduce estimates against published curves."""

from __future__ import annotations

from statistics import median

import pytest

from dradriver.allocator.sets.estimates import all_reduce
from dradriver.allocator.sets.tables import tables_of
from dradriver.topology import profiles
from tests.fakes import machines
from tests.paths import SHARED_DATA

PROFILES = {"ND_A100_v4": "dgx-a100", "ND_H100_v5": "dgx-h100", "ND_H200_v5": "hgx-h200"}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def curves() -> dict[str, list[tuple[int, float]]]:
    """Size in bytes and measured bus bandwidth, by profile."""
    found: dict[str, list[tuple[int, float]]] = {}
    rows: list[tuple[int, float]] = []
    for line in (SHARED_DATA / "measured_allreduce_curves.txt").read_text().splitlines():
        if line.startswith("=="):
            rows = found[PROFILES[line.split()[1]]] = []
        elif line.strip() and not line.startswith("#"):
            size, busbw = line.split()
            rows.append((int(size[:-1]) * UNITS[size[-1]], float(busbw)))
    return found


@pytest.mark.shared_data
def test_estimates_are_as_near_to_the_measured_curves_as_they_say() -> None:
    off = {
        (name, size): abs(all_reduce(tables_of(profiles.load(name)), 0xFF, size=size).busbw_gbps / true - 1)
        for name, curve in curves().items()
        for size, true in curve
    }
    assert len(off) == 72
    assert median(off.values()) < 0.13
    assert max(off.values()) < 0.38
    assert max(error for (_, size), error in off.items() if size >= 256 << 20) < 0.06


def test_larger_messages_take_longer_and_use_more_of_the_bandwidth() -> None:
    for machine in (machines.dgx1(), machines.pcie_box(), machines.dgx_h100()):
        tables = tables_of(machine)
        found = [all_reduce(tables, 0b1111, size=1 << power) for power in range(10, 34)]
        assert [one.seconds for one in found] == sorted(one.seconds for one in found)
        assert [one.busbw_gbps for one in found] == sorted(one.busbw_gbps for one in found)
        assert found[-1].busbw_gbps == pytest.approx(float(tables.busbw[0b1111]), rel=0.02)


def test_one_gpu_has_no_other_to_reduce_with() -> None:
    assert all_reduce(tables_of(machines.dgx1()), 0b100, size=1 << 20) == (0, 0)
