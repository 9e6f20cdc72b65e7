"""Tables are made in another process, in turns, and whatever becomes of that process."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dradriver.allocator.fleet import machine_kinds
from dradriver.cluster.gpus.tabulating import MOST_PAUSE_S, AtOnce, Tabulator
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, PathType
from tests.fakes import machines
from tests.fakes.computed import forget_tables
from tests.fakes.gpucluster import GpuCluster, Killed

DIES = (sys.executable, "-c", "raise SystemExit('no memory')")
HANGS = (sys.executable, "-c", "import time; time.sleep(1000)")
TALKS = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes([255]) * 64)")
MISSING = ("/no/such/program",)
MAKES = (sys.executable, "-m", machine_kinds.__name__)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    forget_tables()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def kind(number: int) -> Machine:
    """Machines of one GPU, no two of a kind."""
    return machines.build("one", paths=[[PathType.SELF]], pcie_gbps=300.0 + number)


async def made(tabulator: Tabulator, *nodes: str) -> list[str]:
    """Run until these nodes can be placed on; those that were told of in the order in which they were."""
    told: list[str] = []
    done = asyncio.Event()

    def tell(node: str) -> None:
        told.append(node)
        if set(nodes) <= set(told):
            done.set()

    tabulator.made.add(tell)
    running = asyncio.create_task(tabulator.run())
    async with asyncio.timeout(30):
        await done.wait()
    running.cancel()
    await asyncio.wait([running])
    return told


def script(path: Path, command: Sequence[str], *, first: str = ":") -> None:
    """Write a program that runs one shell command and then becomes another command."""
    path.write_text(f"#!/bin/sh\n{first}\nexec {shlex.join(command)}\n")
    path.chmod(0o755)


def is_running(pid: int) -> bool:
    """Return whether a process exists. One that has ended exists until its parent waits for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def failed(tabulator: Tabulator, caplog: pytest.LogCaptureFixture, times: int = 1) -> None:
    """Run until making tables has failed so often."""
    running = asyncio.create_task(tabulator.run())
    async with asyncio.timeout(30):
        while len(caplog.records) < times:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_a_new_kind_is_made_in_another_process_once_for_all_nodes_that_have_it() -> None:
    tabulator = Tabulator()
    for node in "ab":
        assert not tabulator.ready(node, profiles.load("hgx-h100", seed=node))
    assert not tabulator.ready("c", kind(1))
    assert await made(tabulator, "a", "b", "c") == ["a", "b", "c"]
    assert tabulator.ready("d", profiles.load("hgx-h100", seed="d"))
    assert tabulator.ready("c", kind(1))


async def test_the_process_is_there_only_while_there_is_something_to_do(tmp_path: Path) -> None:
    program, pid = tmp_path / "program", tmp_path / "pid"
    script(program, MAKES, first=f"echo $$ >{shlex.quote(str(pid))}")
    tabulator = Tabulator(command=(str(program),))
    done = asyncio.Event()
    seen: list[bool] = []

    def tell(_: str) -> None:
        seen.append(is_running(int(pid.read_text())))
        done.set()

    tabulator.made.add(tell)
    running = asyncio.create_task(tabulator.run())
    for number in (1, 2):
        assert not tabulator.ready("a", kind(number))
        async with asyncio.timeout(30):
            await done.wait()
        done.clear()
        assert seen == [True] * number
        assert not is_running(int(pid.read_text()))
    running.cancel()
    await asyncio.wait([running])


async def test_the_process_ends_with_its_tabulator(tmp_path: Path) -> None:
    program, pid = tmp_path / "program", tmp_path / "pid"
    script(program, HANGS, first=f"echo $$ >{shlex.quote(str(pid))}")
    tabulator = Tabulator(command=(str(program),))
    tabulator.ready("a", kind(1))
    running = asyncio.create_task(tabulator.run())
    async with asyncio.timeout(30):
        while not (pid.exists() and pid.read_text().endswith("\n")):
            await asyncio.sleep(0.01)
    assert is_running(int(pid.read_text()))
    running.cancel()
    await asyncio.wait([running])
    assert not is_running(int(pid.read_text()))


