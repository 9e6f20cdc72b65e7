from __future__ import annotations

import re

import msgspec
import pytest

from dradriver.topology import nccl
from dradriver.topology.machine import NumaNode
from dradriver.topology.nccl.checker_rules import RULES
from tests.fakes.nccl_files import (
    BOTH,
    GOOD,
    LINKED,
    NET,
    NEXT_TO_A_MACHINE,
    PCILINKED,
    SWITCHED,
    machine_of,
    rules,
    swap,
)

# For each rule a file that breaks it, and where: line and column.
BROKEN: dict[str, tuple[str, int, int]] = {
    "control": (swap(GOOD, "comment", "com\x07ment"), 1, 11),
    "byte-order-mark": ("\ufeff" + GOOD, 1, 1),
    "declaration": ('<?xml version="1.0" encoding="UTF-8"?>\n' + GOOD, 1, 1),
    "doctype": ("<!DOCTYPE system>\n" + GOOD, 1, 1),
    "tab": (GOOD.replace("  <cpu", "\t<cpu"), 3, 1),
    "line-break": (swap(GOOD, '"0" affinity', '"0"\naffinity'), 3, 18),
    "text": (swap(GOOD, "  </cpu>", "  Socket 0</cpu>"), 8, 3),
    "comment": (swap(GOOD, "<!-- a", "<!--a=b"), 1, 1),
    "long-comment": (swap(GOOD, "<!-- a", "<!--" + "-" * 260), 1, 1),
    "closing-tag": (swap(GOOD, "</system>", "</system >"), 10, 1),
    "other-end": (swap(GOOD, "    </pci>\n", ""), 7, 3),
    "no-end": (swap(GOOD, "</system>\n", ""), 10, 1),
    "cut": (swap(GOOD, " is fine -->", ""), 1, 1),
    "no-name": (swap(GOOD, "</system>", "< /system>"), 10, 1),
    "bad-tag": (swap(GOOD, '"0" affinity', '"0"affinity'), 3, 18),
    "second-root": (GOOD + '<system version="1"/>', 11, 1),
    "second-system": (GOOD + '<system version="1"><cpu numaid="0"/></system>', 11, 1),
    "deep": ("<system>" * 66, 1, 513),
    "no-value": (swap(GOOD, 'numaid="0"', 'numaid="0" keep'), 3, 19),
    "blank-at-equals": (swap(GOOD, 'numaid="0"', 'numaid = "0"'), 3, 8),
    "twice": (swap(GOOD, 'numaid="0"', 'numaid="0" numaid="1"'), 3, 19),
    "no-quotes": (swap(GOOD, 'numaid="0"', "numaid=0"), 3, 8),
    "open-quote": (swap(GOOD, 'numaid="0"', 'numaid=>"0"'), 3, 15),
    "single-quotes": (GOOD.replace('"', "'"), 2, 9),
    "long-name": (swap(GOOD, "numaid=", "n" * 254 + '="" numaid='), 3, 8),
    "long-value": (swap(GOOD, 'version="1"', 'version="1" name="' + "n" * 254 + '"'), 2, 21),
    "entity": (swap(GOOD, 'version="1"', 'version="1" name="a&amp;b"'), 2, 21),
    "odd-value": (swap(GOOD, 'version="1"', 'version="1" name="a<b"'), 2, 21),
    "empty": ("<!-- nothing -->\n", 1, 1),
    "graph": ('<graphs version="1"/>', 1, 1),
    "no-system": ("<topology/>", 1, 1),
    "version": (swap(GOOD, 'version="1"', 'version="2"'), 2, 9),
    "too-many": (swap(GOOD, "  <cpu numaid", '  <cpu numaid="2">' + "<nic/>" * 128 + "</cpu>" + '<cpu numaid="3">'
                      + "<nic/>" * 128 + "</cpu><cpu numaid"), 2, 1),
    "many": (swap(GOOD, "  <cpu numaid", '  <cpu numaid="2">' + "<nic/>" * 100 + "</cpu>" + '<cpu numaid="3">'
                  + "<nic/>" * 100 + "</cpu><cpu numaid"), 2, 1),
    "attributes": (swap(LINKED, "<gpu>", "<gpu " + " ".join(f'a{n}="1"' for n in range(13)) + ">"), 5, 50),
    "children": (swap(GOOD, "  </cpu>", "<nic/>" * 128 + "</cpu>"), 3, 3),
    "misplaced": (swap(GOOD, '  <cpu numaid="1"/>', "  <gpu/>"), 9, 3),
    "unknown-around": (swap(GOOD, '<cpu numaid="1"/>', '<socket><cpu numaid="1"/></socket>'), 9, 3),
    "affinity-unused": (swap(GOOD, 'numaid="1"', 'numaid="1" affinity="0-15"'), 9, 19),
    "long-element": (swap(GOOD, '  <cpu numaid="1"/>', f'  <{"x" * 300}/><cpu numaid="1"/>'), 9, 3),
    "unknown": (swap(GOOD, '  <cpu numaid="1"/>', '  <nvswitch/><cpu numaid="1"/>'), 9, 3),
    "no-cpu": ('<system version="1"></system>', 1, 1),
    "numaid": (swap(GOOD, 'numaid="0" ', ""), 3, 3),
    "numaid-unnumbered": (swap(BOTH, 'numaid="0"', 'numaid="-1"'), 3, 8),
    "numaid-unused": (swap(GOOD, 'numaid="1"', ""), 9, 3),
    "numaid-twice": (swap(GOOD, '<cpu numaid="1"/>', '<cpu numaid="0"><pci busid="0000:09:00.0"/></cpu>'), 9, 8),
    "numa-missing": (swap(GOOD, 'numaid="1"', 'numaid="2"'), 2, 1),
    "affinity": (swap(GOOD, "0000000f", "0-15"), 3, 19),
    "arch": (swap(GOOD, "x86_64", "amd64"), 3, 39),
    "vendor": (swap(GOOD, "GenuineIntel", "Intel"), 3, 53),
    "vendor-unlisted": (swap(GOOD, "GenuineIntel", "HygonGenuine"), 3, 53),
    "no-number": (swap(GOOD, 'familyid="6"', 'familyid="six"'), 3, 75),
    "no-model": (swap(GOOD, ' modelid="143"', ""), 3, 75),
    "cpu-facts": (swap(NET, ' arch="x86_64"', ""), 3, 3),
    "affinity-shared": (swap(BOTH, '<cpu numaid="1"', '<cpu numaid="1" affinity="00000ff8"'), 9, 19),
    "cpu-filled": (swap(NET, ' affinity="0000000f"', ""), 3, 3),
    "host-hash": (swap(GOOD, 'numaid="0"', 'numaid="0" host_hash="0x1"'), 3, 19),
    "busid": (swap(GOOD, "0000:03:00.0", "3"), 6, 12),
    "busid-form": (swap(GOOD, "0000:03:00.0", "00000000:0A:00.0"), 6, 12),
    "busid-switch": (swap(GOOD, "0000:01:00.0", "0"), 4, 10),
    "no-busid": (swap(GOOD, 'busid="0000:03:00.0" ', ""), 6, 7),
    "gpu-twice": (swap(GOOD, "0000:03:00.0", "0000:02:00.0"), 6, 12),
    "busid-twice": (swap(GOOD, "0000:02:00.0", "0000:01:00.0"), 5, 12),
    "no-gpu": (GOOD.replace("0x030200", "0x020700"), 2, 1),
    "class": (swap(GOOD, "0x030200", "0x0302"), 5, 33),
    "no-class": (swap(GOOD, ' class="0x030200"', ""), 5, 7),
    "no-class-net": (swap(NET, ' class="0x060400"', ""), 4, 5),
    "bridge-class": (swap(GOOD, "0x060400", "0x060401"), 4, 31),
    "ids": (swap(NET, ' vendor="0x1000" device="0xc030"', ""), 4, 5),
    "class-net": (swap(NET, "0x060400", "0x060401"), 4, 31),
    "below-device": (swap(GOOD, "0x060400", "0x030200"), 5, 7),
    "nic-in-gpu": (swap(LINKED, "<gpu>", "<nic/><gpu>"), 5, 50),
    "gpu-in-nic": (swap(LINKED, "0x030200", "0x020700"), 5, 50),
    "pcilink-place": (swap(LINKED, "<gpu>", '<pcilink target="0000:01:00.0"/><gpu>'), 5, 50),
    "kept": (swap(LINKED, "<gpu>", '<gpu keep="1">'), 5, 55),
    "no-speed": (swap(NET, ' link_width="16"', ""), 4, 5),
    "speed": (swap(GOOD, "32.0 GT/s PCIe", "Gen5"), 4, 132),
    "speed-empty": (swap(GOOD, "32.0 GT/s PCIe", ""), 4, 132),
    "width-most": (swap(GOOD, 'link_width="16"', 'link_width="999"'), 4, 160),
    "no-class-switch": (swap(GOOD, 'busid="0000:01:00.0" class="0x060400"', 'busid="ffff:ff:01.0"'), 4, 5),
    "ids-nic": (swap(NET, ' vendor="0x15b3"', ""), 6, 7),
    "width": (swap(GOOD, 'link_width="16"', 'link_width="x8"'), 4, 160),
    "width-empty": (swap(GOOD, 'link_width="16"', 'link_width=""'), 4, 160),
    "two-gpus": (swap(LINKED, "<gpu>", "<gpu/><gpu>"), 5, 56),
    "pcilink": (swap(GOOD, "    </pci>", '<pcilink target="1"/></pci>'), 7, 10),
    "pcilink-one-way": (swap(PCILINKED, '<pcilink target="0000:01:00.0"/>', ""), 7, 14),
    "pcilink-dropped": (swap(GOOD, "    </pci>", '<pcilink target="0000:02:00.0"/></pci>'), 7, 10),
    "override": (swap(LINKED, "<gpu>", '<gpu sm="90">'), 5, 55),
    "own-note": (swap(LINKED, "<gpu>", '<gpu rank="0">'), 5, 55),
    "believed": (LINKED, 5, 55),
    "no-links": (swap(LINKED, '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>', ""), 6, 50),
    "c2c": (swap(LINKED, "<gpu>", '<gpu><c2c bw="fast" count="5"/>'), 5, 55),
    "target": (swap(LINKED, 'target="0000:03:00.0"', 'target="1"'), 5, 63),
    "count": (swap(LINKED, 'count="4"', 'count="four"'), 5, 85),
    "count-most": (swap(LINKED, 'count="4"', 'count="600"'), 5, 85),
    "links-most": (swap(LINKED, "<gpu>", '<gpu><nvlink target="fffffff:ffff:ff" count="16"/>'), 5, 50),
    "to-itself": (swap(LINKED, 'target="0000:03:00.0"', 'target="0000:02:00.0"'), 5, 63),
    "switch-guess": (swap(LINKED, ' tclass="0x030200"', ""), 5, 55),
    "no-tclass": (swap(LINKED, "<gpu>", '<gpu><nvlink target="0000:c4:00.0" count="4"/>'), 5, 55),
    "switch-target": (swap(SWITCHED, "0000:0a:00.0", "switch"), 5, 63),
    "switch-class": (swap(SWITCHED, "0x068000", "0x06"), 5, 95),
    "switch-lost": (swap(SWITCHED, 'count="4"', 'count="0"'), 5, 50),
    "tclass": (swap(LINKED, 'tclass="0x030200"', 'tclass="NVSwitch"'), 5, 95),
    "dropped": (swap(LINKED, 'target="0000:03:00.0"', 'target="0000:09:00.0"'), 5, 63),
    "one-way": (swap(LINKED, 'count="4"', 'count="3"'), 5, 85),
    "net": (NET, 6, 183),
    "net-name": (swap(NET, '<net name="mlx5_0"/>', "<net/>"), 6, 183),
    "net-twice": (swap(NET, "<nic>", '<nic><net name="mlx5_0"/>'), 6, 208),
}  # fmt: skip


