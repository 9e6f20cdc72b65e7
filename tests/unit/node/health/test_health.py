"""Which faults of GPUs are in force."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from dradriver.node import faults
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.faults import Fault, FaultKind, of_all
from dradriver.node.health.faults_in_force import CALM_S, MOST_S, Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.health.kernel_log import KernelLog
from dradriver.node.vendors.nvidia.xid_reports import XidReports
from dradriver.topology.machine import Machine
from tests.fakes.agents import Hanging
from tests.fakes.node import machine, uuid


class Clock:
    """A record whose time is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes = 0
        self.record = Record(clock=lambda: self.now, wall=lambda: 1_800_000_000 + self.now)
        self.record.changed.add(self.changed)

    def changed(self) -> None:
        self.changes += 1

    def tell(self, *some: Fault, source: str = "s", after_s: float = 0.0) -> list[str]:
        self.now += after_s
        self.record.tell(source, {"GPU-a": some} if some else {})
        return [f"{one.fault.kind} {one.fault.value}" for one in self.record.standing().get("GPU-a", ())]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    kinds = {
        "quick": FaultKind(effect="NoSchedule", words="broken", advice="Reset it.", leaves_s=60),
        "slow": FaultKind(effect="None", words="hot", advice="Cool it.", comes_s=60, leaves_s=300),
    }
    monkeypatch.setattr(faults, "KINDS", kinds)
    monkeypatch.setattr("dradriver.node.health.faults_in_force.KINDS", kinds)
    return Clock()


QUICK, SLOW = Fault("quick", "1", "bad"), Fault("slow", "", "hot")


def test_a_fault_is_in_force_at_once_and_until_it_was_gone_for_a_while(clock: Clock) -> None:
    assert clock.tell(QUICK) == ["quick 1"]
    assert clock.tell(after_s=10) == ["quick 1"]
    assert clock.tell(after_s=49) == ["quick 1"]
    assert clock.tell(after_s=1) == []
    assert clock.changes == 2


def test_one_that_flutters_is_one_fault(clock: Clock) -> None:
    for number in range(100):
        clock.tell(*[Fault("quick", str(number), f"{number}")] * (number % 2), after_s=10)
    assert clock.changes == 1
    (standing,) = clock.record.standing()["GPU-a"]
    assert (standing.fault.value, standing.since) == ("1", 1_800_000_020)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["driver", "xid", "fabric", "thermal"])  # as quick or slow as any
def test_no_rhythm_of_a_fault_writes_slices_all_the_time(kind: str) -> None:
    """Looked at every ten seconds for three hours: each change is a write that wakes every scheduler of the cluster."""
    for there, gone in itertools.product((1, 2, 4, 7, 20), (1, 2, 6, 7, 25, 31, 97, 181)):
        clock = Clock()
        for look in range(3 * 360):
            clock.tell(*[Fault(kind, "", "x")] * (look % (there + gone) < there), after_s=10)
        assert clock.changes <= 24


def test_one_that_comes_again_must_be_gone_for_longer_until_it_was_away_for_an_hour(clock: Clock) -> None:
    for gone_s in (60, 240, 960, MOST_S, MOST_S):
        assert clock.tell(QUICK, after_s=10) == ["quick 1"]
        assert clock.tell(after_s=gone_s - 1) == ["quick 1"]
        assert clock.tell(after_s=1) == []
    clock.tell(QUICK, after_s=CALM_S)
    assert clock.tell(after_s=60) == []


def test_what_comes_slowly_must_be_seen_all_the_time(clock: Clock) -> None:
    for _ in range(20):
        assert clock.tell(SLOW, after_s=50) == []
        assert clock.tell(after_s=5) == []
    clock.tell(SLOW, after_s=10)
    assert clock.tell(SLOW, after_s=60) == ["slow "]
    assert clock.tell(after_s=299) == ["slow "]


