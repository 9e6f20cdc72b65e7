"""A publisher that runs against a fake API server, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any, cast

from dradriver.api.policies.policy_sections import DEFAULTS
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.node.publishing.mode_transition import ModeTransitions
from dradriver.node.publishing.node_objects import NodeObjects
from dradriver.node.publishing.publisher import Publisher
from dradriver.topology.machine import Machine
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.node import NODE, Object, eventually, machine

SLICE = resource_slices.slice_name(0, NODE)


class Stage:
    """A publisher that runs, and what it looks at."""

    def __init__(self, api: FakeApiServer, client: Client, **more: Any) -> None:
        self.api = api
        self.machine: Machine = machine()
        self.registered = True
        self.taints: dict[str, list[Object]] = {}
        self.lacked: list[tuple[str, str]] = []
        self.mig_off: list[str] = []
        self.adopted: list[set[tuple[str, str]]] = []
        self.modes = ModeTransitions(more.pop("policies", lambda: DEFAULTS), node=NODE, **of_modes(more))
        self.objects = NodeObjects(client, NODE)
        self.publisher = Publisher(
            client,
            self.objects,
            machine=lambda: self.machine,
            registered=lambda: self.registered,
            modes=self.modes,
            taints=_Taints(self),
            events=cast("Recorder", self),
            **more,
        )

    async def record(self, *, about: Reference, reason: str, message: str, **_: str) -> None:
        """Take an Event about the node."""
        assert (about.kind, about.name) == ("Node", NODE)
        if reason == "ServerLacks":
            what = message.removeprefix("The API server drops the ").partition(" of devices in ResourceSlices: ")[0]
            self.lacked.append((about.name, what))
        else:
            self.mig_off.append(message)

    def node(self, uid: str = "node-uid", **allocatable: str) -> None:
        self.api.put(NODES, {"metadata": {"name": NODE, "uid": uid}, "status": {"allocatable": allocatable}})

    def register(self, registered: bool = True) -> None:
        self.registered = registered
        self.publisher.registration_changed()

    @property
    def slices(self) -> list[Object]:
        return self.api.all(RESOURCE_SLICES)

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


class _Taints:
    """The taints that a test says."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def taints(self) -> dict[str, list[Object]]:
        return self._stage.taints

    def adopt(self, published: Collection[tuple[str, str]]) -> None:
        self._stage.adopted.append(set(published))


def of_modes(more: dict[str, Any]) -> dict[str, Any]:
    """Take out of the arguments of a stage those that are about modes."""
    return {name: more.pop(name) for name in ("mps", "remembered") if name in more}


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
