"""The slice of the seats: made, mended, and relied on only where the server keeps all of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from dradriver.api.base import gang_barrier_device, names
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.writing.gang_barrier_slice import AGAIN_S, NO_CLASS, WITHOUT, SeatSlice, recorder
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.resources import DEVICE_CLASSES, EVENTS, RESOURCE_SLICES
from tests import schema
from tests.fakes.apistore import Store, Stored
from tests.fakes.gpucluster import DirectClient

BELOW_136 = {"allowMultipleAllocations", "bindingConditions", "bindingFailureConditions"}


class Cluster(Stored):
    """A server with the chart's DeviceClass, and whoever sees to the slice there."""

    def __init__(self) -> None:
        self.store = Store()
        self.told: list[tuple[str, str]] = []
        self.client = DirectClient(self.store)
        self.picture = Picture(lambda _: None, lambda: None)
        self.seats = SeatSlice(cast("Client", self.client), self.picture, self._record)
        self.install()

    async def _record(self, uid: str, message: str) -> None:
        self.told.append((uid, message))

    def install(self) -> str:
        made = self.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}, "spec": {}})
        return cast("str", made["metadata"]["uid"])

    @property
    def slice(self) -> dict[str, Any] | None:
        return self.find(RESOURCE_SLICES, gang_barrier_device.SLICE)

    @property
    def barrier(self) -> bool:
        assert REGISTRY.get_sample_value("gpu_topology_gang_barrier") == self.picture.barrier
        return bool(self.picture.barrier)

    @contextlib.asynccontextmanager
    async def led(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.seats.run())
        try:
            await self.seats.first_look()
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_it_is_made_once_and_goes_with_the_charts_class() -> None:
    cluster = Cluster()
    assert await cluster.seats.look()
    assert cluster.barrier
    made = cluster.slice
    assert made is not None
    assert made["spec"] == gang_barrier_device.resource_slice()["spec"]
    owner = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "name": gang_barrier_device.CLASS}
    (one,) = made["metadata"]["ownerReferences"]
    assert one == owner | {"uid": cluster.find(DEVICE_CLASSES, gang_barrier_device.CLASS)["metadata"]["uid"]}  # type: ignore[index]
    schema.check(gang_barrier_device.resource_slice("00000000-0000-4000-8000-000000000001"))
    assert await cluster.seats.look()
    assert cluster.client.writes == [("try", gang_barrier_device.SLICE), ("create", gang_barrier_device.SLICE)]
    assert cluster.told == []


async def test_below_136_nothing_is_stored_and_it_is_said_once() -> None:
    cluster = Cluster()
    cluster.store.lacks = set(BELOW_136)
    for _ in range(3):
        assert await cluster.seats.look()
        assert not cluster.barrier
    assert cluster.slice is None
    assert {verb for verb, _ in cluster.client.writes} == {"try"}
    ((uid, told),) = cluster.told
    assert uid
    assert told.startswith(WITHOUT)
    assert "drops allowMultipleAllocations, bindingConditions, bindingFailureConditions" in told
    cluster.store.lacks = set()
    assert await cluster.seats.look()
    assert cluster.barrier, "the server was upgraded"


@pytest.mark.parametrize("lacks", sorted(BELOW_136))
async def test_a_seat_that_lacks_one_of_its_fields_keeps_no_pod(lacks: str) -> None:
    cluster = Cluster()
    cluster.store.lacks = {lacks}
    await cluster.seats.look()
    assert not cluster.barrier
    cluster.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
    await cluster.seats.look()
    assert not cluster.barrier, "one that is there is written anew, and read back"


def _taint(spec: dict[str, Any]) -> None:
    spec["devices"][0]["taints"] = [{"key": "a", "effect": "NoSchedule"}]


def _lost(spec: dict[str, Any]) -> None:
    del spec["devices"][0]["bindingConditions"]


def _count(spec: dict[str, Any]) -> None:
    spec["pool"] |= {"generation": 7, "resourceSliceCount": 2}


@pytest.mark.parametrize("damage", [_taint, _lost, _count])
async def test_what_a_user_changed_of_it_is_undone(damage: Any) -> None:
    cluster = Cluster()
    await cluster.seats.look()
    before = cluster.slice
    assert before is not None
    cluster.store.edit(RESOURCE_SLICES, ("", gang_barrier_device.SLICE), lambda obj: damage(obj["spec"]))
    assert await cluster.seats.look()
    assert cluster.barrier
    after = cluster.slice
    assert after is not None
    generation = 7 if damage is _count else 1
    assert after["spec"] == before["spec"] | {"pool": before["spec"]["pool"] | {"generation": generation}}
    writes = len(cluster.client.writes)
    await cluster.seats.look()
    assert len(cluster.client.writes) == writes


async def test_a_class_that_was_made_again_owns_it() -> None:
    cluster = Cluster()
    await cluster.seats.look()
    cluster.remove(DEVICE_CLASSES, gang_barrier_device.CLASS)
    uid = cluster.install()
    assert await cluster.seats.look()
    made = cluster.slice
    assert made is not None
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [uid]


