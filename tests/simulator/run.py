"""Runs seeds: one at a time here, many over all cores."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

import msgspec

from dradriver.controller import metrics
from dradriver.kube.reflector import SILENCE_S
from tests.simulator import idling
from tests.simulator.caps import LATE_S
from tests.simulator.invariants import Invariants
from tests.simulator.liveness import Liveness
from tests.simulator.loop import Stuck, VirtualLoop
from tests.simulator.preempting import PreemptionRules
from tests.simulator.replicas import Replicas
from tests.simulator.server import EPOCH
from tests.simulator.story import Story
from tests.simulator.trace import Trace
from tests.simulator.world import World

QUIET_S: Final = 150.0  # at most, after the last change; it ends when nothing is left to be done
AT_REST_S: Final = 3.0
DRAIN_S: Final = SILENCE_S


class Violation(msgspec.Struct):
    """An invariant that did not hold, when, and what happened before."""

    seed: int
    at_s: float
    name: str
    text: str
    last: list[str]


class Result(msgspec.Struct):
    """What became of a seed. ``met`` counts faults: the request and what went wrong with it."""

    seed: int
    violation: Violation | None
    lasted_s: float
    writes: int
    kills: int
    lifted: int
    bound: int
    unsettled: int
    met: dict[tuple[str, str], int]


class Simulation:
    """One seed."""

    def __init__(
        self,
        seed: int,
        *,
        tolerated: frozenset[str],
        show: Callable[[str], object] | None,
        campaigns: Sequence[str] | None,
    ) -> None:
        self.seed = seed
        self._campaigns = campaigns
        self._tolerated = tolerated
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time, show)
        self.violation: Violation | None = None
        self._rng = random.Random(seed)
        self._ended: asyncio.Future[None] = self.loop.create_future()

    def run(self) -> Result:
        """Run it; what breaks in the simulator itself is raised."""
        self.loop.set_exception_handler(self._crashed)
        with _surroundings(self.loop, self.seed, self._logged), idling.scaled():
            asyncio.set_event_loop(self.loop)
            try:
                return self.loop.run_until_complete(self._main())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()

    async def _main(self) -> Result:
        world = World(self.loop, self._rng, self.trace)
        invariants = Invariants(world, self.broken)
        replicas = Replicas(world.server, self.loop, self._rng, world.plan, invariants, self.trace)
        invariants.replicas = replicas
        world.caps.changed = lambda file, rng: replicas.follow(file, lambda: rng.uniform(0, LATE_S))
        story = Story(world, replicas, invariants, self._campaigns)
        replicas.on_kill, replicas.ends = story.follow, world.housekeeping.delete_pod
        PreemptionRules(world, replicas, self.broken)
        liveness = Liveness(world, replicas, invariants, self.broken)
        story.begin()
        for watch in world.watchers:
            watch(replicas, self.broken)
        self.loop.call_at(story.active_s, story.end)
        liveness.sample()
        drains = self._rng.random() < 0.3

        def look() -> None:
            if (ended := replicas.ended()) is not None:
                replica, why = ended
                self.broken("no process ends by itself", f"controller {replica.number}: {why!r}")
            quiet_s = self.loop.now - story.active_s
            if quiet_s > QUIET_S or (quiet_s > 5 and self.loop.now - liveness.settled_since > AT_REST_S):
                if not self._ended.done():
                    self._ended.set_result(None)
                return
            self.loop.call_later(0.5, look)

        look()
        unsettled, differed = 0, _differences()
        try:
            await self._ended
            unsettled = 0 if self.violation else len(liveness.states())
            counted = [world.pod(key) for key in world.pods]
            lifted = sum(pod is not None and not pod["spec"].get("schedulingGates") for pod in counted)
            bound = sum(pod is not None and bool(pod["spec"].get("nodeName")) for pod in counted)
            if drains and self.violation is None:
                story.drain()
                await asyncio.sleep(DRAIN_S)
            for replica in replicas.alive:
                if self.violation is None and replica.controller.ready():
                    await replica.controller.audit.look()
            if (found := _differences()) > differed:
                self.broken("the books are what was shown", f"{found - differed:g} differences")
        finally:
            await replicas.bury()
        return Result(
            seed=self.seed,
            violation=self.violation,
            lasted_s=self.loop.now,
            writes=invariants.writes,
            kills=replicas.kills,
            lifted=lifted,
            bound=bound,
            unsettled=unsettled,
            met=world.plan.met,
        )

    def broken(self, name: str, text: str) -> None:
        """Note the first violation and end."""
        if name in self._tolerated:
            return
        if self.violation is None:
            self.trace("VIOLATION %s: %s", name, text)
            self.violation = Violation(self.seed, self.loop.now, name, text, self.trace.last())
        if not self._ended.done():
            self._ended.set_result(None)

    def _logged(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self.trace("log: %.300s", text)
        if record.levelno >= logging.ERROR:
            self.broken("no error is logged", text)

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.broken("nothing goes to pieces", f"{context.get('message')}: {error!r}")
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)


def run(
    seed: int,
    *,
    tolerated: frozenset[str] = frozenset(),
    show: Callable[[str], object] | None = None,
    campaigns: Sequence[str] | None = None,
) -> Result:
    """Run one seed and return what became of it; the same seed gives the same again.

    Args:
        seed: The seed.
        tolerated: Names of invariants that need not hold.
        show: Called with each event, in words, as it happens.
        campaigns: Names of what is gone on with in it (``campaigns``); drawn by chance where none are given.
    """
    simulation = Simulation(seed, tolerated=tolerated, show=show, campaigns=campaigns)
    try:
        return simulation.run()
    except Stuck as stuck:
        simulation.broken("no hot loop", str(stuck))
        return Result(seed, simulation.violation, simulation.loop.now, 0, 0, 0, 0, 0, {})


def _differences() -> float:
    """Return how many differences audits have found in this process."""
    counts = (metrics.DIFFERENCES.labels(record) for record in metrics.DIFFERENCES.words["record"])
    return sum(float(count._value.get()) for count in counts)


@contextlib.contextmanager
def _surroundings(loop: VirtualLoop, seed: int, logged: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Give the code under test the loop's time and the seed's chance, and hear what it logs."""
    chance = random.getstate()
    random.seed(seed)
    handler = _Handler(logged)
    logger = logging.getLogger("dradriver")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    start = EPOCH.timestamp()
    try:
        with (
            patch.object(time, "time", lambda: start + loop.now),
            patch.object(time, "monotonic", lambda: loop.now),
            patch.object(time, "perf_counter", lambda: loop.now),
        ):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
        random.setstate(chance)


class _Handler(logging.Handler):
    def __init__(self, logged: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        self._logged(record)
