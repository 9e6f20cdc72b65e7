"""SXids of NVSwitches in the kernel's log."""

from __future__ import annotations

import pytest

from dradriver.api.policies.fields import XidWord
from dradriver.node.faults import KINDS, Fault
from dradriver.node.vendors.nvidia.xid_reports import WARNED_S, XidReports

UUIDS = {"0000:3b:00.0": "GPU-a", "0000:af:00.0": "GPU-b"}
FATAL = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
NONFATAL = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
SAID = "fatal SXid 20034 of nvswitch0 (0000:c1:00.0) in the kernel's log: Link 30 LTSSM Fault Up"


class Log:
    def __init__(self) -> None:
        self.now = 1000.0
        self.words: dict[str, XidWord] = {}
        self.reports = XidReports(words=lambda: self.words, clock=lambda: self.now)

    def say(self, *lines: str) -> None:
        for line in lines:
            self.reports.take(line, self.now)

    def kinds(self, switched: tuple[str, ...] = ()) -> dict[str, list[tuple[str, str]]]:
        found = self.reports.faults(UUIDS, switched)
        return {uuid: [(fault.kind, fault.value) for fault in faults] for uuid, faults in found.items()}


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_fatal_one_keeps_pods_off_all_gpus_that_the_switches_join(log: Log) -> None:
    log.say(FATAL)
    assert log.reports.faults(UUIDS) == dict.fromkeys(UUIDS.values(), (Fault("sxid", "20034", SAID),))
    assert log.kinds(switched=("GPU-b",)) == {"GPU-b": [("sxid", "20034")]}  # GPU-a is in a slot of its own
    assert (KINDS["sxid"].effect, KINDS["sxid"].is_taint) == ("NoSchedule", True)


def test_one_that_is_not_fatal_is_told_for_an_hour_and_is_no_taint(log: Log) -> None:
    log.say(NONFATAL)
    assert log.kinds() == {uuid: [("sxid-warning", "12028")] for uuid in UUIDS.values()}
    assert (KINDS["sxid-warning"].effect, KINDS["sxid-warning"].is_taint) == ("None", False)
    log.now += WARNED_S - 1
    assert log.kinds()
    log.now += 1
    assert log.kinds() == {}


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("nvidia-nvswitch12: SXid (PCI:00000000:C1:00.0): 24007, Fatal, Link 28 sourcetrack timeout", ["sxid"]),
        ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, ingress invalid command", ["sxid"]),
        ("nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error", ["sxid-warning"]),
        ("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00", []),
        ("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Data {0x00000000, 0x00000000}", []),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034", []),
        ("NVRM: SXid (PCI:0000:c1:00.0): 20034, Fatal, of no switch", []),
        ("nvidia-nvswitch0: Probing device 0000:c1:00.0", []),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatality, Link 30", []),
    ],
)
def test_it_is_read_in_all_the_drivers_ways_to_write_it(line: str, kinds: list[str], log: Log) -> None:
    log.say(line)
    assert [kind for kind, _ in log.kinds().get("GPU-a", [])] == kinds


def test_one_that_was_fatal_once_stays_so(log: Log) -> None:
    log.say(FATAL, FATAL.replace("Fatal", "Non-fatal"))
    assert log.reports.faults(UUIDS)["GPU-a"] == (Fault("sxid", "20034", SAID),)


def test_a_fatal_one_is_over_when_all_gpus_of_the_fabric_were_reset(log: Log) -> None:
    log.say(FATAL)
    log.reports.reset(["0000:3b:00.0"])
    log.now += 10 * WARNED_S
    assert log.kinds()["GPU-a"] == [("sxid", "20034")]
    assert log.kinds(switched=("GPU-a",)) == {}  # the only one that the switches join
    log.reports.reset(["0000:af:00.0"])
    assert log.kinds() == {}
    log.say(FATAL)
    assert log.kinds()["GPU-a"] == [("sxid", "20034")]


def test_a_fatal_one_is_over_when_the_driver_is_loaded_again(log: Log) -> None:
    log.say(FATAL, NONFATAL, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05")
    assert log.kinds() == {}


def test_a_word_that_a_gpu_is_well_says_nothing_of_the_switch(log: Log) -> None:
    log.say(FATAL)
    log.reports.sound(list(UUIDS), log.now + WARNED_S)
    assert log.kinds()["GPU-b"] == [("sxid", "20034")]


def test_an_administrator_may_say_otherwise_by_number(log: Log) -> None:
    log.say(FATAL, NONFATAL)
    log.words = {"20034": "ignore", "12028": "taint"}
    assert log.kinds()["GPU-a"] == [("sxid", "12028")]
    log.words = {"20034": "warn", "12028": "ignore"}
    assert log.kinds()["GPU-a"] == [("sxid-warning", "20034")]


def test_a_gpus_own_xid_stands_next_to_its_switchs_sxid(log: Log) -> None:
    log.say("NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 6(0x10000, 0x0)", FATAL, NONFATAL)
    assert log.kinds() == {
        "GPU-a": [("xid", "74"), ("sxid", "20034"), ("sxid-warning", "12028")],
        "GPU-b": [("sxid", "20034"), ("sxid-warning", "12028")],
    }


def test_what_a_line_says_is_printable_and_short_and_there_are_not_without_end(log: Log) -> None:
    log.say("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 1, Fatal, Link \x1b[31m" + "x" * 500)
    (fault,) = log.reports.faults(UUIDS)["GPU-a"]
    assert fault.said.isprintable()
    assert len(fault.said) < 200
    for number in range(1000):
        log.say(f"nvidia-nvswitch{number % 100}: SXid (PCI:0000:c1:00.0): {number}, Non-fatal, Link 1")
    assert [value for _, value in log.kinds()["GPU-a"]] == ["1", "0"]