async def test_anothers_slice_of_that_name_is_replaced() -> None:
    cluster = Cluster()
    theirs = gang_barrier_device.resource_slice()
    theirs["spec"]["driver"] = "other.example.com"
    before = cluster.put(RESOURCE_SLICES, theirs)
    cluster.client.refuse["update"] = [ApiError(422, "Invalid", "spec.driver: Invalid value: field is immutable")]
    assert await cluster.seats.look()
    made = cluster.slice
    assert made is not None
    assert made["spec"]["driver"] == names.DRIVER
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert cluster.barrier


async def test_without_the_class_there_is_no_barrier_and_helm_may_make_it_a_moment_later() -> None:
    cluster = Cluster()
    cluster.remove(DEVICE_CLASSES, gang_barrier_device.CLASS)
    await cluster.seats.look()
    assert not cluster.barrier
    assert cluster.told == []
    await cluster.seats.look()
    assert cluster.told == [("", f"{WITHOUT}: {NO_CLASS}")]
    assert cluster.slice is None
    cluster.install()
    await cluster.seats.look()
    assert cluster.barrier


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (ApiError(403, "Forbidden", "the controller may not"), True),
        (ApiError(422, "Invalid", "no"), True),
        (ApiError(409, "AlreadyExists", "another leader was first"), False),
        (ApiError(503, "ServiceUnavailable", "down"), False),
        (Unreachable("no answer"), False),
    ],
)
async def test_a_refusal_is_told_and_trouble_of_the_server_leaves_all_as_it_was(error: Any, known: bool) -> None:
    cluster = Cluster()
    await cluster.seats.look()
    cluster.remove(RESOURCE_SLICES, gang_barrier_device.SLICE)
    cluster.client.refuse["create"] = [error]
    assert not await cluster.seats.look(), "it is tried again soon"
    assert cluster.barrier is not known
    assert [told for _, told in cluster.told] == (
        [f"{WITHOUT}: ResourceSlice {gang_barrier_device.SLICE} cannot be written: {error}"] if known else []
    )
    assert await cluster.seats.look()
    assert cluster.barrier


async def test_a_leader_makes_it_again_within_a_minute_and_a_standby_knows_of_no_barrier() -> None:
    cluster = Cluster()
    async with cluster.led():
        assert cluster.barrier
        cluster.remove(RESOURCE_SLICES, gang_barrier_device.SLICE)
        await asyncio.sleep(AGAIN_S + 1)
        assert cluster.slice is not None
        assert cluster.barrier
        cluster.remove(DEVICE_CLASSES, gang_barrier_device.CLASS)
        cluster.seats.wake()
        await asyncio.sleep(0.1)
        assert not cluster.barrier, "at once where its watch tells"
        cluster.install()
    assert not cluster.barrier
    async with cluster.led():
        assert cluster.barrier, "known before anything is planned"


async def test_a_server_that_fails_is_asked_ever_more_seldom_and_a_new_leader_does_not_wait_for_it() -> None:
    cluster = Cluster()
    down = ApiError(503, "ServiceUnavailable", "down")
    cluster.client.refuse["try"] = [down] * 1000
    async with cluster.led():
        assert not cluster.barrier
        await asyncio.sleep(600)
        assert 8 < len(cluster.client.writes) < 20
        cluster.client.refuse["try"].clear()
        await asyncio.sleep(AGAIN_S + 1)
        assert cluster.barrier


async def test_the_event_is_about_the_class() -> None:
    cluster = Cluster()
    record = recorder(cast("Client", cluster.client), instance="c-0")
    await record("u", "no seats")
    (event,) = cluster.all(EVENTS)
    schema.check(event)
    assert event["involvedObject"] | {"uid": ""} == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "name": gang_barrier_device.CLASS,
        "uid": "",
    }
    assert (event["reason"], event["type"], event["message"]) == ("GangBarrierUnavailable", "Warning", "no seats")


async def test_a_server_that_wants_a_pause_gets_it_during_any_change() -> None:
    cluster = Cluster()
    cluster.client.refuse["try"] = [ApiError(429, "TooManyRequests", "later", retry_after_s=20.0)]
    async with cluster.led():
        cluster.seats.wake()
        await asyncio.sleep(19)
        assert len(cluster.client.writes) == 1
        await asyncio.sleep(5)
        assert cluster.barrier


async def test_a_first_look_that_found_nothing_out_does_not_count() -> None:
    cluster = Cluster()
    cluster.picture.barrier = None
    get, asked = cluster.client.get, list[str]()

    async def troubled(*args: Any, **kwargs: Any) -> Any:
        asked.append(str(args[1]))
        if len(asked) == 1:
            raise ApiError(503, "ServiceUnavailable", "etcd leader changed")
        return await get(*args, **kwargs)

    cluster.client.get = troubled  # type: ignore[method-assign]
    async with cluster.led():
        assert cluster.picture.barrier is True
