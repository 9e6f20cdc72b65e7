"""An NCCL topology file compared with the machine that it is for."""

from __future__ import annotations

import re

import msgspec
import pytest

from dradriver.topology import nccl, profiles
from dradriver.topology.machine import NumaNode
from dradriver.topology.nccl.findings import Finding
from tests.fakes.nccl_files import BOTH, GOOD, NEXT_TO_A_MACHINE, machine_of, rules, swap


def test_half_of_a_devices_lanes_is_seen_next_to_its_machine() -> None:
    text = swap(GOOD, 'busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"',
                'busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="8"')  # fmt: skip
    assert rules(text) == []
    found = nccl.check(text, machine=machine_of(GOOD))
    assert [(finding.rule, finding.error) for finding in found] == [("not-rate", True)]
    assert "24 GB/s over PCIe, but this device has 48" in found[0].problem
    assert rules(swap(GOOD, "32.0 GT/s PCIe", "32 GT/s"), machine_of(GOOD)) == []  # the same in an old kernel's words


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (' link_speed="32.0 GT/s PCIe" link_width="16"/>', ' link_width="8"/>', ["not-rate"]),  # the speed is /sys's
        (' link_speed="32.0 GT/s PCIe" link_width="16"/>', ' link_speed="16.0 GT/s PCIe"/>', ["not-rate"]),
        (' link_speed="32.0 GT/s PCIe" link_width="16"/>', "/>", []),
        (' link_speed="32.0 GT/s PCIe" link_width="16"/>', ' link_speed="" link_width="16"/>',
         ["not-rate", "speed-empty"]),
    ],
)  # fmt: skip
def test_a_rate_is_compared_as_nccl_completes_it(old: str, new: str, found: list[str]) -> None:
    assert sorted(rules(swap(GOOD, old, new), machine_of(GOOD))) == found


@pytest.mark.parametrize("lanes", ["8", "32"])
def test_a_rate_may_be_too_high_as_well(lanes: str) -> None:
    wide = GOOD.replace('link_width="16"', f'link_width="{lanes}"')
    assert rules(wide, machine_of(GOOD)) == ["not-rate"] * 3


def test_ids_that_a_file_does_not_have_are_none_of_another_device() -> None:
    assert rules(swap(GOOD, ' vendor="0x1000"', ""), machine_of(GOOD)) == []


def test_gpus_below_no_node_are_wrong_where_the_machine_has_them_all_on_nodes() -> None:
    text = swap(BOTH, 'numaid="0"', 'numaid="-1"')
    found = [finding.rule for finding in nccl.check(text, machine=machine_of(BOTH)) if finding.error]
    assert found == ["numa-lacks", "numaid-mixed"]
    assert not [finding for finding in nccl.check(text, machine=machine_of(text)) if finding.error]


def test_a_device_on_no_node_in_the_file_is_no_finding_with_its_machine() -> None:
    text = GOOD.replace('<cpu numaid="1"/>', "").replace('numaid="0"', 'numaid="-1"')
    assert "not-numa" not in rules(text, machine_of(GOOD))


def test_a_profile_without_a_tree_has_its_gpus_rates() -> None:
    profile = profiles.load("hgx-h100")
    text = nccl.write(profile)
    gpu = re.compile(r'(class="0x030200"[^>]*link_width=")16')
    assert rules(text, profile) == []
    assert rules(gpu.sub(r"\g<1>8", text), profile) == ["not-rate"] * 8


def test_a_gpu_below_another_node_is_seen_next_to_its_machine() -> None:
    true = machine_of(BOTH)
    turned = BOTH.replace('numaid="0"', 'numaid="x"').replace('numaid="1"', 'numaid="0"').replace('"x"', '"1"')
    found = [finding for finding in nccl.check(turned, machine=true) if finding.error]
    assert [(f.rule, f.line) for f in found] == [("not-numa", 5), ("not-numa", 6), ("not-numa", 9)]
    assert found[0].cure == 'put it below <cpu numaid="0">'
    assert rules(BOTH, true) == []


def test_a_file_is_compared_with_the_machine_that_it_is_for() -> None:
    truth = machine_of(GOOD, lambda m: msgspec.structs.replace(m, numa=(*m.numa, NumaNode(id=2))))
    found: dict[str, Finding] = {
        finding.rule: finding
        for finding in nccl.check(GOOD.replace("0xc030", "0xc010").replace("0000:03:", "0000:04:"), machine=truth)
    }
    assert set(found) == NEXT_TO_A_MACHINE
    assert found["not-sys"].cure == 'write device="0xc030"'
    assert found["lacks-gpu"].problem.startswith("GPU1 (0000:03:00.0) is not in the file")
    assert found["numa-lacks"].problem.startswith("no <cpu> for NUMA node 2, which the machine has")
    assert rules(GOOD, machine_of(GOOD)) == []
