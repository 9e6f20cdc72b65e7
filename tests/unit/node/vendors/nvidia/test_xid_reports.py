"""XIDs in the kernel's log."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.api.policies.fields import XidWord
from dradriver.node.faults import KINDS, Fault
from dradriver.node.health.kernel_log import KernelLog
from dradriver.node.vendors.nvidia.xid_reports import SOUND_S, WARNED_S, XidReports

BUSID = "0000:3b:00.0"
UUIDS = {BUSID: "GPU-a", "0000:af:00.0": "GPU-b"}


class Kmsg:
    """A ``/dev/kmsg``: one record a read, and EAGAIN when there is none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        monkeypatch.setattr(os, "open", lambda *_: theirs.detach())
        self.now = 1000.0
        self.words: dict[str, XidWord] = {}
        self.xids = XidReports(words=lambda: self.words, clock=lambda: self.now)
        self.log = KernelLog(Path("/dev/kmsg"), self.xids)

    def say(self, text: str, *, facility: int = 0, at_s: float = 1000.0) -> None:
        self._kernel.send(f"{facility * 8 + 4},12345,{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode())

    def raw(self, record: bytes) -> None:
        self._kernel.send(record)

    def faults(self) -> dict[str, list[str]]:
        self.log.read()
        return {uuid: [one.value for one in some] for uuid, some in self.xids.faults(UUIDS).items()}

    def close(self) -> None:
        self._kernel.close()


@pytest.fixture
def kmsg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kmsg]:
    found = Kmsg(monkeypatch)
    yield found
    found.close()
    found.log.close()


def test_a_gpu_that_fell_off_the_bus_is_told_of(kmsg: Kmsg) -> None:
    kmsg.say("usb 1-1: new high-speed USB device")
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert kmsg.faults() == {"GPU-a": ["79"]}
    said = "XID 79 in the kernel's log, which asks for a reboot of the node"
    assert kmsg.xids.faults(UUIDS)["GPU-a"] == (Fault("xid", "79", said),)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (double bit error)", "48"),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=1, name=x, Contained: CE User Channel", "94"),
        ("NVRM: Xid (PCI:00000000:3b:00): 119, pid=2, name=y, Timeout waiting for RPC from GSP!", "119"),
        ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 6(0x10000, 0x0)", "74"),
        ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Fatal", "149"),
    ],
)
def test_it_is_read_in_all_the_drivers_ways_to_write_it(text: str, number: str, kmsg: Kmsg) -> None:
    kmsg.say(text)
    assert kmsg.faults() == {"GPU-a": [number]}


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 68, 109])
def test_what_a_program_did_wrong_is_no_fault_of_the_gpu(number: int, kmsg: Kmsg) -> None:
    kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4242, name=python, Graphics Exception")
    assert kmsg.faults() == {}


@pytest.mark.parametrize("facility", [1, 3, 16])
def test_a_process_cannot_pretend_one(facility: int, kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", facility=facility)
    assert kmsg.faults() == {}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff\xfe;;;",
        b"4,1,1,-;",
        b"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 999999999999, x",
        b"4,1,1,-;NVRM: Xid (PCI:zzzz:3b:00): 79, x",
        b"4,1,1,-;x NVRM: Xid (PCI:0000:3b:00): 79, x",
        b"99999,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, x",
        b"NVRM: Xid (PCI:0000:3b:00): 79, x",
    ],
)
def test_other_records_are_passed_over(record: bytes, kmsg: Kmsg) -> None:
    if record:
        kmsg.raw(record)
    assert kmsg.faults() == {}


