"""The cluster under measurement: pods come, and everything of theirs goes before the next."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from dradriver.kube.client import Client
from dradriver.kube.resources import NAMESPACES, PODS, RESOURCE_CLAIMS
from tests.bench.throughput import usage, workloads
from tests.bench.throughput.chart import Kubectl
from tests.bench.throughput.crowd import crowd
from tests.bench.throughput.driver import Driver
from tests.bench.throughput.machines import Machines
from tests.bench.throughput.parts import Parts
from tests.bench.throughput.profiles import profiled
from tests.bench.throughput.watching import watching
from tests.bench.throughput.workloads import NAMESPACE, OPEN, OURS, SHARED, Work
from tests.cluster.api import Api
from tests.cluster.errors import ClusterError
from tests.resources import RESOURCE_CLAIM_TEMPLATES

_CLEAR_S = 600
_QUIET_CORES = 0.15
_WARM_S = 60


class Stage:
    """What all measurements use.

    Attributes:
        client: The admin's.
        machines: The nodes.
        drivers: Those to measure, by the name of their variant.
    """

    def __init__(
        self,
        client: Client,
        kubectl: Kubectl,
        *,
        kubeconfig: Path,
        machines: Machines,
        drivers: dict[str, Driver],
        gpus: int,
        parts: Parts | None,
        connections: int,
        driver_stays: bool,
        profiles: Path | None,
    ) -> None:
        self.client = client
        self.machines = machines
        self.drivers = drivers
        self.api = Api(kubeconfig)
        self.gpus = gpus
        self._in_parts = parts
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig
        self._connections = connections
        self._stays = driver_stays
        self._profiles = profiles
        self._installed: Driver | None = None
        self._parts = usage.control_plane()

    async def prepare(self) -> None:
        """Install the first driver's chart, and make the namespace with its templates."""
        await self.install(next(iter(self.drivers.values())))
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        async with self._admission():
            for template in workloads.templates(self.gpus, self._in_parts):
                await self.client.create(RESOURCE_CLAIM_TEMPLATES, template)

    @contextlib.asynccontextmanager
    async def _admission(self) -> AsyncIterator[None]:
        """Have the webhook at work where others' claims and templates pass it, too: those for parts of GPUs."""
        async with contextlib.AsyncExitStack() as stack:
            if self._in_parts is not None and self._installed is not None:
                await stack.enter_async_context(self._installed.running("webhook"))
            yield

    async def install(self, driver: Driver) -> None:
        """Have this driver's chart installed, and no other's."""
        if self._installed is driver:
            return
        if self._installed is not None:
            await self._kubectl.remove(self._installed.chart)
        await driver.prepare(self._kubectl, self._kubeconfig)
        self._installed = driver

    @contextlib.asynccontextmanager
    async def ready_for(self, variant: str) -> AsyncIterator[None]:
        """Have the driver at work for the length of the block where the variant wants it, and all at rest before.

        Raises:
            ClusterError: The driver does not place a first pod.
        """
        driver = self.drivers.get(variant) or (self._installed if self._stays or variant in (SHARED, OPEN) else None)
        if driver is None:
            async with self._admission():
                await self.quiet()
                yield
            return
        await self.install(driver)
        async with driver.running("webhook", "controller"):
            # A leader that has led for long knows the shapes of its machines.
            async with watching(self.client) as seen:
                await self.create(self.works(OURS, "first", 1))
                if not await seen.until(lambda: bool(seen.bound), seconds=_WARM_S):
                    raise ClusterError(f"the driver of {driver.tree} did not place its first pod in {_WARM_S} s")
            await self.clear()
            yield

    def works(self, variant: str, prefix: str, count: int) -> list[Work]:
        """Return `count` pods of a variant."""
        kind = OURS if variant in self.drivers else variant
        return workloads.works(kind, prefix, count, gpus=self.gpus, machines=self.machines, parts=self._in_parts)

    async def connect(self) -> None:
        """Have the connections open over which pods will be created."""
        await crowd(
            lambda _: self.client.get(NAMESPACES, NAMESPACE), range(self._connections), at_once=self._connections
        )

    async def create(self, works: Sequence[Work]) -> None:
        """Create pods and their claims, many at a time."""
        await crowd(self.add, works, at_once=self._connections)

    async def add(self, work: Work) -> None:
        """Create one pod and its claim."""
        if work.claim is not None:
            await self.client.create(RESOURCE_CLAIMS, work.claim)
        await self.client.create(PODS, work.pod)

    async def delete(self, name: str) -> None:
        """Delete a pod without grace, and its claim where that is not for others to delete."""
        await self.client.delete(PODS, name, namespace=NAMESPACE)

    async def clear(self) -> None:
        """Delete all pods, wait until their claims are gone, and until the control plane rests.

        Raises:
            ClusterError: Claims stay.
        """
        pods, _ = await self.client.list(PODS, namespace=NAMESPACE)
        await crowd(self.delete, [pod["metadata"]["name"] for pod in pods], at_once=self._connections)
        claims, _ = await self.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)
        own = [claim["metadata"]["name"] for claim in claims if not claim["metadata"].get("ownerReferences")]
        await crowd(
            lambda name: self.client.delete(RESOURCE_CLAIMS, name, namespace=NAMESPACE), own, at_once=self._connections
        )
        try:
            async with asyncio.timeout(_CLEAR_S):
                while (await self.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE))[0]:
                    await asyncio.sleep(0.25)
        except TimeoutError:
            raise ClusterError(f"claims of deleted pods are still there after {_CLEAR_S} s") from None
        await self.quiet()

    async def quiet(self, *, seconds: float = 60) -> None:
        """Wait until the control plane and the driver hardly work, at most so long."""
        for _ in range(int(seconds)):
            used = usage.Usage(self.pids())
            await asyncio.sleep(1)
            if used.cores() < _QUIET_CORES:
                return

    def profiled(self, name: str, *, seconds: int) -> AbstractAsyncContextManager[None]:
        """Profile the control plane where that is wanted."""
        token = json.loads(self._kubeconfig.read_text())["users"][0]["user"]["token"]
        return profiled(self._profiles, name, token=token, seconds=seconds)

    def pids(self) -> dict[str, int]:
        """Return the processes whose work is counted."""
        return {part: pid for driver in self.drivers.values() for part, pid in driver.pids.items()} | self._parts
