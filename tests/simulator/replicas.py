"""The controller's processes: one leads, perhaps one stands by, and any of them can be killed at any await."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Callable
from typing import Any, Final, cast

from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.controller.controller import Controller
from dradriver.controller.features.registry import FeatureOptions
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.kube.client import Client
from dradriver.topology.machine import Machine
from tests.simulator.client import Outside, SimClient
from tests.simulator.faults import Plan
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import Server
from tests.simulator.trace import Trace
from tests.simulator.watching import Feed

PROMISE_S: Final = 30.0
UNSCHEDULABLE_S: Final = 5.0
STOP_S: Final = 1.0  # within which cancelled work must have stopped, or the process is ended


def controller(client: SimClient, *, ends_idle: bool, keeps: bool, tables: AtOnce | None = None) -> Controller:
    """Return the controller under test.

    Args:
        client: Its connection to the API server.
        ends_idle: Whether it ends idle pods that ask for it.
        keeps: Whether it stores its reservations.
        tables: Makes the tables of machines.
    """
    api = cast("Client", client)
    return Controller(
        api,
        deadlines=Deadlines(promise_s=PROMISE_S, unschedulable_s=UNSCHEDULABLE_S),
        suspendable=("Job",),
        tables=tables,
        features=FeatureOptions(reservation_namespace="gpu-topology" if keeps else "", ends_idle=ends_idle),
    )


class Later(AtOnce):
    """Has the tables of each machine that a node becomes up to two seconds after it was asked for them."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[str, Machine] = {}
        self._there: dict[str, Machine] = {}

    def ready(self, node: str, machine: Machine) -> bool:
        if self._there.get(node) == machine:
            return True
        if self._wanted.get(node) != machine:
            self._wanted[node] = machine
            delay_s = zlib.crc32(f"{node} {len(machine.gpus)}".encode()) % 40 / 20
            asyncio.get_running_loop().call_later(delay_s, self._made, node, machine)
        return False

    def forget(self, node: str) -> None:
        self._wanted.pop(node, None)

    def _made(self, node: str, machine: Machine) -> None:
        if self._wanted.get(node) == machine:
            self._there[node] = self._wanted.pop(node)
            self.made(node)


class Replica:
    """One process. ``ended`` is why it ended by itself, which it never should."""

    def __init__(self, number: int, client: SimClient, feed: Feed, *, ends_idle: bool, keeps: bool) -> None:
        self.number = number
        self.client = client
        self.feed = feed
        self.controller = controller(client, ends_idle=ends_idle, keeps=keeps, tables=Later())
        self.watching: asyncio.Task[Any] = asyncio.ensure_future(self.controller.watch())
        self.working: asyncio.Task[Any] | None = None
        self.leads_since = 0.0

    @property
    def leads(self) -> bool:
        return self.working is not None and not self.client.dead

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        return [self.watching, *([self.working] if self.working is not None else [])]


class Replicas:
    """All processes that ever were.

    Attributes:
        late: How often an event reaches a process up to 5 s late.
        alive: The processes that were not killed.
        on_kill: Called after each kill.
        policies: The file that a process begins with.
        keeps: Whether there is a place to keep reservations.
        ends: How a pod goes that is evicted.
        ends_idle: Whether pods that ask for it are ended when they are idle.
    """

    def __init__(
        self, server: Server, loop: VirtualLoop, rng: random.Random, plan: Plan, outside: Outside, trace: Trace
    ) -> None:
        self.late = 0.0
        self.alive: list[Replica] = []
        self.kills = 0
        self.policies = DEFAULTS
        self.on_kill: Callable[[], None] = lambda: None
        self.keeps = False
        self.ends_idle = False
        self.ends: Callable[[tuple[str, str]], object] | None = None
        self._server, self._loop, self._rng, self._plan = server, loop, rng, plan
        self._outside, self._trace = outside, trace
        self._made = 0
        self._buried: list[asyncio.Task[Any]] = []

    def start(self) -> Replica:
        """Start a process that watches and does not lead."""
        self._made += 1
        number = self._made

        def shown(plural: str, line: bytes) -> None:
            self._trace("controller %d sees %s: %s", number, plural, lambda: _in_short(line))

        feed = Feed(self._server, self._loop, self._delay_s, shown)
        client = SimClient(self._made, self._server, feed, self._plan, self._outside)
        replica = Replica(self._made, client, feed, ends_idle=self.ends_idle, keeps=self.keeps)
        replica.client.ends = self.ends
        self.alive.append(replica)
        self._trace("controller %d starts", replica.number)
        if self.policies is not DEFAULTS:
            replica.controller.follow(self.policies)
        return replica

    def follow(self, policies: Policies, late_s: Callable[[], float]) -> None:
        """Let each process have another file, each a while after it was changed."""
        self.policies = policies
        for replica in self.alive:
            self._loop.call_later(late_s(), self._follow, replica, policies)

    def _follow(self, replica: Replica, policies: Policies) -> None:
        if not replica.client.dead and policies is self.policies:
            replica.controller.follow(policies)

    def lead(self, replica: Replica) -> None:
        if not replica.leads and not replica.client.dead:
            replica.working = asyncio.ensure_future(replica.controller.work())
            replica.leads_since = self._loop.now
            self._trace("controller %d leads", replica.number)

    def find(self, number: int) -> Replica | None:
        return next((replica for replica in self.alive if replica.number == number), None)

    @property
    def leader(self) -> Replica | None:
        """The process that leads, the newest of them where an old one has not noticed yet."""
        return max((r for r in self.alive if r.leads), key=lambda r: r.leads_since, default=None)

    def kill(self, replica: Replica) -> None:
        """End a process as kill -9 does: nothing of it reaches the server any more."""
        if replica.client.dead:
            return
        self.kills += 1
        self._trace("controller %d is killed", replica.number)
        replica.client.dead = True
        replica.feed.close()
        self.alive.remove(replica)
        for task in replica.tasks:
            task.cancel()
            self._buried.append(task)
        self.on_kill()

    def resign(self, replica: Replica) -> None:
        """Let a process stop working, as one does that loses its lease."""
        if replica.working is None:
            return
        self._trace("controller %d loses its lease", replica.number)
        task, replica.working = replica.working, None
        task.cancel()
        self._buried.append(task)

        def check() -> None:
            if not task.done():
                raise AssertionError(f"controller {replica.number} did not stop working {STOP_S:g} s after it was told")

        self._loop.call_later(STOP_S, check)

    def ended(self) -> tuple[Replica, BaseException | None] | None:
        """Return a process that ended by itself, and why."""
        for replica in self.alive:
            for task in replica.tasks:
                if task.done():
                    return replica, None if task.cancelled() else task.exception()
        return None

    async def bury(self) -> None:
        """End all processes."""
        self.on_kill = lambda: None
        kills = self.kills
        for replica in list(self.alive):
            self.kill(replica)
        self.kills = kills
        await asyncio.gather(*self._buried, return_exceptions=True)

    def _delay_s(self) -> float:
        if self.late and self._rng.random() < self.late:
            return self._rng.uniform(0.3, 5.0)
        return self._rng.uniform(0.0005, 0.02)


def _in_short(line: bytes) -> str:
    event = json.loads(line)  # which takes half a letter too
    metadata = event["object"].get("metadata", {})
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{event['type']} {where} at {metadata.get('resourceVersion', '')}"
