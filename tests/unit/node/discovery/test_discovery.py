from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client import REGISTRY

from dradriver.errors import DriverError
from dradriver.node.container_edits import Edits
from dradriver.node.discovery.machine_watch import AGAIN_S, READINGS, MachineWatch
from dradriver.node.discovery.simulated_machine import Simulated, source_for, without
from dradriver.node.errors import RestartError, SetupError
from dradriver.node.faults import Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology import machine_codec
from dradriver.topology.machine import Gpu, Machine
from tests.fakes.node import NODE, eventually, machine, uuid
from tests.paths import REPO, SHARED_DATA


def simulated(folder: Path, node: str = NODE) -> Simulated:
    return Simulated("dgx1-v100", node=node, folder=folder)


def test_a_nodes_machine_is_the_same_at_every_start_and_no_other_nodes(tmp_path: Path) -> None:
    assert simulated(tmp_path).read() == simulated(tmp_path).read() == machine()
    ours = {gpu.uuid for gpu in simulated(tmp_path).read().gpus}
    assert not ours & {gpu.uuid for gpu in simulated(tmp_path, "node-b").read().gpus}


@pytest.mark.parametrize("line", ["2", uuid(2)])
def test_a_gpu_that_is_named_lost_is_gone_until_it_is_not(tmp_path: Path, line: str) -> None:
    found = simulated(tmp_path)
    (tmp_path / "lost").write_text(f"{line}\n\n")
    assert [gpu.uuid for gpu in found.read().gpus] == [uuid(i) for i in (0, 1, 3, 4, 5, 6, 7)]
    (tmp_path / "lost").unlink()
    assert found.read() == machine()


@pytest.mark.shared_data
def test_of_two_gpus_without_peer_access_a_simulated_node_keeps_one_off(tmp_path: Path) -> None:
    source = SHARED_DATA / "reports" / "30-hgx-p2p-refused-between-two.json"
    found = Simulated(str(source), node=NODE, folder=tmp_path)
    gpus = found.read().gpus
    faults = {uuid: [fault.key for fault in some] for uuid, some in found.faults.items() if some}
    assert faults == {gpus[1].uuid: ["gpu.topology/nvlink"]}


def test_a_lost_gpu_changes_nothing_of_the_others() -> None:
    left = without(machine(), {"2", uuid(5)})
    keep = [0, 1, 3, 4, 6, 7]
    assert [gpu.index for gpu in left.gpus] == keep
    assert [(gpu.uuid, gpu.minor, gpu.pci) for gpu in left.gpus] == [
        (machine().gpus[i].uuid, machine().gpus[i].minor, machine().gpus[i].pci) for i in keep
    ]
    assert left.links[2][3] == machine().links[3][4]
    assert left.paths[0][5] == machine().paths[0][7]
    assert [row[2] for row in left.nic_paths] == [row[3] for row in machine().nic_paths]
    assert machine_codec.decode(machine_codec.encode(left)) == left


def test_all_gpus_may_be_lost(tmp_path: Path) -> None:
    (tmp_path / "lost").write_text("\n".join(str(i) for i in range(8)))
    assert simulated(tmp_path).read().gpus == ()


def test_a_nodes_own_machine_wins_over_the_default_and_one_of_them_must_be_there() -> None:
    assert source_for("a", machines={"a": "dgx-h100"}, default="dgx1-v100") == "dgx-h100"
    assert source_for("b", machines={"a": "dgx-h100"}, default="dgx1-v100") == "dgx1-v100"
    with pytest.raises(SetupError, match=r"--simulated-machine=b=PROFILE. Profiles: .*dgx1-v100"):
        source_for("b", machines={"a": "dgx-h100"}, default=None)


def test_an_unknown_profile_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="dgx-9000"):
        Simulated("dgx-9000", node=NODE, folder=tmp_path)


class Scripted:
    """A discovery that gives one answer after the other, and the last for ever."""

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = False

    def __init__(self, *answers: Machine | Exception) -> None:
        self.answers = list(answers)

    def edits(self, gpu: Gpu) -> Edits:
        raise NotImplementedError

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        return {}

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    def read(self) -> Machine:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def gpus(watch: MachineWatch) -> int | None:
    return None if watch.machine is None else len(watch.machine.gpus)


@pytest.mark.looptime
async def test_the_machine_is_read_again_and_only_a_change_is_told() -> None:
    less = without(machine(), {"2"})
    told: list[int | None] = []
    watch = MachineWatch(
        Scripted(machine(), machine(), SetupError("hiccup"), less),
        interval_s=10,
    )
    watch.changed.add(lambda: told.append(gpus(watch)))
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(20 + AGAIN_S / 2)
    assert (watch.machine, told) == (machine(), [8])
    await asyncio.sleep(30)
    assert (watch.machine, told) == (less, [8, 7])
    task.cancel()


@pytest.mark.looptime
async def test_a_poke_reads_the_machine_at_once() -> None:
    changed = asyncio.Event()
    watch = MachineWatch(Scripted(machine(), without(machine(), {"2"})), interval_s=1000)
    watch.changed.add(changed.set)
    task = asyncio.create_task(watch.run())
    await asyncio.wait_for(changed.wait(), 1)
    changed.clear()
    watch.poke()
    await asyncio.wait_for(changed.wait(), 1)
    task.cancel()


