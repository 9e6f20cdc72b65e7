"""What tests of a whole agent share: its readiness over HTTP, GPUs that vanish, and a driver that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from types import MappingProxyType

import aiohttp

from dradriver.node.container_edits import Edits
from dradriver.node.faults import Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology.machine import Gpu, Machine
from tests.fakes.node import NodeUnderTest, edits, machine
from tests.fakes.ports import kept_port

Status = Callable[..., Awaitable[int]]


@contextlib.asynccontextmanager
async def ready_port() -> AsyncIterator[tuple[int, Status]]:
    """A port for an agent's health, and what asks there, whether it is ready by default; 0 where nobody answers."""
    with kept_port() as port:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield port, functools.partial(_status, session)


async def _status(session: aiohttp.ClientSession, path: str = "/readyz") -> int:
    try:
        async with session.get(path) as answer:
            return answer.status
    except aiohttp.ClientConnectionError:
        return 0


async def becomes(status: Status, wanted: int) -> None:
    """Wait until the agent answers with this status."""
    async with asyncio.timeout(50):
        while await status() != wanted:
            await asyncio.sleep(0.005)


async def lose(node: NodeUnderTest, *lines: str) -> None:
    """Have these GPUs of a simulated node, and no others, be lost."""
    folder = node.state / "simulated"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lost").write_text("\n".join(lines))


class Hanging:
    """A driver that does not answer until it is released."""

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = True

    def __init__(self, *, free: int = 0) -> None:
        self.released = threading.Event()
        self.free = free  # readings that it answers before it hangs

    def edits(self, gpu: Gpu) -> Edits:
        return edits(gpu)

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        return {}

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        self.released.wait(timeout=60)
        return dict.fromkeys(gpus, ())

    def read(self) -> Machine:
        if self.free:
            self.free -= 1
        else:
            self.released.wait(timeout=60)
        return machine()

    def close(self) -> None:
        pass