ALSO_NEXT_TO_A_MACHINE = {"not-rate", "not-numa", "numaid-mixed"}


def test_every_rule_has_a_file_that_breaks_it() -> None:
    assert set(BROKEN) | NEXT_TO_A_MACHINE | ALSO_NEXT_TO_A_MACHINE == set(RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found_with_its_place_reason_and_cure(rule: str) -> None:
    text, line, column = BROKEN[rule]
    found = [finding for finding in nccl.check(text) if finding.rule == rule]
    assert [(f.line, f.column) for f in found][:1] == [(line, column)]
    assert found[0].problem
    assert found[0].cure
    assert "{" not in found[0].problem.replace("'{", "")
    assert "{" not in found[0].cure


FINE_AND_IS_NOT: dict[str, str] = {
    "14 attributes on a bare pci, which gets four ids": swap(
        GOOD, 'busid="0000:02:00.0"', 'busid="0000:02:00.0" ' + " ".join(f'a{n}="1"' for n in range(10))
    ),
    "an element's name of 300 characters": BROKEN["long-element"][0],
    "an invented switch without class": BROKEN["no-class-switch"][0],
    "32.0 GT/s": swap(GOOD, "32.0 GT/s PCIe", "32.0 GT/s"),
    "host_hash": BROKEN["host-hash"][0],
    "an unknown element around a GPU": re.sub(r'(<pci busid="0000:02.*?/>)', r"<slot>\1</slot>", GOOD),
    "a link width of 999": BROKEN["width-most"][0],
    "a switch link missing": swap(SWITCHED, '<nvlink target="0000:0a:00.0" count="4" tclass="0x068000"/>', ""),
    "a switch link of 0": BROKEN["switch-lost"][0],
    "a second system of another version": GOOD + '<system version="2"/>',
    "a GPU in a second system": GOOD + '<system version="1"><cpu numaid="0"><pci busid="0000:09:00.0"/></cpu></system>',
    "a compute capability in NVIDIA's words": swap(LINKED, "<gpu>", '<gpu sm="8.0">'),
    "a GPU's number that NCCL leaves it out for": swap(LINKED, "<gpu>", '<gpu dev="-1">'),
    "a <nic> in a GPU that has no <gpu>": swap(GOOD, 'link_width="16"/>', 'link_width="16"><nic/></pci>'),
    "a NIC's speed with its unit": swap(NET, 'name="mlx5_0"', 'name="mlx5_0" speed="200Gb"'),
    "an affinity in capitals, which NCCL before 2.28 reads up to the first": swap(GOOD, "0000000f", "0000000F"),
    "a link width in octal": swap(GOOD, 'link_width="16"', 'link_width="016"'),
    "a link width that is no number": BROKEN["width"][0],
    "a number of links in octal": LINKED.replace('count="4"', 'count="010"'),
    "a CPU's model in octal": swap(GOOD, 'modelid="143"', 'modelid="0143"'),
    "a class of a switch that is not /sys's, with a NIC below": swap(NET, 'class="0x060400"', 'class="0x0604"'),
    "a GPU below another": swap(
        GOOD,
        '"0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>',
        '"0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<pci busid="0000:05:00.0" class="0x030200"/></pci>',
    ),
    "a <gpu> in a switch": swap(GOOD, "    </pci>", "    <gpu/></pci>"),
    "a <nic> in a switch": swap(GOOD, "    </pci>", "    <nic/></pci>"),
    "NCCL's own mark on a node": swap(GOOD, 'numaid="1"', 'numaid="1" keep="1"'),
    "a node's number with a leading 0": swap(GOOD, 'numaid="0"', 'numaid="00"'),
}


NOTHING_CHANGES: dict[str, str] = {
    "numaid -1, which /sys may have, too": BROKEN["numaid-unnumbered"][0],
    "a GPU missing from a dump": re.sub(r'<pci busid="0000:03.*?</pci>\n', "", LINKED),
    "one host's word on all CPUs": GOOD.replace("<cpu ", '<cpu host_hash="0x1" '),
    "a CPU that two nodes have": BROKEN["affinity-shared"][0],
    "no mask of CPUs above a NIC": BROKEN["cpu-filled"][0],
    "a link to a switch that is not in the file": BROKEN["pcilink-dropped"][0],
    "a rate that /sys does not know": swap(GOOD, "32.0 GT/s PCIe", "Unknown speed"),
    "target of a switch link": BROKEN["switch-target"][0],
    "class of a switch link": BROKEN["switch-class"][0],
    "tclass of a GPU's link missing": BROKEN["switch-guess"][0],
    "tclass of a switch link missing": SWITCHED.replace(' tclass="0x068000"', ""),
    "an attribute twice": BROKEN["twice"][0],
    "class 0x0604": swap(GOOD, 'class="0x060400"', 'class="0x0604"'),
    "a class in capitals": swap(GOOD, 'class="0x030200"', 'class="0X030200"'),
    "a second system": BROKEN["second-root"][0],
    "another element before the system": "<topology/>" + GOOD,
    "numaid of a node without devices": BROKEN["numaid-unused"][0],
    "affinity of a node without devices": BROKEN["affinity-unused"][0],
    "an odd bus id of a switch": BROKEN["busid-switch"][0],
    "a GPU twice": BROKEN["gpu-twice"][0],
    "vendor missing on a NIC": BROKEN["ids-nic"][0],
    "a <gpu> in a device of a bridge's class, where /sys decides": swap(LINKED, "0x030200", "0x060400"),
    "a mark that says not to keep": swap(LINKED, "<gpu>", '<gpu keep="0">'),
    "no lanes, as virtual machines have it": BROKEN["width-empty"][0],
    "NVML's long form of a link's target": LINKED.replace('target="0000:', 'target="00000000:'),
}


@pytest.mark.parametrize("fault", FINE_AND_IS_NOT)
def test_what_nccl_refuses_or_misreads_is_an_error(fault: str) -> None:
    assert any(finding.error for finding in nccl.check(FINE_AND_IS_NOT[fault]))


@pytest.mark.parametrize("fault", NOTHING_CHANGES)
def test_what_changes_nothing_for_nccl_is_a_note(fault: str) -> None:
    found = nccl.check(NOTHING_CHANGES[fault])
    assert found
    assert not [finding.rule for finding in found if finding.error]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('version="1"', 'version="1.0"'),
        ('version="1"', 'version="0x1"'),
        ('"32.0 GT/s PCIe"', '"32 GT/s PCIe"'),  # the beginning is what an old kernel writes
    ],
)
def test_what_nccl_reads_as_the_same_has_no_findings(old: str, new: str) -> None:
    text = swap(GOOD, old, new)
    assert rules(text) == []
    assert nccl.read(text) == msgspec.structs.replace(nccl.read(GOOD), pci=nccl.read(text).pci)