@pytest.mark.looptime
async def test_a_machine_whose_driver_is_loaded_again_is_of_no_pod_until_it_is_read_again() -> None:
    less = without(machine(), {"2"})
    done: list[str] = []
    stale = False

    async def withdraw() -> None:
        done.append("withdrawn")
        raise OSError("disk full")

    found = Scripted(machine(), SetupError("the driver is let go"), less)
    watch = MachineWatch(found, interval_s=1000, is_stale=lambda: stale, withdraw=withdraw)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(100)
    assert (watch.current, done) == (machine(), [])
    stale = True
    assert (watch.current, watch.machine) == (None, machine())
    await asyncio.sleep(1)
    assert (watch.current, watch.machine, done) == (None, machine(), ["withdrawn"])
    stale = False
    await asyncio.sleep(AGAIN_S)
    assert (watch.current, done) == (less, ["withdrawn"])
    task.cancel()


@pytest.mark.looptime
async def test_a_machine_that_cannot_be_read_at_first_is_read_later() -> None:
    watch = MachineWatch(Scripted(SetupError("not yet"), machine()), interval_s=10)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(AGAIN_S / 2)
    assert watch.machine is None
    await asyncio.sleep(AGAIN_S)
    assert watch.machine == machine()
    task.cancel()


@pytest.mark.looptime
async def test_a_reading_that_surprises_is_one_that_fails_and_says_where(caplog: pytest.LogCaptureFixture) -> None:
    bad = [KeyError("odd")] * READINGS
    watch = MachineWatch(Scripted(machine(), *bad, machine()), interval_s=10)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(10 + (READINGS - 1) * AGAIN_S + 1)
    assert (watch.machine, watch.trouble is None) == (machine(), False)
    assert caplog.text.count("Traceback") == 1
    await asyncio.sleep(AGAIN_S)
    assert watch.trouble is None
    task.cancel()


async def test_an_agent_that_can_read_no_more_ends() -> None:
    watch = MachineWatch(Scripted(machine(), RestartError("new driver")), interval_s=0.001)
    with pytest.raises(RestartError, match="new driver"):
        await watch.run()


class Hanging(Scripted):
    """A driver that hangs from its second reading on, until it is released."""

    slow = True

    def __init__(self, *answers: Machine | DriverError) -> None:
        super().__init__(*answers)
        self.released = threading.Event()

    def read(self) -> Machine:
        if len(self.answers) == 1:
            self.released.wait(timeout=60)
        return super().read()


async def test_a_driver_that_hangs_holds_up_nothing_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.PATIENCE_S", 0.001)
    found, changed = Hanging(machine(), without(machine(), {"2"})), asyncio.Event()
    watch = MachineWatch(found, interval_s=0.001)
    watch.changed.add(changed.set)
    caplog.set_level(logging.WARNING)
    task = asyncio.create_task(watch.run())
    await eventually(lambda: "has not answered" in caplog.text and watch.machine is not None)
    assert watch.machine == machine()
    changed.clear()
    found.released.set()
    await asyncio.wait_for(changed.wait(), 50)
    assert gpus(watch) == 7
    task.cancel()


async def test_a_driver_that_hangs_for_long_is_trouble_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.PATIENCE_S", 0.001)
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.HANGS_S", 0.003)
    found, looks = Hanging(machine(), without(machine(), {"2"})), 0

    def looked() -> None:
        nonlocal looks
        looks += 1

    watch = MachineWatch(found, interval_s=0.001)
    watch.looked.add(looked)
    task = asyncio.create_task(watch.run())
    await eventually(lambda: watch.trouble and watch.machine)  # not the first reading, where that is slow
    assert (watch.trouble, watch.machine) == ("the driver has not answered for 0 s", machine())
    assert REGISTRY.get_sample_value("gpu_topology_node_driver_answers") == 0
    assert looks > 1
    found.released.set()
    await eventually(lambda: gpus(watch) == 7 and watch.trouble is None)
    assert REGISTRY.get_sample_value("gpu_topology_node_driver_answers") == 1
    task.cancel()


@pytest.mark.looptime
async def test_readings_that_fail_are_made_again_soon_and_are_trouble_once_there_are_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = [SetupError("hiccup")] * (READINGS - 1)
    watch = MachineWatch(Scripted(machine(), *bad, machine(), *bad, SetupError("worse")), interval_s=10)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(10 + (READINGS - 1) * AGAIN_S + 1)
    assert watch.trouble is None
    assert caplog.text.count("its last known state stays in force: hiccup") == 1
    await asyncio.sleep(10 + READINGS * AGAIN_S)
    assert watch.trouble == f"the GPUs could not be read {READINGS} times in a row: worse"
    assert watch.machine == machine()
    task.cancel()


HANGS = """
import time
from dradriver.process.run import run
from dradriver.node.discovery.machine_watch import MachineWatch

class Hanging:
    slow = True
    def read(self):
        print("hangs", flush=True)
        time.sleep(60)
    def close(self):
        print("closed", flush=True)

raise SystemExit(run(MachineWatch(Hanging(), interval_s=1).run()))
"""


def test_a_driver_that_hangs_does_not_keep_the_process_from_its_end() -> None:
    words = [sys.executable, "-c", HANGS]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        process.terminate()
        assert process.wait(timeout=20) == 0