def test_the_first_stands_and_other_gpus_are_their_own(kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 48, x")
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 95, x")
    kmsg.say("NVRM: Xid (PCI:0000:af:00): 62, x")
    kmsg.say("NVRM: Xid (PCI:0000:d8:00): 62, x")
    assert kmsg.faults() == {"GPU-a": ["48"], "GPU-b": ["62"]}


def kinds(kmsg: Kmsg) -> list[tuple[str, str]]:
    kmsg.log.read()
    return [(one.kind, one.value) for one in kmsg.xids.faults(UUIDS).get("GPU-a", ())]


@pytest.mark.parametrize("number", [32, 92, 94])
def test_what_needs_no_reset_only_warns_and_no_longer_than_it_is_news(number: int, kmsg: Kmsg) -> None:
    kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, name=x, y")
    assert kinds(kmsg) == [("xid-warning", str(number))]
    assert KINDS["xid-warning"].effect == "None"
    kmsg.now += WARNED_S
    assert kinds(kmsg) == []


def test_one_that_taints_is_not_hidden_by_earlier_warnings(kmsg: Kmsg) -> None:
    for number in (94, 92, 95, 48):
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, x")
    assert kinds(kmsg) == [("xid-warning", "94"), ("xid", "95")]


def test_an_administrator_says_otherwise_of_an_xid_at_any_time(kmsg: Kmsg) -> None:
    for number in (94, 95, 13, 998):
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, x")
    assert kinds(kmsg) == [("xid-warning", "94"), ("xid", "95")]
    kmsg.words = {"94": "taint", "95": "ignore", "13": "warn"}
    assert kinds(kmsg) == [("xid", "94"), ("xid-warning", "13")]
    kmsg.words = {"94": "ignore", "95": "ignore"}
    assert kinds(kmsg) == [("xid", "998")]  # in no table


def test_the_drivers_own_word_is_what_an_xid_asks_for_and_that_nothing_is_needed_any_more(kmsg: Kmsg) -> None:
    changed = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from"
    kmsg.say(f"{changed} 0x0 (None) to 0x1 (GPU Reset Required)")
    kmsg.log.read()
    said = "XID 154 in the kernel's log, which asks for GPU Reset Required"
    assert kmsg.xids.faults(UUIDS) == {"GPU-a": (Fault("xid", "154", said),)}
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 119, Timeout waiting for RPC from GSP!")
    kmsg.say("NVRM: Xid (PCI:0000:af:00): 79, x")
    kmsg.say(f"{changed} 0x1 (GPU Reset Required) to 0x0 (None)")
    assert kmsg.faults() == {"GPU-b": ["79"]}


def test_a_reset_ends_what_was_read_before_it(kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 119, x")
    kmsg.say("NVRM: Xid (PCI:0000:af:00): 119, x")
    kmsg.faults()
    kmsg.xids.reset([BUSID, "0000:d8:00.0"])
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 62, x")
    assert kmsg.faults() == {"GPU-a": ["62"], "GPU-b": ["119"]}


def test_a_gpu_with_more_xids_than_there_are_is_kept_in_bounds(kmsg: Kmsg) -> None:
    for number in range(500, 700):
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, x")
        kmsg.log.read()
    assert kmsg.faults() == {"GPU-a": ["500"]}
    assert sum(map(len, kmsg.xids._noted.values())) <= 32


@pytest.mark.parametrize("word", ["ignore", "warn"])
def test_one_that_taints_is_not_crowded_out_by_those_that_do_not(word: XidWord, kmsg: Kmsg) -> None:
    kmsg.words = {str(number): word for number in range(500, 540)}
    for number in (*range(500, 540), 79, *range(500, 540), 95):
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, x", at_s=0.0 if number >= 500 else 1000.0)
        kmsg.faults()
    kmsg.now = WARNED_S
    assert kmsg.faults() == {"GPU-a": ["79"]}
    assert sum(map(len, kmsg.xids._noted.values())) <= 32


def test_the_latest_that_taints_is_noted_however_many_did(kmsg: Kmsg) -> None:
    for number in range(500, 540):
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {number}, x", at_s=900)
        kmsg.faults()
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, x", at_s=1000)
    kmsg.faults()
    kmsg.xids.sound([BUSID], 1000)  # a word from before it
    assert kmsg.faults() == {"GPU-a": ["79"]}


NONFATAL = "145, RLW_REMAP Nonfatal XC0 i0 Link 09 (0x00000004 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)"
FATAL = "145, RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([NONFATAL], [("xid-warning", "145")]),
        (["144, SAW_MVB Nonfatal XC0 i0 Link -1 (0x00000021 0x00000004)"], [("xid-warning", "144")]),
        (["150, pid=4, name=a Fatal program, MSE Nonfatal XC0 i0 Link 00 (0x1)"], [("xid", "150")]),
        (["149, pid=4, name=Nonfatal, NETIR_LINK_DOWN Fatal XC0 i0 Link 17 (0x1)"], [("xid", "149")]),
        (["147, TREX"], [("xid", "147")]),  # a driver that does not say
        (["155, pid=4, name=x, SW Nonfatal XC0"], [("xid", "155")]),
        ([NONFATAL, FATAL], [("xid-warning", "145"), ("xid", "145")]),
        ([FATAL, NONFATAL], [("xid", "145"), ("xid-warning", "145")]),
    ],
)
def test_an_error_of_a_blackwells_nvlinks_that_the_driver_calls_nonfatal_only_warns(
    texts: list[str], found: list[tuple[str, str]], kmsg: Kmsg
) -> None:
    for text in texts:
        kmsg.say(f"NVRM: Xid (PCI:0000:3b:00): {text}")
    assert kinds(kmsg) == found
    kmsg.words = {str(number): "ignore" for number in (*range(144, 151), 155)}
    assert kinds(kmsg) == []


