"""A node whose agents serve side by side, as in a rolling update: calls that cross, that are given up, and ends.

Time is virtual, so that drivers are slow and hang as they do. Each agent has a thread of its own for the hardware, as
its process has: what a call has begun there goes on after the call was given up, and for a moment after the agent's own
loop has ended. A lock goes with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError
from dradriver.node.claims.gpu_processes import nobody
from dradriver.node.claims.prepare import Preparer
from dradriver.node.claims.reconcile import Reconciler
from dradriver.node.devices.control_interface import DEFAULT
from dradriver.node.devices.hardware_journal import HardwareJournal
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.threads import Thread
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import Machine
from tests.fakes.crowd import CLAIMS, MIG, MPS, administer, administered, allocated, device_manager
from tests.fakes.node import NODE, machine, typed, uuid
from tests.fakes.parts import sliceable
from tests.simulator.loop import VirtualLoop

T = TypeVar("T")

WORKS_S: Final = (0.0, 0.1, 1.0, 4.0, 35.0, 90.0)  # a driver's; the last two keep callers waiting for too long
GIVES_UP_S: Final = (0.01, 0.05, 0.5, 2.0, 20.0, 45.0)  # a kubelet's patience: it, too, is restarted
_LEFT = ("state/claims", "state/made", "state/files", "cdi")  # of which nothing stays in the end
_PASSES = 10
_AGENT: contextvars.ContextVar[int] = contextvars.ContextVar("agent", default=-1)


def _machine() -> Machine:
    """Return the machine, its GPUs with the minor number that simulated hardware has by default."""
    whole = sliceable(machine())
    gpus = tuple(msgspec.structs.replace(gpu, minor=0) for gpu in whole.gpus)
    return msgspec.structs.replace(whole, gpus=gpus)


class Driver(Thread):
    """The thread in which one process changes hardware."""

    def __init__(self, node: Node) -> None:
        super().__init__("driver")
        self._node = node
        self._queue: asyncio.Queue[tuple[Callable[[], None], bool]] = asyncio.Queue()
        self._after: list[Callable[[], None]] = []
        self.dead = False

    async def run(self, work: Callable[[], T], *, question: bool = False) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def do() -> None:
            try:
                done = work()
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(done)

        self._queue.put_nowait((do, True))
        return await future

    def put(self, work: Callable[[], None]) -> None:
        if self.dead:
            work()
            return

        def do() -> None:
            self._after.remove(do)
            work()

        self._after.append(do)
        self._queue.put_nowait((do, False))

    async def serve(self) -> None:
        while True:
            do, changes = await self._queue.get()
            if not changes:
                do()
                continue
            self._node.crossed |= bool(self._node.working)
            self._node.working.append(self)
            try:
                await asyncio.sleep(self._node.draw.choices(WORKS_S, (4, 4, 4, 2, 1, 1))[0])
                do()
            finally:
                self._node.working.remove(self)

    def die(self) -> None:
        """The kernel takes back what the process held."""
        self.dead = True
        for do in list(self._after):
            do()


class Agent:
    """One agent: what serves the kubelet, what gives back, and its process."""

    def __init__(self, node: Node, number: int) -> None:
        self._node = node
        self.number = number
        self.tasks: set[asyncio.Task[Any]] = set()
        self.driver = Driver(node)
        self.preparer = Preparer(
            node=NODE,
            state_dir=node.folder / "state",
            cdi_root=node.folder / "cdi",
            get_claim=node.get_claim,
            machine=_machine,
            device_manager=device_manager(node.gpus, MpsFolder(node.folder / "mps", boot="boot"), self.driver),
            boot="boot",
        )
        self.reconciler = Reconciler(self.preparer, node.get_claim, node=NODE, processes=nobody)
        self._thread = self.spawn(self.driver.serve())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have the process do something."""
        token = _AGENT.set(self.number)
        try:
            return asyncio.create_task(work)
        finally:
            _AGENT.reset(token)

    async def end(self, after_s: float) -> None:
        """End the process; its thread goes on so long after all else has."""
        others = {task for task in self.tasks if task is not self._thread}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(after_s)
        self._thread.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._thread
        self.driver.die()