def test_a_links_target_in_another_form_is_a_switch_where_its_class_is_missing() -> None:
    long = LINKED.replace('target="0000:', 'target="00000000:').replace(' tclass="0x030200"', "")
    assert "target" in rules(long)


@pytest.mark.parametrize(
    ("base", "tag", "room"),
    [
        (GOOD, '<pci busid="0000:02:00.0"', 9),  # four of its own, and four ids are added
        (GOOD, '<pci busid="0000:01:00.0"', 8),  # has all eight; NCCL reads sixteen
        (GOOD.replace("0000:01:00.0", "ffff:ff:00.0"), '<pci busid="ffff:ff:00.0"', 8),
        (
            GOOD.replace(
                '<pci busid="0000:01:00.0"', '<pci busid="ffff:ff:00.0" class="0x060400"><pci busid="0000:01:00.0"'
            ).replace("    </pci>", "    </pci></pci>"),
            '<pci busid="ffff:ff:00.0"',
            13,
        ),  # its rate is added, empty
        (GOOD, '<cpu numaid="0"', 10),  # has six; the host is added
        (GOOD, '<cpu numaid="1"', 10),  # has one; six are added
        (LINKED, "<gpu", 11),
        (LINKED, '<nvlink target="0000:03:00.0"', 13),
        (NET, "<net", 2),
    ],
)
def test_attributes_have_room_in_addition_to_those_that_nccl_adds(base: str, tag: str, room: int) -> None:
    def extra(count: int) -> str:
        return swap(base, tag, " ".join([tag, *(f'a{n}="1"' for n in range(count))]))

    assert "attributes" not in rules(extra(room))
    assert "attributes" in rules(extra(room + 1))


