"""One object that cannot be read stops no other, in lists and watches, and what can be read of it counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.cluster.records import records
from dradriver.cluster.records.records import ClaimRecord
from dradriver.kube import isolated
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.errors import Unreadable
from dradriver.kube.isolated import Unread
from dradriver.kube.reflector import Reflector
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.node.publishing import allocated_devices
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.following import watches

pytestmark = pytest.mark.looptime

HALF = {"a": "\ud800"}
FOREIGN = {"opaque": {"driver": "other.example.com", "parameters": HALF}}


def claim(name: str, *, device: str = "", **changes: Any) -> dict[str, Any]:
    results = [{"driver": "gpu.topology", "pool": "n", "device": device}] if device else []
    status = {"allocation": {"devices": {"results": results}}} if device else {}
    metadata = {"name": name, "namespace": "a", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"devices": {"requests": []}}, "status": status} | changes


ODD: dict[str, dict[str, Any]] = {
    "an empty spec": claim("odd", spec={"devices": {"requests": None}}, status={}),
    "half a pair for another driver": claim("odd", device="g", spec={"devices": {"config": [FOREIGN]}}),
    "half a pair in a status": claim("odd", status={"devices": [{"driver": "x", "data": HALF}]}),
    "a spec that is none": claim("odd", device="g", spec=[5]),
    "a request that is none": claim("odd", device="g", spec={"devices": {"requests": [5]}}),
    "an allocation that is none": claim("odd", status={"allocation": [5]}),
    "a version that is none": claim("odd", status={"reservedFor": {"a": 1e300}}),
}


@contextlib.asynccontextmanager
async def following(api: FakeApiServer, **options: Any) -> AsyncIterator[Reflector[ClaimRecord]]:
    async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
        reflector = Reflector(client, RESOURCE_CLAIMS, records.read_claim, **options)
        running = group.create_task(reflector.run())
        await asyncio.sleep(1)
        yield reflector
        running.cancel()


@pytest.mark.parametrize("watch_list", [True, False])
@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
async def test_an_odd_claim_hides_no_other(odd: dict[str, Any], *, watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as api:
        api.put(RESOURCE_CLAIMS, claim("before", device="g1"))
        async with following(api) as it:
            api.put(RESOURCE_CLAIMS, odd)
            last = api.put(RESOURCE_CLAIMS, claim("after", device="g2"))
            await asyncio.sleep(1)
            assert {("a", "before"), ("a", "after")} <= it.store.keys()
            api.disconnect()
            await asyncio.sleep(1)
        assert watches(api)[-1].query["resourceVersion"] == last["metadata"]["resourceVersion"]
        async with following(api) as it:  # after a restart
            assert it.synced.is_set()
            assert {("a", "before"), ("a", "after")} <= it.store.keys()


@pytest.mark.parametrize("watch_list", [True, False])
@pytest.mark.parametrize("odd", [one for one in ODD.values() if one["status"].get("allocation") not in (None, [5])])
async def test_what_an_odd_claim_holds_is_known(odd: dict[str, Any], *, watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as api:
        api.put(RESOURCE_CLAIMS, odd)
        async with following(api) as it:
            assert it.store["a", "odd"].devices == {("n", "g"): None}
        async with Client(api.config, user_agent="t") as client:
            assert await allocated_devices.devices(client, pool="n") == {"g"}


async def test_what_cannot_be_read_at_all_is_counted_and_told() -> None:
    told: list[Unread] = []
    nothing, part = (isolated.UNREAD.labels("resourceclaims", kept)._value for kept in ("nothing", "part"))
    before = nothing.get(), part.get()

    def read(data: msgspec.Raw) -> ClaimRecord | None:
        if b'"bug"' in bytes(data):
            raise OverflowError("a bug")
        return records.read_claim(data)

    async with FakeApiServer() as api:
        api.put(RESOURCE_CLAIMS, ODD["an allocation that is none"])
        api.put(RESOURCE_CLAIMS, claim("bug"))
        api.put(RESOURCE_CLAIMS, claim("good", device="g"))
        async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
            reflector = Reflector(client, RESOURCE_CLAIMS, read, on_unread=told.append)
            running = group.create_task(reflector.run())
            await asyncio.sleep(1)
            assert set(reflector.store) == {("a", "good")}
            api.put(RESOURCE_CLAIMS, claim("good") | {"status": 5})
            await asyncio.sleep(1)
            assert set(reflector.store) == set(), "what it held before it holds no more, as far as anybody knows"
            running.cancel()
    assert (nothing.get(), part.get()) == (before[0] + 1, before[1] + 2)
    assert [(one.identity.name, one.identity.uid) for one in told] == [
        ("odd", "uid-odd"), ("bug", "uid-bug"), ("good", "uid-good"),
    ]  # fmt: skip
    assert "status.allocation" in told[0].why


async def test_a_thousand_odd_objects_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer() as api:
        for number in range(1000):
            api.put(RESOURCE_CLAIMS, claim(f"odd{number}", spec=[5]))
        async with following(api):
            pass
    assert 1 <= caplog.text.count("cannot be decoded") <= 16


async def test_a_deleted_object_goes_even_if_it_is_odd() -> None:
    async with FakeApiServer() as api:
        api.put(RESOURCE_CLAIMS, claim("c", device="g"))
        async with following(api) as it:
            assert set(it.store) == {("a", "c")}
            gone = claim("c", spec=[5], status=7)
            gone["metadata"]["resourceVersion"] = "99"
            api.fail(watch=True, lines=[{"type": "DELETED", "object": gone}], mode="silence")
            api.disconnect()
            await asyncio.sleep(1)
            assert set(it.store) == set()


async def test_an_answer_about_one_object_is_no_trouble_of_the_server() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        api.put(PODS, {"metadata": {"name": "p", "namespace": "a", "labels": 5}})
        with pytest.raises(Unreadable) as raised:
            await client.get(PODS, "p", namespace="a", type=Pod)
        assert isinstance(raised.value, ApiError)
        assert "metadata.labels" in str(raised.value)
        for body in (b"<html>", b"[]", b'{"metadata":{"labels":5}}'):
            api.fail(body=body)
            with pytest.raises(Unreachable):
                await client.get(PODS, "p", namespace="a", type=Pod)


async def test_a_list_leaves_out_what_cannot_be_read() -> None:
    class Tiny(msgspec.Struct):
        metadata: Metadata

    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        for name, labels in (("good", {}), ("odd", 5), ("other", {"a": "\ud800"})):
            api.put(PODS, {"metadata": {"name": name, "namespace": "a", "labels": labels}})
        found, _ = await client.list(PODS, type=Tiny)
        assert [one.metadata.name for one in found] == ["good", "other"]