def test_what_an_earlier_agent_published_is_in_force_as_long_as_it_is_seen(clock: Clock) -> None:
    clock.tell(SLOW)
    clock.record.adopt({("gpu-a", "gpu.topology/quick"), ("gpu-b", "gpu.topology/slow")})
    assert clock.tell(SLOW, after_s=1) == []
    clock.record.adopt({("gpu-a", "gpu.topology/slow")})
    assert clock.changes == 1
    assert clock.tell(SLOW, after_s=1) == ["slow "]
    assert clock.tell(after_s=300) == []
    clock.record.adopt({("gpu-a", "gpu.topology/slow")})
    assert clock.tell() == []


def test_a_fault_that_two_sources_see_is_over_when_neither_does(clock: Clock) -> None:
    clock.tell(QUICK, source="a")
    clock.tell(QUICK, source="b")
    assert clock.tell(source="a", after_s=100) == ["quick 1"]
    clock.tell(source="b", after_s=10)
    assert clock.tell(source="b", after_s=60) == []


def test_taints_have_the_reason_and_since_when_those_that_block_first(clock: Clock) -> None:
    clock.tell(SLOW)
    clock.tell(SLOW, QUICK, after_s=100)
    assert clock.record.taints() == {
        "GPU-a": [
            {"key": "gpu.topology/quick", "value": "1", "effect": "NoSchedule", "timeAdded": "2027-01-15T08:01:40Z"},
            {"key": "gpu.topology/slow", "effect": "None", "timeAdded": "2027-01-15T08:01:40Z"},
        ]
    }


def test_those_that_block_are_published_however_many_only_tell() -> None:
    record = Record(clock=itertools.count(0.0, 100.0).__next__)
    kinds = [kind for kind, one in faults.KINDS.items() if one.effect == "None"] + ["unreadable", "xid"]
    for _ in range(2):
        record.tell("s", {"GPU-a": [Fault(kind, "", "x") for kind in kinds]})
    assert [taint["effect"] for taint in record.taints()["GPU-a"]] == ["NoSchedule"] * 2 + ["None"] * 2


def test_a_metric_counts_gpus_by_kind_of_fault() -> None:
    def unhealthy() -> float | None:
        return REGISTRY.get_sample_value("gpu_topology_node_faults", {"kind": "driver"})

    record = Record()
    record.tell("driver", of_all(machine(), "hangs", kind="driver"))
    assert unhealthy() == 8
    record.tell("driver", {})
    assert unhealthy() == 0


def test_trouble_with_the_driver_is_every_gpus() -> None:
    assert of_all(machine(), None, kind="driver") == of_all(None, "hangs", kind="driver") == {}
    found = of_all(machine(), "hangs", kind="driver")
    assert found.keys() == {uuid(i) for i in range(8)}
    assert {one for some in found.values() for one in some} == {Fault("driver", "", "hangs")}


def test_a_gpu_that_is_read_and_cannot_be_handed_out_is_not_lost() -> None:
    record = Record()
    discovery = Hanging()
    watch = HealthWatch(record, discovery, None)

    def faults(usable: Machine, *, read: Machine) -> list[str]:
        discovery.faults = {gpu.uuid: () for gpu in read.gpus}
        watch.looked(usable, None)
        return [one.fault.kind for one in record.standing().get(uuid(2), ())]

    left = without(machine(), {uuid(2)})
    assert faults(machine(), read=machine()) == []
    assert faults(left, read=machine()) == []  # no specification names it
    assert faults(left, read=left) == ["lost"]
    assert faults(machine(), read=machine()) == []


