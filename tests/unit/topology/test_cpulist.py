from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.topology import cpulist
from dradriver.topology.nccl import nccl_bandwidths


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("", ""),
        ("00000000", ""),
        ("0000000f", "0-3"),
        ("ff,0000ff00", "8-15,32-39"),
        ("000000ff,ffff0000,00ffffff", "0-23,48-71"),
        ("80000001", "0,31"),
    ],
)
def test_a_mask_is_a_list(mask: str, cpus: str) -> None:
    assert cpulist.from_mask(mask) == cpus


def test_a_list_is_a_mask_of_as_many_groups_as_the_server_has() -> None:
    assert cpulist.to_mask("0-3") == "0000000f"
    assert cpulist.to_mask("0-3", count=96) == "00000000,00000000,0000000f"
    assert cpulist.to_mask("31-32") == "00000001,80000000"
    assert cpulist.to_mask("") == cpulist.to_mask("3-1") == cpulist.to_mask("0-999999") == ""


@given(st.sets(st.integers(0, 300), min_size=1))
def test_both_ways_give_the_same_cpus(cpus: set[int]) -> None:
    text = cpulist.from_mask(f"{sum(1 << cpu for cpu in cpus):x}")
    assert cpulist.from_mask(cpulist.to_mask(text)) == text


def test_nccls_number_of_a_cpu_family() -> None:
    for kernel, nccl in ((6, 6), (15, 15), (23, 143), (25, 175), (26, 191)):
        assert nccl_bandwidths.family_id(kernel) == nccl
        assert nccl_bandwidths.family_of(nccl) == kernel
    assert nccl_bandwidths.family_of(23) == 23  # the kernel's own, as Azure writes it