def test_the_last_number_that_nccl_takes_is_taken() -> None:
    def with_elements(count: int) -> str:
        nics = ["<nic/>" * (count // 10), "<nic/>" * (count - count // 10 * 9)]
        cpus = "".join(f'<cpu numaid="{n}">{nics[n == 11]}</cpu>' for n in range(2, 12))
        return swap(GOOD, '<cpu numaid="1"/>', '<cpu numaid="1"/>' + cpus)

    assert [rules(with_elements(count)) for count in (184, 185, 239, 240)] == [[], ["many"], ["many"], ["too-many"]]
    for old, most, rule in (('link_width="16"', 64, "width-most"), ('count="4"', 18, "count-most")):
        name, base = old.split("=")[0], LINKED if "count" in old else GOOD
        assert rule not in rules(base.replace(old, f'{name}="{most}"'))
        assert rule in rules(base.replace(old, f'{name}="{most + 1}"'))
    two = re.sub(r"(<nvlink [^>]*/>)", r"\1\1", SWITCHED.replace('count="4"', 'count="9"'))
    assert "links-most" not in rules(two)
    assert "links-most" in rules(two.replace('count="9"', 'count="10"'))


def test_a_link_to_the_own_cpu_is_no_link_to_a_switch() -> None:
    power = swap(LINKED, "<gpu>", '<gpu><nvlink target="0004:00:00.0" count="2" tclass="0x068001"/>')
    assert rules(power) == ["believed"]


def test_an_invented_switchs_class_is_the_files_in_every_rank() -> None:
    text = NET.replace("0000:01:00.0", "ffff:ff:01.0").replace("0x060400", "0x060401")
    assert rules(text) == ["bridge-class", "net"]


@pytest.mark.parametrize("where", ['" class="0x030200"', '"/>'], ids=["between", "at the end"])
def test_blanks_too_many_take_the_room_of_attributes(where: str) -> None:
    tag = '<pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>'
    at = tag.index(where) + 1

    def with_blanks(count: int) -> str:
        return swap(GOOD, tag, tag[:at] + " " * count + tag[at:])

    assert rules(with_blanks(9)) == []
    assert rules(with_blanks(10)) == ["attributes"]


@pytest.mark.parametrize("kind", ["0x020700", "0X030200", "0x068000", "0x068001"])
def test_nccl_looks_below_no_device_of_another_class(kind: str) -> None:
    assert "below-device" in rules(swap(GOOD, "0x060400", kind))
    alone = swap(GOOD, 'class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>',
                 f'class="{kind}"><pcilink target="0000:01:00.0"/></pci>')  # fmt: skip
    assert "pcilink-place" in rules(alone)
    assert "pcilink-place" not in rules(swap(GOOD, "    </pci>", '<pcilink target="0000:81:00.0"/></pci>'))


def test_a_link_between_switches_is_fine_in_both_directions_and_an_error_in_one() -> None:
    assert rules(PCILINKED) == []
    assert rules(PCILINKED.replace('target="0000:', 'target="00000000:')) == []  # NCCL compares numbers here
    one_way = nccl.check(BROKEN["pcilink-one-way"][0])
    assert [(finding.rule, finding.error) for finding in one_way] == [("pcilink-one-way", True)]
    assert "from 0000:01:00.0 to 0000:41:00.0, but none back: NCCL since 2.22 ends" in one_way[0].problem


def test_each_node_without_a_mask_is_as_nccl_dumps_it_where_sys_has_none() -> None:
    none = swap(NET, ' affinity="0000000f"', "")
    assert rules(none) == ["cpu-filled", "net"]
    alone = none.replace('<cpu numaid="1"/>', "").replace('numaid="0"', 'numaid="-1"')
    assert rules(alone) == ["net"]  # there is no such node in /sys
    arm = re.sub(r'arch="x86_64" vendor="\w+" familyid="6" modelid="143"', 'arch="arm64"', none)
    assert rules(arm.replace('<cpu numaid="1"/>', "").replace('numaid="0"', 'numaid="-1"')) == ["net"]
    amd = swap(NET, 'vendor="GenuineIntel" familyid="6" modelid="143"', 'vendor="AuthenticAMD"')
    assert rules(amd) == ["cpu-filled", "net"]  # NCCL asks for the model of Intel's and Zhaoxin's alone


def test_masks_that_overlap_are_told_with_the_cpus_and_the_other_node() -> None:
    found = [finding for finding in nccl.check(BROKEN["affinity-shared"][0]) if finding.rule == "affinity-shared"]
    assert found[0].problem.startswith("CPU 3 is in the affinity of the <cpu> in line 3, too")
    apart = swap(BOTH, '<cpu numaid="1"', '<cpu numaid="1" affinity="00000ff0"')
    assert rules(apart) == []
    wide = apart.replace('"00000ff0"', '"0000000f,00000000"')  # bit 0 of another group of 32
    assert rules(wide) == []


def test_words_for_the_host_are_wrong_where_two_cpus_have_different_ones() -> None:
    same = GOOD.replace("<cpu ", '<cpu host_hash="0x1" ')
    assert rules(same) == ["own-note"]
    assert rules(swap(same, '0x1" numaid="1"', '0x2" numaid="1"')) == ["host-hash"]


def test_letters_of_several_bytes_are_long_earlier() -> None:
    assert rules(swap(GOOD, 'version="1"', 'version="1" name="' + "é" * 126 + '"')) == []
    assert rules(swap(GOOD, 'version="1"', 'version="1" name="' + "é" * 127 + '"')) == ["long-value"]


@pytest.mark.parametrize("text", ['numaid ="0"', 'numaid= "0"'])
def test_a_blank_on_either_side_of_the_equals_is_seen(text: str) -> None:
    assert "blank-at-equals" in rules(swap(GOOD, 'numaid="0"', text))


@pytest.mark.parametrize("comment", ["<!--a>b=c-->", "<!--a b=c-->", "<!--a/b=c-->", "<!---->"])
def test_only_a_comments_first_word_is_read(comment: str) -> None:
    assert rules(comment + GOOD) == []


def test_links_in_two_elements_are_one_number() -> None:
    two = swap(LINKED, 'count="4" tclass="0x030200"/>', 'count="1" tclass="0x030200"/>'
               '<nvlink target="0000:03:00.0" count="3" tclass="0x030200"/>')  # fmt: skip
    assert rules(two) == ["believed"]


def test_cpus_of_other_kinds_need_no_model() -> None:
    arm = re.sub(r'arch="x86_64" vendor="\w+" familyid="6" modelid="143"', 'arch="arm64"', NET)
    assert arm != NET
    assert rules(arm) == ["net"]
    assert rules(arm.replace('arch="arm64"', 'arch="arm64" vendor="ARM"')) == ["net"]
    assert "cpu-filled" in rules(arm.replace(' affinity="0000000f"', ""))


@pytest.mark.parametrize("name", ["link_speed", "link_width"])
def test_either_half_of_a_rate_is_needed_above_a_net(name: str) -> None:
    assert "no-speed" in rules(re.sub(rf' {name}="[^"]*"', "", NET, count=1))


def test_good_files_have_no_findings() -> None:
    indented = GOOD.replace("\n", "\r\n").replace(' affinity="', '  affinity="')  # CRLF and two blanks are fine
    for text in (GOOD, indented, GOOD.replace("/>", " />"), GOOD.replace("\n", "")):
        assert rules(text) == []
    hidden_switch = 'target="fffffff:ffff:ff" count="0" tclass="0x068000"'
    switched = re.sub(r'target="0000:0[23]:00.0" count="4" tclass="0x030200"', hidden_switch, LINKED)
    assert rules(switched) == ["believed"]


def test_a_good_bridge_that_the_cloud_invented_needs_no_ids() -> None:
    text = swap(NET, "0000:01:00.0", "ffff:ff:01.0").replace(' vendor="0x1000" device="0xc030"', "")
    assert rules(text) == ["net"]


@pytest.mark.parametrize(
    "text",
    [
        "text",
        '<system version="1">text</system>',
        swap(LINKED, '    </pci>\n  </cpu>', '    </pci> lost </cpu>'),
        LINKED[: LINKED.index('<pci busid="0000:03')],
        swap(GOOD, '  <cpu numaid="0"', '  text <cpu numaid="0"'),
    ],
    ids=["alone", "in-system", "after-devices", "cut", "before-cpus"],
)  # fmt: skip
def test_what_only_a_whole_file_can_break_is_not_said_of_a_broken_one(text: str) -> None:
    whole = {"no-cpu", "no-gpu", "numa-missing", "one-way", "dropped", "no-links", "lacks-gpu", "numa-lacks"}
    found = rules(text, machine_of(GOOD, lambda m: msgspec.structs.replace(m, numa=(*m.numa, NumaNode(id=2)))))
    assert set(found) & {"text", "no-end"}
    assert not set(found) & whole


@pytest.mark.parametrize("vendor", ["GenuineIntel", "CentaurHauls", "  Shanghai  "])
def test_half_a_model_is_refused_where_nccl_asks_for_it(vendor: str) -> None:
    assert rules(swap(GOOD, "GenuineIntel", vendor).replace(' modelid="143"', "")) == ["no-model"]
    assert rules(swap(GOOD, "GenuineIntel", "AuthenticAMD").replace(' modelid="143"', "")) == []


def test_what_follows_the_last_tag_hides_no_fault_of_the_whole() -> None:
    for root in ('<system version="1"></system>', '<system version="1"/>'):
        assert set(rules(root + "text")) >= {"no-cpu", "no-gpu", "text"}
    assert set(rules('<system version="1"')) == {"cut"}


def test_a_broken_file_still_has_the_faults_that_stand_in_it() -> None:
    assert rules(swap(GOOD, "  </cpu>", "  Socket 0</cpu>").replace("0000000f", "0-3")) == ["affinity", "text"]
