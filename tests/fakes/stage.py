"""A publisher that runs against a fake API server, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from dradriver.api import slices
from dradriver.api.objects import Node
from dradriver.kube.client import Client
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.node.publishing.publisher import Publisher
from dradriver.topology.machine import Machine
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.node import NODE, Object, eventually, machine

SLICE = slices.slice_name(0, NODE)


class Stage:
    """A publisher that runs, and what it looks at."""

    def __init__(self, api: FakeApiServer, client: Client, **more: Any) -> None:
        self.api = api
        self.machine: Machine = machine()
        self.registered = True
        self.taints: dict[str, list[Object]] = {}
        self.lacked: list[tuple[str, str]] = []
        self.mig_off: list[str] = []
        self.publisher = Publisher(
            client,
            node=NODE,
            machine=lambda: self.machine,
            registered=lambda: self.registered,
            taints=lambda: self.taints,
            lacks=self.lacks,
            mig_off=self.said_off,
            **more,
        )

    async def lacks(self, node: Node, what: str) -> None:
        self.lacked.append((node.metadata.name, what))

    async def said_off(self, node: Node, message: str) -> None:
        assert node.metadata.name == NODE
        self.mig_off.append(message)

    def node(self, uid: str = "node-uid", **allocatable: str) -> None:
        self.api.put(NODES, {"metadata": {"name": NODE, "uid": uid}, "status": {"allocatable": allocatable}})

    def register(self, registered: bool = True) -> None:
        self.registered = registered
        self.publisher.registration_changed()

    @property
    def slices(self) -> list[Object]:
        return self.api.objects(RESOURCE_SLICES)

    @property
    def generations(self) -> list[int]:
        return [obj["spec"]["pool"]["generation"] for obj in self.slices]

    def writes(self) -> list[str]:
        sent = (r for r in self.api.requests if r.method != "GET" and "resourceslices" in r.path)
        return [r.method for r in sent if "dryRun" not in r.query]

    async def settled(self, *, devices: int | None) -> None:
        """Wait for slices with so many devices, or for none."""

        def holds() -> bool:
            found = [len(obj["spec"]["devices"]) for obj in self.slices]
            return self.publisher.settled and found == ([] if devices is None else [devices])

        await eventually(holds)


@contextlib.asynccontextmanager
async def stage(*, registered: bool = True, **more: Any) -> AsyncIterator[Stage]:
    async with FakeApiServer() as api, Client(api.config, user_agent="test") as client:
        made = Stage(api, client, **more)
        made.registered = registered
        made.node()
        task = asyncio.create_task(made.publisher.run())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def taint(at: str = "2026-01-01T00:00:00Z", effect: str = "NoSchedule") -> Object:
    return {"key": "gpu.topology/xid", "value": "79", "effect": effect, "timeAdded": at}


def tainted(on: Stage) -> dict[str, list[Object]]:
    return {d["name"]: d["taints"] for d in on.slices[0]["spec"]["devices"] if "taints" in d}