class Node:
    """A node with its kubelet, two agents at most, and hardware that can be changed.

    Attributes:
        running: Claims that pods run on, by name.
        unused: Claims that no pod uses any more.
        working: The threads that change hardware now.
        crossed: Whether two ever did at a time.
        ended: How many agents were replaced.
    """

    def __init__(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.draw = random.Random(seed)
        self.gpus = SimulatedGpu(self.folder / "hardware.json")
        administer(self.gpus)
        self.running: set[str] = set()
        self.unused: set[str] = set()
        self.working: list[Driver] = []
        self.crossed = False
        self.ended = 0
        self.agents: list[Agent] = []
        self._number = 0

    def play(self) -> None:
        """Play the story of this seed; what does not hold is an AssertionError."""
        try:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                runner.get_loop().set_task_factory(self._task)
                runner.run(self._play())
        finally:
            shutil.rmtree(self.folder)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        agent = next((one for one in self.agents if one.number == _AGENT.get()), None)
        if agent is not None:
            agent.tasks.add(task)
            task.add_done_callback(agent.tasks.discard)
        return task

    async def get_claim(self, _: str, name: str) -> ResourceClaim:
        await asyncio.sleep(self.draw.choices((0.0, 0.01, 1.0, 12.0), (8, 8, 2, 1))[0])
        if name in self.unused:
            raise ApiError(404, "NotFound", name)
        return typed(allocated(name))

    async def _play(self) -> None:
        self._start()
        names = self.draw.sample(sorted(CLAIMS), 4)
        around = [asyncio.create_task(one) for one in (self._rolling(), self._looking(), self._reconciling())]
        lives = asyncio.create_task(self._lives(names))
        await asyncio.wait([lives, *around], return_when=asyncio.FIRST_COMPLETED)
        for task in (lives, *around):
            if task.done():
                task.result()
            else:
                task.cancel()
        await asyncio.wait(around)
        for _ in range(_PASSES):  # a driver that does not answer in one of them is asked in the next
            await asyncio.sleep(600)  # whatever was given up ends
            await self.agents[-1].reconciler.once()
            if not any(map(self._in, _LEFT)):
                break
        self._nothing_is_left()
        for agent in list(self.agents):
            await agent.end(0)

    async def _lives(self, names: Sequence[str]) -> None:
        await asyncio.gather(*map(self._life, names))

    async def _life(self, name: str) -> None:
        """A claim's life, as the kubelet sees it: one call at a time, any of which it may give up."""
        draw = self.draw
        for _ in range(draw.randint(1, 3)):
            await asyncio.sleep(draw.choice((0.0, 0.02, 1.0, 10.0)))
            self.unused.discard(name)
            for _ in range(draw.randint(1, 3)):
                if await self._called(lambda agent: agent.preparer.prepare("default", name, f"uid-{name}")):
                    self.running.add(name)
                    self._check(name)
                    if draw.random() < 0.7:
                        break
            await asyncio.sleep(draw.choice((0.0, 0.02, 1.0, 60.0)))
            self.running.discard(name)
            if draw.random() < 0.3:
                self.unused.add(name)  # deleted by force
            while not await self._called(lambda agent: agent.preparer.unprepare(f"uid-{name}")):
                pass
            if draw.random() < 0.8:
                self.unused.add(name)
        self.unused.add(name)

    async def _called(self, call: Callable[[Agent], Awaitable[object]]) -> bool:
        """Call an agent, the newest as a rule, and return whether it answered in time, and well."""
        agent = self.agents[-1] if self.draw.random() < 0.7 else self.draw.choice(self.agents)

        async def calling() -> object:
            return await call(agent)

        task = agent.spawn(calling())
        done, _ = await asyncio.wait([task], timeout=self.draw.choice(GIVES_UP_S))
        if not done:
            task.cancel()
            return False
        if task.cancelled():
            return False
        if (error := task.exception()) is None:
            return True
        if not isinstance(error, DriverError):
            raise error
        await asyncio.sleep(1)
        return False

    def _start(self) -> None:
        self._number += 1
        self.agents.append(agent := Agent(self, self._number))
        agent.spawn(self._starting(agent))

    @staticmethod
    async def _starting(agent: Agent) -> None:
        await agent.preparer.recover()
        with contextlib.suppress(DriverError):
            await agent.reconciler.once()

    async def _rolling(self) -> None:
        """Agents come, serve beside the one before them, and that ends."""
        while True:
            await asyncio.sleep(self.draw.choice((0.1, 2.0, 30.0)))
            self._start()
            await asyncio.sleep(self.draw.choice((0.0, 1.0, 20.0)))
            await self.agents.pop(0).end(self.draw.choice((0.0, 0.5, 5.0)))
            self.ended += 1

    async def _reconciling(self) -> None:
        while True:
            await asyncio.sleep(self.draw.choice((1.0, 60.0)))
            agent = self.draw.choice(self.agents)
            await asyncio.wait([agent.spawn(agent.reconciler.once())])

    async def _looking(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            assert not self.crossed, "two agents have changed hardware at the same time"
            noted = {(one.uuid, *one.wanted.placed) for one in self._made() if one.kind == "mig"}
            assert {
                (uuid(gpu), *placed) for gpu in MIG for placed in self.gpus.gpu_instances(uuid(gpu)).values()
            } <= noted
            for name in sorted(self.running):
                self._check(name)

    def _check(self, name: str) -> None:
        """A claim that a pod runs on has all that it was given."""
        path = self.folder / "state" / "claims" / f"uid-{name}.json"
        assert path.exists(), f"claim {name} runs without an entry"
        assert (self.folder / "cdi" / f"gpu.topology-claim_uid-{name}.json").exists(), f"claim {name} has no spec"
        made = [one for one in self._made() if one.owner == f"uid-{name}"]
        entry = msgspec.json.decode(path.read_bytes())["entry"]
        assert {one.key for one in made if one.done is not None} == {d["made"] for d in entry["devices"] if "made" in d}
        for one in made:
            if one.kind == "mig":
                there = self.gpus.gpu_instances(one.uuid).values()
                assert one.wanted.placed in there, f"claim {name} has lost its instance"
            with self.gpus.state(one.uuid) as state:
                assert one.kind != "mps" or state.server is not None, f"claim {name} has lost its server"

    def _made(self) -> list[Any]:
        ledger = HardwareJournal(self.folder / "state" / "made")
        return [entry.value for entry in ledger.read().values()]

    def _nothing_is_left(self) -> None:
        left = [path.name for part in _LEFT for path in self._in(part)]
        assert not left
        for gpu in MIG:
            assert not self.gpus.gpu_instances(uuid(gpu))
            assert not self.gpus.mig_mode(uuid(gpu))
        assert administered(self.gpus)
        with self.gpus.state(uuid(MPS)) as state:
            assert (state.server, state.mode) == (None, DEFAULT)

    def _in(self, part: str) -> list[Path]:
        return sorted((self.folder / part).glob("*"))
