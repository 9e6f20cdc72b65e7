"""Gangs that come and go on a cluster which is too small for all, while the controller is killed again and again."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import random
import signal
from collections.abc import Callable
from typing import Any, Final

from dradriver.kube.client import ApiError, PatchKind
from dradriver.kube.resources import LEASES, PODS
from tests.bench.gangs.seen import Seen, now, seeing
from tests.bench.gangs.verdicts import Clock, Verdicts
from tests.bench.throughput import usage, workloads
from tests.bench.throughput.crowd import crowd
from tests.bench.throughput.numbers import percentile
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.workloads import NAMESPACE, OURS
from tests.cluster.errors import ClusterError
from tests.deploy import NAMESPACE as DRIVER_NAMESPACE

_LEASE: Final = "gpu-topology-controller"
_LEADS_S: Final = 60  # until a controller that was started leads
_WAIT_S: Final = 600  # until a gang has started once no more come: large ones wait for small ones, which go first
_EMPTY_S: Final = 90  # until no claim is left of pods that are gone
_ALL_S: Final = 120  # until a gang of all GPUs is bound
_CREATING: Final = 8  # of one gang's pods at a time
_CANCELLED: Final = 0.05  # of the gangs, a moment after they came


class Churn:
    """One run."""

    def __init__(self, stage: Stage, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
        """``say`` prints a line."""
        self._stage, self._asked, self._say = stage, asked, say
        self._random = random.Random(asked.seed)
        self._sizes: dict[str, int] = {}
        self._waits: list[float] = []
        self._never: list[str] = []
        self._cancelled = self._kills = self._pods = 0
        self._cpu_s = 0.0
        self._took_s = 0.0
        self._wrong: dict[str, list[str]] = {}
        self._bound_s: list[float] = []
        self._clock = Clock()
        self._to_come = asked.gangs
        self._last_came = asyncio.Event()
        self._killed_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    async def run(self) -> None:
        """Have all gangs come and go, then see that every GPU is free, also by the controller's own books."""
        driver = self._stage.drivers[OURS]
        async with driver.running("webhook"), seeing(self._stage.client) as seen:
            verdicts = Verdicts(seen, self._clock, self._sizes)
            led = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                leader = tasks.create_task(self._lead(led))
                looks = tasks.create_task(self._look(seen, verdicts))
                await led.wait()
                begun = now()
                gangs = [self._gang(number) for number in range(self._asked.gangs)]
                await crowd(lambda each: self._live(seen, verdicts, *each), gangs, at_once=self._asked.at_once)
                self._took_s = now() - begun
                if not await seen.until(lambda: not seen.claims, seconds=_EMPTY_S):
                    verdicts.nothing_left()
                await self._all(seen, verdicts)
                looks.cancel()
                leader.cancel()
        self._wrong = verdicts.wrong | {"never started": self._never}
        self._bound_s = list(verdicts.bound_s.values())
        await self._stage.clear()

    def figures(self) -> dict[str, Any]:
        """Return and print what was seen."""
        bound, wrong = self._bound_s, self._wrong
        counts = {kind: len(which) for kind, which in wrong.items()}
        self._say(
            f"{self._asked.gangs} gangs of {self._pods} pods in {self._took_s:.0f} s, {self._cancelled} of them "
            f"cancelled; the controller was killed {self._kills} times"
        )
        self._say("  " + ", ".join(f"{kind} {count}" for kind, count in counts.items()))
        for kind, which in wrong.items():
            for text in which[:20]:
                self._say(f"  {kind}: {text}")
        self._say(f"  seconds from a gang's first bound pod to its last: {_spread(bound)}")
        self._say(f"  seconds from its last pod's creation until it was bound: {_spread(self._waits)}")
        self._say(f"  controller: {1000 * self._cpu_s / max(self._pods, 1):.1f} ms CPU a pod")
        figures = counts | {
            "bound_s": bound,
            "waits_s": self._waits,
            "kills": self._kills,
            "pods": self._pods,
            "took_s": self._took_s,
            "cpu_s": self._cpu_s,
        }
        return {"churn": figures, "wrong": [text for each in wrong.values() for text in each]}

    # Gangs.

    def _gang(self, number: int) -> tuple[str, int, int, bool, float]:
        """Return a gang's name, pods, GPUs of each, whether it is cancelled, and how long it lives."""
        room = self._stage.machines.count * self._stage.machines.gpus
        size = round(2 * (self._asked.pods / 2) ** self._random.random())
        gpus = self._random.choice([each for each in (1, 2, 4, 8, 8) if each * size <= room])
        cancelled = self._random.random() < _CANCELLED
        return f"churn{number}", size, gpus, cancelled, self._random.uniform(1, 8)

    async def _live(
        self, seen: Seen, verdicts: Verdicts, name: str, size: int, gpus: int, cancelled: bool, life_s: float
    ) -> None:
        self._sizes[name] = size
        self._pods += size
        works = workloads.gang(name, size, gpus=gpus)
        await crowd(self._stage.add, works, at_once=_CREATING)
        begun = now()
        self._to_come -= 1
        if not self._to_come:
            self._last_came.set()
        if cancelled:
            self._cancelled += 1
            await asyncio.sleep(life_s)
        elif await self._starts(seen, verdicts, name):
            self._waits.append(now() - begun)
            await asyncio.sleep(life_s)
        else:
            pod = seen.pods.get(works[0].name)
            told = {} if pod is None else {k: v for k, v in pod.metadata.annotations.items() if "reason" in k}
            bound = sum(seen.pods[work.name].bound for work in works if work.name in seen.pods)
            self._never.append(f"{name}: {size} pods of {gpus} GPUs, {bound} bound, {told}")
        verdicts.ends(name)
        if life_s > 4 and not cancelled:
            await crowd(self._finish, works, at_once=_CREATING)
            await asyncio.sleep(1)
        await crowd(lambda work: self._stage.delete(work.name), works, at_once=_CREATING)

    async def _starts(self, seen: Seen, verdicts: Verdicts, name: str) -> bool:
        """Return whether a gang is bound as a whole, while others come or a while after the last has."""
        while not self._last_came.is_set():
            if await seen.until(lambda: name in verdicts.whole or self._last_came.is_set(), seconds=1):
                break
        return await seen.until(lambda: name in verdicts.whole, seconds=_WAIT_S)

    async def _finish(self, work: workloads.Work) -> None:
        """Say what a kubelet says of a pod whose containers have ended well."""
        body = {"status": {"phase": "Succeeded"}}
        client = self._stage.client
        await client.patch(PODS, work.name, body, kind=PatchKind.MERGE, namespace=NAMESPACE, subresource="status")

    async def _all(self, seen: Seen, verdicts: Verdicts) -> None:
        """Have a gang take all GPUs: the controller's own books show whether it lost one."""
        name, size = "all", self._stage.machines.count
        self._sizes[name] = size
        works = workloads.gang(name, size, gpus=self._stage.machines.gpus)
        begun = now()
        await self._stage.create(works)
        if not await seen.until(lambda: name in verdicts.whole, seconds=_ALL_S):
            pod = seen.pods[works[0].name]
            self._never.append(f"a gang of all {size} nodes, afterwards: {pod.metadata.annotations}")
        self._say(f"a gang of all {size} nodes afterwards: bound after {now() - begun:.1f} s")
        verdicts.ends(name)

    # The leader.

    async def _lead(self, led: asyncio.Event) -> None:
        """Run the controller, and kill it as no program can see coming."""
        driver = self._stage.drivers[OURS]
        while True:
            async with driver.running("controller"):
                pid = driver.pids["controller"]
                await self._leads()
                led.set()
                self._clock.go_on()
                try:
                    await asyncio.sleep(self._random.uniform(*self._asked.kill_every))
                finally:
                    self._cpu_s += usage.cpu_seconds(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    raise ClusterError("the controller ended by itself") from None
                self._killed_at = datetime.datetime.now(datetime.UTC)
                self._clock.stop()
                self._kills += 1

    async def _leads(self) -> None:
        """Wait until the lease was renewed by whom was started last.

        Raises:
            ClusterError: It was not in time.
        """
        for _ in range(_LEADS_S * 5):
            try:
                lease = await self._stage.client.get(LEASES, _LEASE, namespace=DRIVER_NAMESPACE)
                if datetime.datetime.fromisoformat(lease["spec"]["renewTime"]) > self._killed_at:
                    return
            except ApiError as error:
                if not error.not_found:
                    raise
            await asyncio.sleep(0.2)
        raise ClusterError(f"the controller does not lead after {_LEADS_S} s")

    async def _look(self, seen: Seen, verdicts: Verdicts) -> None:
        for second in range(10**9):
            verdicts.look()
            if second % 30 == 0:
                waiting = sum(not pod.bound for pod in seen.pods.values())
                held = sum(len(claim.gpus) for claim in seen.claims.values())
                self._say(f"{second:4} s: {len(verdicts.whole)} gangs have run, {waiting} pods wait, {held} GPUs held, "
                    f"{verdicts.figures()}; load {os.getloadavg()[0]:.1f}")  # fmt: skip
            await asyncio.sleep(1)


def _spread(values: list[float]) -> str:
    return " / ".join(f"{percentile(values, part):.1f}" for part in (50, 90, 99, 100)) + " (p50 / p90 / p99 / most)"