def test_a_driver_that_is_loaded_again_starts_without_memory(kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, x")
    kmsg.say("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build")
    assert kmsg.faults() == {}


def test_the_drivers_word_that_all_is_well_ends_it_once_it_is_about_the_time_after(kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 95, x", at_s=900)
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 95, x", at_s=1000)
    kmsg.now = 1000 + SOUND_S - 1
    kmsg.faults()
    kmsg.xids.sound([BUSID], kmsg.now)
    assert kmsg.faults() == {"GPU-a": ["95"]}
    kmsg.now += 1
    kmsg.xids.sound(["0000:af:00.0"], kmsg.now)
    assert kmsg.faults() == {"GPU-a": ["95"]}
    kmsg.xids.sound([BUSID], kmsg.now)
    assert kmsg.faults() == {}


def test_records_that_were_overwritten_are_passed_over(kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch) -> None:
    read, errors = os.read, [BrokenPipeError(32, "Broken pipe")]
    monkeypatch.setattr(os, "read", lambda *words: (_ for _ in ()).throw(errors.pop()) if errors else read(*words))
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, x")
    assert kmsg.faults() == {"GPU-a": ["79"]}


def test_a_log_that_grows_faster_than_it_is_read_holds_up_no_other(kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch) -> None:
    busids = [f"{number >> 8:04x}:{number & 255:02x}:00.0" for number in range(5000)]
    said = 0

    def read(*_: object) -> bytes:
        nonlocal said
        said += 1
        assert said < 50_000
        return f"4,{said},1,-;NVRM: Xid (PCI:{busids[said % 5000][:-2]}): 79, x".encode()

    monkeypatch.setattr(os, "read", read)
    kmsg.log.read()
    assert 0 < len(kmsg.xids.faults({busid: busid for busid in busids})) <= 1024


def test_a_record_longer_than_any_is_passed_over_in_silence(
    kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, errors = os.read, [OSError(errno.EINVAL, "Invalid argument")]
    monkeypatch.setattr(os, "read", lambda *words: (_ for _ in ()).throw(errors.pop()) if errors else read(*words))
    kmsg.say("NVRM: Xid (PCI:0000:3b:00): 79, x")
    kmsg.faults()
    assert kmsg.faults() == {"GPU-a": ["79"]}
    assert caplog.text == ""


def test_a_log_that_may_not_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = KernelLog(tmp_path / "none", XidReports())
    caplog.set_level(logging.INFO)
    for _ in range(3):
        log.read()
    assert caplog.text.count("faults that GPU drivers report there are not seen") == 1
