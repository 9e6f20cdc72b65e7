"""Pods and claims as the API server shows them to anybody; nothing here knows how the driver reads them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.bench.throughput.workloads import NAMESPACE

SEATS: Final = "gang/seats"  # the pool of the devices that are no GPUs
_EVER: Final = 3600.0


class Owner(msgspec.Struct):
    """What an object belongs to."""

    uid: str
    name: str = ""


class Metadata(msgspec.Struct, rename="camel"):
    """Of any object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []


class PodSpec(msgspec.Struct, rename="camel"):
    """What the scheduler writes of a pod, and how long it may take to end."""

    node_name: str = ""
    termination_grace_period_seconds: int = 30
    scheduling_gates: list[msgspec.Raw] = []


class PodStatus(msgspec.Struct):
    """What a kubelet writes."""

    phase: str = ""


class Pod(msgspec.Struct):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def bound(self) -> bool:
        """Whether it has its node."""
        return bool(self.spec.node_name)

    @property
    def finished(self) -> bool:
        """Whether its containers have ended."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def gang(self) -> str:
        """The gang that it was made for."""
        return self.metadata.name.rpartition("-")[0]


class Result(msgspec.Struct):
    """A device that a claim was given."""

    driver: str
    pool: str
    device: str


class Devices(msgspec.Struct):
    """All that it was given."""

    results: list[Result] = []


class Allocation(msgspec.Struct):
    """The same."""

    devices: Devices = msgspec.field(default_factory=Devices)


class ClaimStatus(msgspec.Struct, rename="camel"):
    """What the scheduler writes of a claim."""

    allocation: Allocation | None = None


class Claim(msgspec.Struct):
    """A claim."""

    metadata: Metadata
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def gpus(self) -> list[tuple[str, str]]:
        """The pools and names of the GPUs that it holds."""
        held = self.status.allocation
        return [(r.pool, r.device) for r in held.devices.results if r.pool != SEATS] if held is not None else []

    @property
    def users(self) -> list[str]:
        """The uids of the pods that it was made for."""
        return [owner.uid for owner in self.metadata.owner_references]


class Seen:
    """The objects of the measured namespace, by name.

    Attributes:
        pods: The pods.
        claims: The claims.
        changed: Asked of after each change, with the pod or claim, and whether it is there.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, Claim] = {}
        self.changed: list[Callable[[Pod | Claim, bool], object]] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Event]] = []

    async def until(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Return whether the condition came true in time; it is asked after each change."""
        if condition():
            return True
        entry = condition, asyncio.Event()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await entry[1].wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(entry)
        return True

    def take(self, thing: Pod | Claim, *, there: bool) -> None:
        """Take in one object's state."""
        store: dict[str, Any] = self.pods if isinstance(thing, Pod) else self.claims
        if there:
            store[thing.metadata.name] = thing
        else:
            store.pop(thing.metadata.name, None)
        for tell in self.changed:
            tell(thing, there)
        for condition, come in self._waiting:
            if not come.is_set() and condition():
                come.set()


@contextlib.asynccontextmanager
async def seeing(client: Client, namespace: str | None = NAMESPACE) -> AsyncIterator[Seen]:
    """Watch pods and claims for the length of the block; what is there already is taken in first.

    Args:
        client: The admin's.
        namespace: Where; None for everywhere, where no two of a kind have one name.
    """
    seen = Seen()
    async with asyncio.TaskGroup() as tasks:
        watches = []
        for resource, kind, store in ((PODS, Pod, seen.pods), (RESOURCE_CLAIMS, Claim, seen.claims)):
            follow = _Following(client, seen, namespace, resource, kind, store)
            await follow.read()
            watches.append(tasks.create_task(follow.run()))
        yield seen
        for watch in watches:
            watch.cancel()


class _Following:
    """Takes in all objects of a kind."""

    def __init__(
        self, client: Client, seen: Seen, namespace: str | None, resource: Resource, kind: Any, store: dict[str, Any]
    ) -> None:
        self._client, self._seen, self._namespace = client, seen, namespace
        self._resource, self._kind, self._store = resource, kind, store
        self._version = ""

    async def read(self) -> None:
        """Take in what is there now."""
        found, self._version = await self._client.list(self._resource, namespace=self._namespace, type=self._kind)
        names = {each.metadata.name for each in found}
        for gone in [each for name, each in self._store.items() if name not in names]:
            self._seen.take(gone, there=False)
        for each in found:
            self._seen.take(each, there=True)

    async def run(self) -> None:
        """Take in what changes after that."""
        decode = msgspec.json.Decoder(msgspec.defstruct("Event", [("type", str), ("object", msgspec.Raw)])).decode
        read = msgspec.json.Decoder(self._kind).decode
        while True:  # a busy API server ends the watches of those that read too slowly
            try:
                params = {"watch": "1", "resourceVersion": self._version}
                async with self._client.stream(
                    self._resource, namespace=self._namespace, params=params, silence_s=_EVER
                ) as lines:
                    async for line in lines:
                        event: Any = decode(line)
                        if event.type == "ERROR":
                            await self.read()
                            break
                        thing = read(event.object)
                        self._version = thing.metadata.resource_version
                        self._seen.take(thing, there=event.type != "DELETED")
            except ApiError as error:
                if not error.gone:
                    raise
                await self.read()


def now() -> float:
    """Return the clock by which everything here is timed, seconds."""
    return time.monotonic()
