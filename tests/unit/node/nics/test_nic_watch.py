"""Ports looked at again and again: what is counted, and what the Node is told once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node import metrics
from dradriver.node.nics import nic_watch, ports
from dradriver.node.nics.gpudirect import Answer
from dradriver.node.nics.nic_watch import NicWatch
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.nic_tree import COUNTERS, DOWN, UP, NicTree, eight

NODE = Reference("Node", "", "n1", "node-uid")
SLOW = UP | {"rate": "200 Gb/sec (4X HDR)"}
NEW = ("flapping", "errors")


class Heard(Recorder):
    """What would be Events."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self.heard: list[tuple[str, str]] = []

    async def record(self, *, about: Reference, reason: str, message: str, **more: Any) -> None:
        """Keep the reason and the message."""
        assert about == NODE
        self.heard.append((reason, message))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(autouse=True)
def _nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test counts from the start."""
    monkeypatch.setattr(metrics.NIC_ERRORS, "_totals", {})
    monkeypatch.setattr(metrics.NIC_ERRORS, "_shown", {})


class Clock:
    """Says 15 s more each time."""

    def __init__(self) -> None:
        """Begin somewhere."""
        self._now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        self._now += nic_watch.INTERVAL_S
        return self._now


def of(tree: NicTree, heard: Heard | None, clock: Callable[[], float] = time.monotonic) -> NicWatch:
    return NicWatch(lambda: ports.read(tree.root), node="n1", events=heard, about=lambda: NODE, clock=clock)


async def looks(seen: NicWatch, times: int) -> None:
    for _ in range(times):
        await seen.look()


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"gpu_topology_{name}", labels)


async def test_what_goes_down_and_comes_back_is_told_once_each(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    await looks(seen, 3)
    assert heard.heard == []
    tree.card(3, port=DOWN)
    await looks(seen, 5)
    ((reason, message),) = heard.heard
    assert reason == "NICPortDown"
    assert message.startswith("Port 1 of mlx5_3 is DOWN (Polling). ")
    tree.card(3)
    await looks(seen, 5)
    assert heard.heard[1:] == [("NICPortRecovered", "The problem is over: port 1 of mlx5_3 is DOWN (Polling).")]


async def test_what_does_not_last_is_not_told(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    for _ in range(2):
        tree.card(3, port=DOWN)
        await seen.look()
        tree.card(3)
        await seen.look()
    assert heard.heard == []


@pytest.mark.slow
async def test_an_hour_of_flapping_and_growing_errors_is_told_once_each_and_so_is_its_end(
    tmp_path: Path, heard: Heard
) -> None:
    tree = NicTree(tmp_path)
    for number in (2, 3):
        tree.card(number)
    seen = of(tree, heard, Clock())
    await looks(seen, 2)
    for n in range(1, 241):
        grown = {"link_downed": 1 + n, "symbol_error": 1000 * n, "port_rcv_errors": 0}
        tree.card(3, port=DOWN if n % 2 else UP, counters=grown)
        await looks(seen, 1)
    assert [reason for reason, _ in heard.heard] == ["NICPortFlapping", "NICPortErrors"]
    assert heard.heard[0][1].startswith("Port 1 of mlx5_3 lost its link 3 times within 1 min. ")
    assert "symbol_error by 9993 within 3 min. " in heard.heard[1][1]
    faults = {kind: value("nic_fault_info", nic="mlx5_3", port="1", node="n1", kind=kind) for kind in NEW}
    assert faults == {"flapping": 1, "errors": 1}
    tree.card(3, counters=grown)
    await looks(seen, 242)
    assert [reason for reason, _ in heard.heard[2:]] == ["NICPortRecovered"]
    assert not any(value("nic_fault_info", nic="mlx5_3", port="1", node="n1", kind=kind) for kind in NEW)


async def test_a_port_that_flaps_slowly_is_not_well_between(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard, Clock())
    for _ in range(6):
        for port in (UP, DOWN):
            tree.card(3, port=port)
            await looks(seen, 3)
    reasons = [reason for reason, _ in heard.heard]
    assert reasons.count("NICPortFlapping") == 1
    assert "NICPortRecovered" not in reasons[reasons.index("NICPortFlapping") :]


async def test_all_that_go_down_together_do_not_come_back_by_that(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    await looks(seen, 1)
    tree.card(0, port=DOWN)
    await looks(seen, 3)
    for number in range(8):
        tree.card(number, port=DOWN)
    await looks(seen, 3)
    assert [reason for reason, _ in heard.heard] == ["NICPortDown"] * 8


async def test_a_slow_port_that_goes_down_is_told_of_both_and_recovers_once(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    tree.card(1, port=SLOW)
    await looks(seen, 2)
    tree.card(1, port=DOWN)
    await looks(seen, 2)
    assert [reason for reason, _ in heard.heard] == ["NICPortSlow", "NICPortDown"]
    tree.card(1)
    await looks(seen, 2)
    assert [reason for reason, _ in heard.heard[2:]] == ["NICPortRecovered"]


async def test_a_card_that_a_pod_takes_is_no_news_nor_that_it_is_back(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    await looks(seen, 2)
    tree.take(2)
    await looks(seen, 3)
    assert value("node_nic_ports", state="active") == 7
    tree.card(2)
    await looks(seen, 3)
    assert heard.heard == []


async def test_a_broken_card_that_a_pod_takes_has_not_recovered(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    seen = of(tree, heard)
    tree.card(2, port=DOWN)
    await looks(seen, 2)
    tree.take(2)
    await looks(seen, 3)
    assert [reason for reason, _ in heard.heard] == ["NICPortDown"]


async def test_it_is_told_once_it_is_known_of_whom(tmp_path: Path, heard: Heard) -> None:
    tree = eight(tmp_path)
    tree.card(3, port=DOWN)
    node: list[Reference] = []
    seen = NicWatch(lambda: ports.read(tree.root), node="n1", events=heard, about=lambda: node[0] if node else None)
    await looks(seen, 4)
    assert heard.heard == []
    node.append(NODE)
    await looks(seen, 4)
    assert [reason for reason, _ in heard.heard] == ["NICPortDown"]


@pytest.mark.slow
async def test_states_rates_and_faults_are_metrics(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    tree.card(3, port=DOWN)
    tree.card(4, port=SLOW)
    tree.card(5, fw_ver="28.37.1014")
    tree.card(8, port=DOWN, parent=0)
    await of(tree, None).look()
    states = {state: value("node_nic_ports", state=state) for state in ("active", "down", "off", "away", "other")}
    assert states == {"active": 7, "down": 1, "off": 0, "away": 0, "other": 0}
    rates = [value("nic_port_rate_gbps", nic=f"mlx5_{n}", port="1") for n in range(9)]
    assert rates == [50.0, 50.0, 50.0, 0.0, 25.0, 50.0, 50.0, 50.0, None]
    faults = {
        (nic, kind)
        for nic in (f"mlx5_{n}" for n in range(9))
        for kind in ("down", "slow", "gid", "firmware")
        if value("nic_fault_info", nic=nic, port="1", node="n1", kind=kind)
    }
    assert faults == {("mlx5_3", "down"), ("mlx5_4", "slow"), ("mlx5_5", "firmware")}


async def test_errors_count_from_the_first_reading_on(tmp_path: Path) -> None:
    def errors(counter: str) -> float | None:
        return value("nic_port_errors_total", nic="mlx5_0", port="1", counter=counter)

    tree = eight(tmp_path)
    seen = of(tree, None)
    await seen.look()
    assert errors("symbol_error") == 0, "totals since the driver was loaded say nothing"
    tree.card(0, counters=COUNTERS | {"symbol_error": 12})
    await seen.look()
    assert errors("symbol_error") == 5
    tree.card(0, counters={"symbol_error": 2})  # the driver was loaded anew
    await seen.look()
    tree.card(0, counters={"symbol_error": 3})
    await seen.look()
    assert errors("symbol_error") == 6
    assert errors("link_downed") == 0


@pytest.mark.slow
async def test_there_are_never_more_series_than_cards_that_a_machine_has(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for number in range(100):
        tree.card(number, port=DOWN if number % 2 else UP)
    seen = of(tree, None)
    await looks(seen, 2)
    text = {
        (sample.name, *sample.labels.values()) for family in REGISTRY.collect() for sample in family.samples
        if sample.name.startswith("gpu_topology_nic_")
    }  # fmt: skip
    assert len([one for one in text if "rate" in one[0]]) <= 65
    assert len([one for one in text if "errors" in one[0]]) <= 65 * len(COUNTERS)
    assert len([one for one in text if "fault" in one[0]]) <= 256


@pytest.mark.slow
async def test_gpudirect_is_asked_until_it_is_known_and_then_now_and_then(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    answers: list[Answer | None] = [None, None, Answer("likely", "by DMA-BUF")]
    asked: list[int] = []

    def ask() -> Answer | None:
        asked.append(1)
        return answers.pop(0) if answers else Answer("yes", "loaded")

    seen = NicWatch(lambda: ports.read(tree.root), node="n1", gpudirect=ask)
    await looks(seen, 10)
    assert len(asked) == 3
    assert [value("node_gpudirect", answer=word) for word in ("yes", "likely", "no")] == [0, 1, 0]
    await looks(seen, nic_watch.GPUDIRECT_EVERY)
    assert [value("node_gpudirect", answer=word) for word in ("yes", "likely", "no")] == [1, 0, 0]


async def test_cards_that_do_not_answer_hold_up_no_reading_and_what_is_known_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nic_watch, "PATIENCE_S", 0.01)
    tree = eight(tmp_path)
    released, hangs = threading.Event(), False

    def read() -> Sequence[ports.NicState]:
        if hangs:
            released.wait(30)
        return ports.read(tree.root)

    seen = NicWatch(read, node="n1", interval_s=0.001)
    assert seen.active() is None
    await seen.look()
    hangs = True
    task = asyncio.create_task(seen.look())
    while "have not answered" not in caplog.text:
        await asyncio.sleep(0.001)
    assert not task.done()
    assert seen.active() == {f"mlx5_{n}": (1,) for n in range(8)}
    released.set()
    await task


async def test_what_goes_wrong_in_a_reading_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def read() -> Sequence[ports.NicState]:
        tries.append(1)
        raise RuntimeError("surprise")

    task = asyncio.create_task(NicWatch(read, node="n1", interval_s=0.001).run())
    while len(tries) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    assert caplog.text.count("cannot be read now") == 1


async def test_a_hosts_watch_asks_for_the_machines_vendor(tmp_path: Path) -> None:
    tree = eight(tmp_path)
    tree.file("proc/cpuinfo", "processor: 0")
    tree.file("sys/kernel/mm/memory_peers/amdkfd/version", "1.0")
    machine: list[Machine | None] = [None]
    seen = nic_watch.of_host(tmp_path, lambda: machine[0], node="n1")
    await seen.look()
    assert value("node_gpudirect", answer="yes") == 0
    machine[0] = profiles.load("mi300x-x8")
    await seen.look()
    assert value("node_gpudirect", answer="yes") == 1
