"""What is said on a claim that cannot be read whole, and that the controller works on beside it."""

from __future__ import annotations

import asyncio

from dradriver.controller.controller import Controller
from dradriver.controller.features.recorders import Recorders
from dradriver.controller.reading.unread_claims import MOST, UnreadClaims, recorder
from dradriver.kube.client import Client
from dradriver.kube.isolated import Identity, Unread
from dradriver.kube.resources import EVENTS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpucluster import GpuCluster

HALF = {"devices": {"config": [{"opaque": {"driver": "other.example.com", "parameters": {"a": "\ud800"}}}]}}


def unread(number: int, why: str = "status.allocation: Expected `object`, got `int`") -> Unread:
    return Unread(Identity(name=f"c{number}", namespace="a", uid=f"uid-{number}", resource_version="1"), why)


async def test_a_claim_is_told_once_and_again_for_other_words() -> None:
    told: list[Unread] = []

    async def record(one: Unread) -> None:
        told.append(one)

    claims = UnreadClaims(record)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(claims.run())
        for one in (unread(1), unread(1), unread(2), unread(1)):
            claims.tell(one)
            await asyncio.sleep(0.1)
        assert told == [unread(1), unread(2)]
        claims.tell(unread(1, "spec: nothing"))
        await asyncio.sleep(0.1)
        assert told[2:] == [unread(1, "spec: nothing")]
        running.cancel()


async def test_few_wait_to_be_told() -> None:
    told: list[Unread] = []

    async def record(one: Unread) -> None:
        told.append(one)

    claims = UnreadClaims(record)
    for number in range(10 * MOST):
        claims.tell(unread(number))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(claims.run())
        await asyncio.sleep(0.1)
        assert len(told) == MOST
        running.cancel()


async def test_the_controller_places_pods_next_to_odd_claims_and_says_which_it_cannot_read() -> None:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        cluster.pod("p", 8)
        for name, spec, status in (
            ("empty", {"devices": {"requests": None}}, {}),
            ("half", HALF, {}),
            ("none", {}, {"allocation": 5}),
        ):
            metadata = {"name": name, "namespace": "other"}
            api.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec, "status": status})
        api.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "half", "namespace": "other"}, "spec": {"spec": HALF}})
        async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
            controller = Controller(client, recorders=Recorders(unread_claim=recorder(client, instance="c-0")))
            running = [group.create_task(controller.watch()), group.create_task(controller.work())]
            await asyncio.sleep(5)
            assert controller.ready()
            assert not cluster.get_pod("p")["spec"]["schedulingGates"]
            (event,) = api.all(EVENTS)
            assert event["involvedObject"]["name"] == "none"
            assert event["reason"] == "ClaimNotUnderstood"
            assert "status.allocation" in event["message"]
            for task in running:
                task.cancel()