def test_an_xid_is_over_once_a_reading_shows_that_the_gpu_was_reset(tmp_path: Path) -> None:
    gpu = machine().gpus[2]
    path = tmp_path / "kmsg"
    path.write_text(f"4,1,1,-;NVRM: Xid (PCI:{gpu.pci[:-2]}): 119, Timeout waiting for RPC from GSP!")
    now, discovery = [100.0], Hanging()
    record = Record(clock=lambda: now[0])
    watch = HealthWatch(record, discovery, KernelLog(path, XidReports(clock=lambda: now[0])))
    for now[0] in (100.0, 1000.0):
        watch.looked(machine(), None)
        assert record.standing().keys() == {gpu.uuid}
    discovery.reset = frozenset({gpu.uuid})
    for now[0] in (1010.0, 1100.0):
        watch.looked(machine(), None)
        discovery.reset = frozenset()
    assert record.standing() == {}


def test_a_fatal_sxid_taints_the_gpus_of_the_fabric_and_another_one_is_told_without_a_taint(tmp_path: Path) -> None:
    server = machine()
    joined = (msgspec.structs.replace(gpu, switch_links=18 if gpu.index < 4 else 0) for gpu in server.gpus)
    server = msgspec.structs.replace(server, gpus=tuple(joined))
    path = tmp_path / "kmsg"
    line = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    path.write_text("4,1,1,-;nvidia-nvswitch1: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress error")
    record = Record(clock=lambda: 100.0)
    watch = HealthWatch(record, Hanging(), KernelLog(path, XidReports(clock=lambda: 100.0)))
    watch.looked(server, None)
    kinds = {at: [one.fault.kind for one in some] for at, some in record.standing().items()}
    assert kinds == {uuid(n): ["sxid-warning"] for n in range(4)}
    assert record.taints() == {}

    path.write_text(f"4,1,1,-;{line}")
    record = Record(clock=lambda: 100.0)
    watch = HealthWatch(record, Hanging(), KernelLog(path, XidReports(clock=lambda: 100.0)))
    watch.looked(server, None)
    taints = {at: [(one["key"], one["value"], one["effect"]) for one in some] for at, some in record.taints().items()}
    assert taints == {uuid(n): [("gpu.topology/sxid", "20034", "NoSchedule")] for n in range(4)}


def test_an_xid_stays_until_the_driver_says_that_the_gpu_is_well(tmp_path: Path) -> None:
    gpu = machine().gpus[2]
    (path := tmp_path / "kmsg").write_text(f"4,1,1,-;NVRM: Xid (PCI:{gpu.pci[:-2]}): 79, fallen off the bus")
    now, discovery = [100.0], Hanging()
    record = Record(clock=lambda: now[0])
    watch = HealthWatch(record, discovery, KernelLog(path, XidReports(clock=lambda: now[0])))
    discovery.sound = frozenset({uuid(3)})
    for now[0] in (100.0, 10_000.0):
        watch.looked(machine(), None)
        assert record.standing().keys() == {gpu.uuid}
    discovery.sound = frozenset({uuid(2)})
    for now[0] in (10_001.0, 10_100.0):
        discovery.read_s = now[0]
        watch.looked(machine(), None)
    assert record.standing() == {}


def test_an_xid_is_not_over_by_a_word_of_the_driver_from_before_it(tmp_path: Path) -> None:
    gpu = machine().gpus[2]
    (path := tmp_path / "kmsg").write_text("")
    now, discovery = [1000.0], Hanging()
    record = Record(clock=lambda: now[0])
    watch = HealthWatch(record, discovery, KernelLog(path, XidReports(clock=lambda: now[0])))
    discovery.sound, discovery.read_s = frozenset({gpu.uuid}), 1000.0
    watch.looked(machine(), None)
    path.write_text(f"4,1,{1005 * 10**6},-;NVRM: Xid (PCI:{gpu.pci[:-2]}): 119, Timeout waiting for RPC from GSP!")
    for now[0], said in ((1005.0, None), (1065.0, None), (1100.0, "the driver hangs"), (1200.0, "the driver hangs")):
        watch.looked(machine(), said)
        assert "xid" in [one.fault.kind for one in record.standing()[gpu.uuid]]
    for now[0] in (1210.0, 1300.0):
        discovery.read_s = now[0]
        watch.looked(machine(), None)
    assert record.standing() == {}
