"""The benchmark sees what must never be, measures what it says, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from dradriver.kube.client import Client
from tests import needs
from tests.bench.gangs import verdicts
from tests.bench.gangs.kubelets import Kubelets
from tests.bench.gangs.seen import Allocation, Claim, ClaimStatus, Devices, Metadata, Owner, Pod, PodSpec, Result, Seen
from tests.bench.gangs.verdicts import DEADLINE_S, KEPT_S, Clock, Verdicts
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO


class World:
    """Two gangs of two pods, at a time that the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        monkeypatch.setattr(verdicts, "now", lambda: self.time)
        self.seen, self.clock = Seen(), Clock()
        self.verdicts = Verdicts(self.seen, self.clock, {"a": 2, "b": 2})
        self.clock.go_on()

    def pod(self, name: str, node: str = "", *, there: bool = True) -> None:
        self.seen.take(Pod(Metadata(name, uid=f"uid-{name}"), PodSpec(node)), there=there)

    def claim(self, name: str, *gpus: str, there: bool = True) -> None:
        """Take in a claim of the pod of the same name."""
        results = [Result("gpu.topology", "node", gpu) for gpu in gpus] + [Result("gpu.topology", "gang/seats", "seat")]
        status = ClaimStatus(Allocation(Devices(results)) if gpus else None)
        self.seen.take(Claim(Metadata(name, owner_references=[Owner(f"uid-{name}")]), status), there=there)

    def after(self, seconds: float) -> dict[str, list[str]]:
        """Return what is wrong after some more seconds."""
        self.time += seconds
        self.verdicts.look()
        return {kind: which for kind, which in self.verdicts.wrong.items() if which}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world with all pods of one gang."""
    world = World(monkeypatch)
    world.pod("a-0")
    world.pod("a-1")
    return world


def test_a_gang_that_is_bound_by_halves_for_long_is_wrong(world: World) -> None:
    world.pod("a-0", "n1")
    assert world.after(DEADLINE_S - 1) == {}
    assert world.after(2) == {"partly bound": ["a: 1 of 2"]}
    world.pod("a-1", "n2")
    assert world.verdicts.whole == {"a"}
    assert world.verdicts.bound_s == {"a": DEADLINE_S + 1}


def test_while_there_is_no_leader_no_deadline_passes(world: World) -> None:
    world.pod("a-0", "n1")
    world.after(DEADLINE_S - 1)
    world.clock.stop()
    assert world.after(60) == {}
    world.clock.go_on()
    assert world.after(0.5) == {}
    assert list(world.after(1)) == ["partly bound"]


def test_a_gang_whose_pods_end_one_after_another_is_not_bound_by_halves(world: World) -> None:
    world.pod("a-0", "n1")
    world.pod("a-1", "n2")
    world.verdicts.ends("a")
    world.pod("a-0", there=False)
    world.pod("a-1", "n2")
    assert world.after(60) == {}


def test_gpus_of_a_pod_that_is_gone_are_lost_after_a_while(world: World) -> None:
    world.claim("a-0", "g1", "g2")
    assert world.after(60) == {}
    world.pod("a-0", there=False)
    assert world.after(0) == {}
    assert world.after(KEPT_S - 1) == {}
    assert world.after(2) == {"GPUs lost": ["a-0: 2 GPUs of a pod that is gone"]}


def test_a_gpu_that_two_claims_hold_is_given_twice_and_a_seat_is_no_gpu(world: World) -> None:
    world.claim("a-0", "g1")
    world.claim("a-1", "g2")
    assert world.after(0) == {}
    world.claim("a-1", "g1")
    assert world.after(0) == {"GPUs given twice": ["node/g1: a-0, a-1"]}


class Written:
    """A client that only notes what is written."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, object]] = []
        self.connection = self

    async def patch(self, resource: object, name: str, body: Any, **how: object) -> None:
        self.writes.append((name, body["status"]["phase"]))

    async def request(self, method: str, path: str, *, body: dict[str, Any]) -> None:
        self.writes.append((path.rpartition("/")[2], (method, body["gracePeriodSeconds"])))


async def test_a_pod_that_is_told_to_end_has_ended_before_it_goes() -> None:
    seen, client = Seen(), Written()
    async with asyncio.TaskGroup() as tasks:
        kubelets = Kubelets(cast("Client", client), seen, random.Random(1), tasks)
        seen.take(Pod(Metadata("waits", uid="w")), there=True)
        runs = Pod(Metadata("runs", uid="r"), PodSpec("n1", termination_grace_period_seconds=0))
        seen.take(runs, there=True)
        seen.take(runs, there=True)
        ends = Metadata("runs", uid="r", deletion_timestamp="2026-01-01T00:00:00Z")
        seen.take(Pod(ends, runs.spec), there=True)
        seen.take(Pod(ends, runs.spec), there=True)
    assert client.writes == [("runs", "Running"), ("runs", "Failed"), ("runs", ("DELETE", 0))]
    assert kubelets.told["r"] <= kubelets.ended["r"]


@pytest.mark.extended
@pytest.mark.cluster
def test_a_small_gang_is_bound_after_the_end_of_those_that_end_for_it(tmp_path: Path) -> None:
    needs.real_cluster()
    command = [sys.executable, "-m", "tests.bench.gangs", "--name", "gangs-test", "--json", str(tmp_path / "figures")]
    subprocess.run([*command, "preempt", "--nodes", "3", "--pods", "2", "--rounds", "1"], cwd=REPO, check=True)
    (each,) = json.loads((tmp_path / "figures").read_text())["preempt"]
    assert each["whole"]
    assert each["victims"] > 0
    assert not Nodeless("gangs-test").folder.exists()


@pytest.mark.extended
@pytest.mark.cluster
def test_small_gangs_start_whole_though_the_controller_is_killed(tmp_path: Path) -> None:
    needs.real_cluster()
    command = [sys.executable, "-m", "tests.bench.gangs", "--name", "gangs-test", "--json", str(tmp_path / "figures")]
    size = ["--nodes", "6", "--pods", "5", "--gangs", "6", "--at-once", "4", "--kill-every", "5", "9"]
    subprocess.run([*command, "churn", *size], cwd=REPO, check=True)
    figures = json.loads((tmp_path / "figures").read_text())
    assert figures["wrong"] == []
    assert figures["churn"]["kills"] > 0
    subprocess.run([*command, "big", "--nodes", "6", "--pods", "5", "--rounds", "1"], cwd=REPO, check=True)
    (big,) = json.loads((tmp_path / "figures").read_text())["big"]
    assert big["claims_s"] <= big["seated_s"] <= big["bound_s"]
    assert big["cpu_ms_a_pod"]["controller"] > 0
    assert not Nodeless("gangs-test").folder.exists()
