"""What the kernel's log says of a GPU stays that GPU's: another one in its place begins without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dradriver.node.discovery.simulated_machine import without
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.health.kernel_log import KernelLog, Reports
from dradriver.node.vendors.amd.amd_reports import AmdReports
from dradriver.node.vendors.nvidia.xid_reports import XidReports
from dradriver.topology.machine import Machine
from tests.fakes.agents import Hanging
from tests.fakes.node import machine

WHOLE = machine()
OLD = WHOLE.gpus[2]
NEW = "GPU-11111111-2222-3333-4444-555555555555"
LOGS = pytest.mark.parametrize(
    ("reports", "line", "kind"),
    [
        (lambda: XidReports(clock=lambda: 100.0), f"NVRM: Xid (PCI:{OLD.pci[:-2]}): 79, fallen off the bus", "xid"),
        (AmdReports, f"amdgpu {OLD.pci}: amdgpu: 2 uncorrectable hardware errors detected in umc block", "ras"),
    ],
)
FOUND = f"pci {OLD.pci}: [10de:1db1] type 00 class 0x030200 PCIe Endpoint"


class Agent:
    """What one process of the agent knows of faults."""

    def __init__(self, reports: Reports, folder: Path) -> None:
        self.log = KernelLog(folder / "kmsg", reports)
        self.record = Record(clock=lambda: 100.0)
        self.watch = HealthWatch(self.record, Hanging(), self.log)

    def kernel(self, *lines: str) -> None:
        """Have the kernel log these."""
        for line in lines:
            self.log.take(f"4,1,1000000,-;{line}".encode())

    def reads(self, found: Machine) -> dict[str, list[str]]:
        """Return the faults that the log tells of after a reading."""
        self.watch.looked(found, None)
        standing = self.record.standing().items()
        kinds = {uuid: [one.fault.kind for one in some if one.fault.kind != "lost"] for uuid, some in standing}
        return {uuid: some for uuid, some in kinds.items() if some}


def at(found: Machine, position: int, **fields: str) -> Machine:
    gpus = list(found.gpus)
    gpus[position] = msgspec.structs.replace(gpus[position], **fields)
    return msgspec.structs.replace(found, gpus=tuple(gpus))


REPLACED = at(WHOLE, 2, uuid=NEW)


@LOGS
def test_a_gpu_in_the_place_of_another_has_none_of_its_faults(
    tmp_path: Path, reports: Callable[[], Reports], line: str, kind: str
) -> None:
    agent = Agent(reports(), tmp_path)
    agent.reads(WHOLE)
    agent.kernel(line)
    assert agent.reads(WHOLE) == {OLD.uuid: [kind]}
    assert agent.reads(without(WHOLE, {"2"})) == {OLD.uuid: [kind]}
    assert agent.reads(REPLACED) == {OLD.uuid: [kind]}
    agent.kernel(line)
    assert agent.reads(REPLACED) == {OLD.uuid: [kind], NEW: [kind]}


@LOGS
def test_a_fault_goes_with_its_gpu_to_another_place(
    tmp_path: Path, reports: Callable[[], Reports], line: str, kind: str
) -> None:
    agent = Agent(reports(), tmp_path)
    agent.reads(WHOLE)
    agent.kernel(line)
    other = WHOLE.gpus[3]
    swapped = at(at(WHOLE, 2, pci=other.pci), 3, pci=OLD.pci)
    for found in (WHOLE, swapped, at(WHOLE, 2, pci="0000:ff:00.0"), REPLACED, WHOLE):
        assert agent.reads(found) == {OLD.uuid: [kind]}


@LOGS
def test_a_new_agent_knows_from_the_log_that_another_gpu_was_put_in(
    tmp_path: Path, reports: Callable[[], Reports], line: str, kind: str
) -> None:
    agent = Agent(reports(), tmp_path)
    agent.kernel(FOUND, line, FOUND)
    assert agent.reads(REPLACED) == {}
    agent.kernel(line)
    assert agent.reads(REPLACED) == {NEW: [kind]}


@LOGS
def test_what_comes_after_it_was_put_in_is_its_own_before_the_first_reading_of_it(
    tmp_path: Path, reports: Callable[[], Reports], line: str, kind: str
) -> None:
    agent = Agent(reports(), tmp_path)
    agent.reads(WHOLE)
    agent.kernel(FOUND, line)
    assert agent.reads(REPLACED) == {NEW: [kind]}
