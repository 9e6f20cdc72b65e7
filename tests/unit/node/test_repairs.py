"""Every fault of a GPU has words and a repair, which Events, ``gputopo verify`` and the documents say alike."""

from __future__ import annotations

import re

import pytest

from docs import faults as page
from dradriver.node.faults import KINDS, Fault
from dradriver.node.repairs import located
from dradriver.node.vendors.nvidia import xids

REBOOT = (
    "Drain the node (kubectl drain <node> --ignore-daemonsets --delete-emptydir-data), reboot it, and run kubectl "
    "uncordon <node>."
)


def test_every_kind_and_value_has_words_and_a_repair() -> None:
    for name, kind in KINDS.items():
        for words, repair in ((kind.words, kind.advice), *kind.values.values()):
            assert re.fullmatch(r"[A-Za-z].*[^.]", words), name
            assert re.fullmatch(r"[A-Z].*\.", repair), name


@pytest.mark.parametrize(
    ("fault", "described"),
    [
        (
            Fault("xid", "79", "XID 79 in the kernel's log, which asks for a reboot of the node"),
            "XID 79 in the kernel's log, which asks for a reboot of the node: the GPU has fallen off the bus, so its "
            f"PCIe connection is broken. {REBOOT} If it comes again, have the GPU and its slot checked.",
        ),
        (
            Fault("xid-warning", "94", "XID 94 in the kernel's log"),
            "XID 94 in the kernel's log: a memory error that was contained, which ended one program. "
            "Restart the program. A reset remaps the bad row. Keep new pods off the node (kubectl cordon <node>). When "
            "no pod uses the GPU, reset it on the node (nvidia-smi --gpu-reset -i <UUID>), and run kubectl uncordon "
            "<node>.",
        ),
        (
            Fault("recovery", "reboot", "the driver asks for a reboot of the node"),
            f"the driver asks for a reboot of the node. {REBOOT}",
        ),
        (
            Fault("row-remap-failed", "", "a bad row of its memory could not be remapped"),
            "a bad row of its memory could not be remapped. Have the GPU replaced: its spare rows are used up.",
        ),
    ],
)
def test_a_fault_is_described_by_what_was_seen_what_it_is_and_what_to_do(fault: Fault, described: str) -> None:
    assert fault.described == described


def test_the_commands_of_a_repair_name_the_node_and_the_gpu_as_far_as_they_are_known() -> None:
    advice = Fault("lost", "", "it is gone").advice
    assert located(advice, node="n1", uuid="GPU-a") == advice.replace("<node>", "n1").replace("<UUID>", "GPU-a")
    assert "kubectl annotate node n1 gpu.topology/removed-gpus=<UUID>." in located(advice, node="n1")
    assert located(advice) == advice
    for kind in KINDS.values():
        for repair in (kind.advice, *(value.repair for value in kind.values.values())):
            assert set(re.findall("<.*?>", repair)) <= {"<node>", "<UUID>"}


def test_a_gpu_that_fell_off_the_bus_is_described_otherwise_than_one_that_the_driver_does_not_report() -> None:
    fallen, lost = Fault("xid", "79", ""), Fault("lost", "", "")
    assert "has fallen off the bus" in fallen.words
    assert lost.words == "the node had the GPU, and the driver does not report it any more"
    assert "removed-gpus" not in fallen.advice


def test_only_of_an_xid_that_is_in_no_list_a_person_has_to_look_it_up() -> None:
    assert "Look the XID up" in Fault("xid", "999", "XID 999").advice
    for number in range(1, 300):
        fault = Fault("xid", str(number), f"XID {number}")
        if xids.recovery(number) or xids.severity(xids.read(number, ""), {}) == "warn":
            assert "Look the XID up" not in fault.advice, number
        if xids.recovery(number) == "a reboot of the node":
            assert fault.advice.startswith(REBOOT), number
        if xids.recovery(number) == "a reset of the GPU":
            assert "reset" in fault.advice, number


def test_the_page_has_the_table_of_the_code() -> None:
    text = page.TARGET.read_text(encoding="utf-8")
    assert page.page() == text
    details = text.partition("### When a fault is there\n")[2].partition("\n\n* ")[0]
    names = re.findall(r"`([^`=]+)[^`]*`", "\n".join(re.findall(r"^\| (`[^|]*) \|", details, re.MULTILINE)))
    assert len(names) > 10
    assert set(names) <= KINDS.keys()
    at_once = re.search(r"^\| (`[^|]*) \| 0 s \|$", text, re.MULTILINE)
    assert at_once
    assert set(re.findall(r"[\w-]+", at_once[1])) == {kind for kind, about in KINDS.items() if not about.leaves_s}
