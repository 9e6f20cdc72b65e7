"""Telling pods of their GPUs' faults while the ledger, the API server or one namespace is in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder
from dradriver.kube.resources import EVENTS, RESOURCE_CLAIMS
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.errors import ClaimError
from dradriver.node.faults import Fault
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.pod_events import PodEvents
from dradriver.node.journal import Entry
from dradriver.node.repairs import located
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.node import claim, eventually

LOST = Fault("lost", "", "it is not on the node any more")


class Node:
    """Claims that are prepared, one GPU each, of the same name."""

    def __init__(self, api: FakeApiServer, client: Client, namespaces: list[str]) -> None:
        self.api = api
        self.record = Record()
        self.locked = 0  # how often the ledger cannot be read
        self._client = client
        self._prepared = {}
        for namespace in namespaces:
            obj = claim("c", [0], uid=namespace)
            obj["metadata"]["namespace"] = namespace
            api.put(RESOURCE_CLAIMS, obj)
            device = PreparedDevice(request="gpu", pool="n", device=namespace, uuid=namespace)
            one = PreparedClaim(uid=namespace, namespace=namespace, name="c", devices=(device,))
            self._prepared[namespace] = Entry(one, (0, 0, 0))
        recorder = Recorder(client, component="c", instance="i")
        self.events = PodEvents(
            self.record,
            recorder,
            prepared=self._read,
            get_claim=self._get_claim,
            node="gpu-7",
            place=lambda uuid: LostGpu(3, "0000:4e:00.0", uuid) if uuid == "a" else None,
            retry_s=0.01,
        )
        self.record.changed.add(self.events.poke)

    async def _read(self) -> Mapping[str, Entry[PreparedClaim]]:
        if self.locked:
            self.locked -= 1
            raise ClaimError("the lock is held by another agent")
        return self._prepared

    async def _get_claim(self, namespace: str, name: str) -> ResourceClaim:
        return await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=ResourceClaim)

    def told(self, reason: str = "GPUUnhealthy") -> list[str]:
        """Return the namespaces whose pods have an event."""
        found = [obj["metadata"]["namespace"] for obj in self.api.all(EVENTS) if obj["reason"] == reason]
        return sorted(set(found))


@contextlib.asynccontextmanager
async def a_node(*namespaces: str) -> AsyncIterator[Node]:
    async with FakeApiServer() as api, Client(api.config, timeout_s=30, user_agent="test") as client:
        node = Node(api, client, list(namespaces))
        task = asyncio.create_task(node.events.run())
        try:
            yield node
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_pods_are_told_once_the_ledger_can_be_read_again() -> None:
    async with a_node("a", "b") as node:
        node.locked = 3
        node.record.tell("readings", {"a": (LOST,)})
        await eventually(lambda: node.told() == ["a"])
        assert node.locked == 0


async def test_a_claim_that_cannot_be_read_keeps_its_pods_alone_waiting() -> None:
    async with a_node("a", "b") as node:
        node.api.fail(method="GET", path="/a/resourceclaims", status=500, times=3)
        node.record.tell("readings", {"a": (LOST,), "b": (LOST,)})
        await eventually(lambda: node.told() == ["a", "b"])
        (event,) = (obj for obj in node.api.all(EVENTS) if obj["metadata"]["namespace"] == "b")
        assert event["count"] == 1


async def test_a_namespace_whose_events_hang_holds_up_no_other() -> None:
    async with a_node("a", "b") as node:
        node.api.fail(method="POST", path="/a/events", mode="hang", times=math.inf)
        node.record.tell("readings", {"a": (LOST,), "b": (LOST,)})
        await eventually(lambda: node.told() == ["b"])
        node.record.tell("other", {"b": (Fault("xid", "79", "XID 79"),)})
        await eventually(lambda: len(node.api.all(EVENTS)) == 2)


async def test_what_was_over_before_anybody_could_be_told_is_not_told() -> None:
    async with a_node("a") as node:
        node.locked = 10**6
        node.record.tell("readings", {"a": (LOST,)})
        await eventually(lambda: node.locked < 10**6)
        node.record.tell("readings", {})
        node.locked = 0
        node.record.tell("other", {"a": (Fault("xid", "79", "XID 79"),)})
        await eventually(lambda: node.told() == ["a"])
        (event,) = node.api.all(EVENTS)
        assert "XID 79" in event["message"]


async def test_a_pod_is_told_which_gpu_what_is_wrong_and_what_to_do() -> None:
    xid = Fault("xid", "79", "XID 79 in the kernel's log, which asks for a reboot of the node")
    async with a_node("a", "b") as node:
        node.record.tell("kernel", {"b": (xid,)})
        node.record.tell("readings", {"a": (LOST,)})
        await eventually(lambda: node.told() == ["a", "b"])
        node.record.tell("readings", {})
        await eventually(lambda: node.told("GPURecovered") == ["a"])
        assert sorted(event["message"] for event in node.api.all(EVENTS)) == [
            f"Node gpu-7, GPU b, fault xid: {xid.said}: {xid.words}. {located(xid.advice, node='gpu-7')}",
            f"Node gpu-7, GPU3 (0000:4e:00.0, a), fault lost: {LOST.said}. "
            f"{located(LOST.advice, node='gpu-7', uuid='a')}",
            f"Node gpu-7, GPU3 (0000:4e:00.0, a): the fault lost is over. The fault was: {LOST.said}.",
        ]
