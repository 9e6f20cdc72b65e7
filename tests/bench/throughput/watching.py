"""When pods lost their gates and when they were bound, as a client of the API server sees it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from dradriver.kube.client import Client
from dradriver.kube.resources import PODS
from tests.bench.throughput.workloads import NAMESPACE
from tests.cluster.errors import ClusterError


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[msgspec.Raw] = []


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


class Watch:
    """Times of `time.monotonic` by pod name.

    Attributes:
        ungated: When the pod was first seen without gates.
        bound: When it was first seen on a node.
        version: The resource version of the last event.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.ungated: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self._waiting: tuple[Callable[[], bool], asyncio.Event] | None = None

    async def until(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Return whether the condition came true in time; it is asked after each event."""
        if condition():
            return True
        come = asyncio.Event()
        self._waiting = condition, come
        try:
            async with asyncio.timeout(seconds):
                await come.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting = None
        return True

    def saw(self, line: bytes) -> None:
        """Take in one event.

        Raises:
            ClusterError: The API server cannot tell what came after the last one.
        """
        now = time.monotonic()
        event = _decode(line)
        if event.type == "ERROR":
            raise ClusterError(f"the watch of the measured pods broke: {line[:500].decode(errors='replace')}")
        pod = event.object
        self.version = pod.metadata.resource_version
        if event.type != "DELETED":
            if not pod.spec.scheduling_gates:
                self.ungated.setdefault(pod.metadata.name, now)
            if pod.spec.node_name:
                self.bound.setdefault(pod.metadata.name, now)
        if self._waiting is not None and self._waiting[0]():
            self._waiting[1].set()


@contextlib.asynccontextmanager
async def watching(client: Client) -> AsyncIterator[Watch]:
    """Watch the pods of the measured namespace for the length of the block."""
    seen = Watch((await client.list(PODS, namespace=NAMESPACE))[1])

    async def read() -> None:
        while True:  # a busy API server ends the watches of those that read too slowly
            params = {"watch": "1", "resourceVersion": seen.version}
            async with client.stream(PODS, namespace=NAMESPACE, params=params, silence_s=3600) as lines:
                async for line in lines:
                    seen.saw(line)

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        yield seen
        reading.cancel()


_decode = msgspec.json.Decoder(_Event).decode