async def test_a_node_that_went_is_not_waited_for() -> None:
    tabulator = Tabulator()
    tabulator.ready("a", kind(1))
    tabulator.forget("a")
    tabulator.ready("b", kind(2))
    assert await made(tabulator, "b") == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [DIES, TALKS, None])
async def test_a_process_that_is_no_good_is_tried_again_after_a_pause(
    command: tuple[str, ...] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, program = Clock(), tmp_path / "program"
    if command is not None:
        script(program, command)
    tabulator = Tabulator(command=(str(program),), clock=clock)
    tabulator.ready("a", kind(1))
    await failed(tabulator, caplog)
    assert "Node a: the tables of this kind of machine" in caplog.text
    assert tabulator.next_node(clock.now) is None
    clock.now += 2
    script(program, MAKES)
    assert await made(tabulator, "a") == ["a"]


@pytest.mark.slow
async def test_a_kind_that_takes_too_long_is_given_up_and_the_others_have_their_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    tabulator = Tabulator(command=HANGS, clock=clock, timeout_s=0.2)
    for node in ("a", "twin"):
        tabulator.ready(node, kind(1))
    tabulator.ready("b", kind(2))
    caplog.set_level(logging.WARNING)
    await failed(tabulator, caplog, times=2)
    told = [record.getMessage().partition(": the tables")[0] for record in caplog.records]
    assert told == ["Node a", "Node b"], "the twin has had its turn too"


async def test_a_node_that_is_another_machine_all_the_time_has_its_turn_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    tabulator = Tabulator(command=MISSING, clock=clock)
    at = []
    for second in range(2000):
        clock.now = 1000.0 + second
        tabulator.ready("odd", kind(second))
        if tabulator.next_node(clock.now) == "odd":
            at.append(second)
            await failed(tabulator, caplog, times=len(at))
    assert at == [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 1622]


async def test_a_node_that_had_no_turn_yet_comes_before_one_that_had() -> None:
    clock = Clock()
    tabulator = Tabulator(clock=clock)
    tabulator.ready("odd", kind(1))
    assert await made(tabulator, "odd") == ["odd"]
    for number, node in enumerate(("odd", "a", "b"), start=2):
        tabulator.ready(node, kind(number))
    clock.now += 100
    assert await made(tabulator, "odd", "a", "b") == ["a", "b", "odd"]


async def test_a_node_that_comes_back_at_once_has_used_up_its_turns_and_after_an_hour_it_has_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    tabulator = Tabulator(command=MISSING, clock=clock)
    tabulator.ready("odd", kind(1))
    for times in range(1, 21):
        clock.now += MOST_PAUSE_S
        await failed(tabulator, caplog, times=times)
    tabulator.forget("odd")
    tabulator.ready("odd", kind(1))
    assert tabulator.next_node(clock.now + 599) is None
    clock.now += 3601
    await failed(tabulator, caplog, times=21)
    assert tabulator.next_node(clock.now + 2) == "odd", "as if it had never had a turn before"


async def test_the_loop_is_not_held_while_tables_are_made() -> None:
    tabulator = Tabulator()
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    going_on = asyncio.create_task(others())
    tabulator.ready("a", kind(1))
    await made(tabulator, "a")
    going_on.cancel()
    assert passes > 100


class Late(AtOnce):
    """Has no tables until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.there: set[str] = set()

    def ready(self, node: str, machine: Machine) -> bool:
        return node in self.there


def cluster_of(*nodes: str) -> tuple[GpuCluster, Late]:
    cluster = GpuCluster()
    late = restarted(cluster)
    for node in nodes:
        cluster.node(node)
    return cluster, late


def restarted(cluster: GpuCluster) -> Late:
    """Replace the controller by one that has no tables yet, and return these."""
    cluster.tables = late = Late()
    cluster.restart()
    return late


def tell(late: Late, node: str) -> None:
    late.there.add(node)
    late.made(node)


async def test_nothing_is_placed_on_a_node_whose_tables_are_not_there_and_its_pods_are_told() -> None:
    cluster, late = cluster_of("a")
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "GPUs not assessed yet" in (cluster.note("p", "reason") or "")
    tell(late, "a")
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_nor_is_a_gang_and_it_is_not_told_that_there_are_too_few() -> None:
    cluster, late = cluster_of("a", "b")
    late.there.add("a")
    for pod in ("p-0", "p-1"):
        cluster.pod(pod, 8, wishes={"gang": "p", "gang-size": "2"})
    await cluster.settle()
    assert cluster.claim("p-0") is None
    assert (cluster.note("p-0", "reason") or "").endswith("Nodes left out: GPUs not assessed yet.")
    tell(late, "b")
    await cluster.settle()
    assert {cluster.gpus(pod)[0] for pod in ("p-0", "p-1")} == {"a", "b"}


async def test_a_leader_without_tables_gives_nothing_back_of_a_gang_that_is_half_lifted() -> None:
    cluster, late = cluster_of("a", "b")
    late.there |= {"a", "b"}
    pods = ["p-0", "p-1"]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "p", "gang-size": "2"})
    cluster.client.kill_at = -5  # two claims are made, two pods nominated, one lifted
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    assert len([pod for pod in pods if cluster.get_pod(pod)["spec"]["schedulingGates"]]) == 1
    made = [cluster.claim(pod) for pod in pods]
    late = restarted(cluster)
    await cluster.settle()
    assert [cluster.claim(pod) for pod in pods] == made
    for node in "ab":
        tell(late, node)
    await cluster.settle()
    assert not any(cluster.get_pod(pod)["spec"]["schedulingGates"] for pod in pods)
    assert [cluster.claim(pod) for pod in pods] == made


async def test_others_are_placed_meanwhile() -> None:
    cluster, late = cluster_of("a", "b")
    late.there.add("b")
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"
    assert cluster.worker.picture.inventory.aside == {"a"}


async def test_what_is_promised_of_a_node_that_becomes_another_machine_stays_promised() -> None:
    cluster, late = cluster_of("a")
    late.there.add("a")
    cluster.pod("first", 4)
    await cluster.settle()
    held = cluster.gpus("first")
    late.there.clear()
    cluster.publish("a", cluster.machines["a"])
    await cluster.settle()
    assert cluster.worker.picture.inventory.aside == {"a"}
    assert cluster.gpus("first") == held
    tell(late, "a")
    cluster.pod("second", 4)
    await cluster.settle()
    assert cluster.gpus("second")[0] == "a"
    assert not set(cluster.gpus("second")[1]) & set(held[1])


async def test_a_claim_that_a_crash_left_to_a_gated_pod_waits_for_the_tables_of_its_node() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    cluster.client.kill_at = 2  # the claim is created, the pod is not lifted
    with pytest.raises(Killed):
        await cluster.settle()
    held = cluster.gpus("p")
    late = restarted(cluster)
    await cluster.settle()
    assert cluster.gpus("p") == held
    assert cluster.get_pod("p")["spec"]["schedulingGates"]
    tell(late, "a")
    await cluster.settle()
    assert cluster.gpus("p") == held
    assert not cluster.get_pod("p")["spec"]["schedulingGates"]


async def test_a_node_that_goes_leaves_the_unassessed_nodes() -> None:
    cluster, _ = cluster_of("a")
    cluster.pod("p", 8)
    await cluster.settle()
    for piece in cluster.all(RESOURCE_SLICES):
        cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    cluster.remove(NODES, "a")
    await cluster.settle()
    assert not cluster.worker.picture.inventory.aside
