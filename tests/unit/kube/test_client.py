"""The client against the fake API server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.objects import Metadata
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import LEASES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apiserver import FakeApiServer


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    async with Client(api.config, user_agent="tests/1", timeout_s=5) as entered:
        yield entered


class Tiny(msgspec.Struct):
    metadata: Metadata


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "a"} | metadata, "spec": {"nodeName": "n1"}}


async def test_an_object_comes_back_as_a_dict_or_as_the_struct_that_is_asked_for(
    api: FakeApiServer, client: Client
) -> None:
    stored = api.put(PODS, pod("p", labels={"x": "y"}))

    assert stored == await client.get(PODS, "p", namespace="a")
    tiny = await client.get(PODS, "p", namespace="a", type=Tiny)
    assert (tiny.metadata.name, tiny.metadata.namespace, tiny.metadata.labels) == ("p", "a", {"x": "y"})
    assert stored["metadata"]["uid"] == tiny.metadata.uid


async def test_requests_say_who_asks_and_want_no_compression(api: FakeApiServer, client: Client) -> None:
    api.token = None
    await client.list(NODES)

    headers = api.requests[0].headers
    assert headers["User-Agent"] == "tests/1"
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers


async def test_a_list_is_read_in_pages(api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.kube.client.PAGE", 2)
    for name in "edcba":
        api.put(NODES, {"metadata": {"name": name}})

    nodes, version = await client.list(NODES, type=Tiny)

    assert list("abcde") == [node.metadata.name for node in nodes]
    assert str(api.store.version) == version
    assert [request.query["limit"] for request in api.requests] == ["2", "2", "2"]


async def test_a_list_that_expires_between_pages_is_read_at_once(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.kube.client.PAGE", 2)
    for name in "abc":
        api.put(NODES, {"metadata": {"name": name}})
    first_page = json.dumps({"metadata": {"continue": "W10="}, "items": [{"metadata": {"name": "stale"}}]}).encode()
    api.fail(body=first_page)
    api.fail(status=410, reason="Expired")

    nodes, _ = await client.list(NODES, type=Tiny)

    assert list("abc") == [node.metadata.name for node in nodes]
    assert "limit" not in api.requests[-1].query


async def test_a_page_that_is_too_long_is_asked_for_with_fewer_objects(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.kube.client.PAGE_BYTES", 40_000)
    long, short = [f"a{n:02d}" for n in range(20)], [f"b{n:02d}" for n in range(40)]
    for name in long:
        api.put(PODS, pod(name, annotations={"x": "y" * 5_000}))
    for name in short:
        api.put(PODS, pod(name))

    pods, _ = await client.list(PODS, type=Tiny)

    assert [one.metadata.name for one in pods] == long + short
    limits = [int(request.query["limit"]) for request in api.requests]
    assert limits[0] == 500
    assert min(limits) < 8, "a page is about half of what may be read"
    assert limits[-1] > 20, "short objects come in longer pages again"


async def test_an_object_that_is_longer_than_a_page_is_read(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.kube.client.PAGE_BYTES", 1_000)
    for name in "ab":
        api.put(PODS, pod(name, annotations={"x": "y" * 5_000}))

    pods, _ = await client.list(PODS, type=Tiny)

    assert [one.metadata.name for one in pods] == ["a", "b"]


async def test_a_list_keeps_what_its_reader_keeps(api: FakeApiServer, client: Client) -> None:
    def odd(data: msgspec.Raw) -> str | None:
        name: str = msgspec.json.decode(data)["metadata"]["name"]
        return name if int(name[1:]) % 2 else None

    for number in range(5):
        api.put(PODS, pod(f"p{number}"))

    assert (await client.list(PODS, type=odd))[0] == ["p1", "p3"]


@pytest.mark.slow
async def test_300_writes_that_are_held_do_not_keep_others_waiting(api: FakeApiServer, client: Client) -> None:
    held = asyncio.Event()
    slow = api.fail(times=math.inf, method="POST", mode="hold", until=held)
    async with asyncio.TaskGroup() as group:
        writes = [group.create_task(client.create(PODS, pod(f"p{number}"))) for number in range(300)]
        while slow.hits < 300:
            await asyncio.sleep(0)
        await client.list(NODES)
        assert not any(write.done() for write in writes)
        held.set()
    assert len(api.all(PODS)) == 300


async def test_items_null_is_an_empty_list(api: FakeApiServer, client: Client) -> None:
    api.fail(body=b'{"metadata":{"resourceVersion":"7"},"items":null}')

    assert await client.list(PODS, type=Tiny) == ([], "7")


async def test_selectors_reach_the_server(api: FakeApiServer, client: Client) -> None:
    for number, driver in enumerate(["gpu.topology", "other"]):
        metadata = {"name": f"s{number}", "labels": {"even": str(number % 2 == 0)}}
        api.put(RESOURCE_SLICES, {"metadata": metadata, "spec": {"driver": driver, "nodeName": "n1"}})

    by_field, _ = await client.list(RESOURCE_SLICES, field_selector="spec.driver=other", type=Tiny)
    by_label, _ = await client.list(RESOURCE_SLICES, label_selector="even in (True, Maybe)", type=Tiny)

    assert [found.metadata.name for found in by_field] == ["s1"]
    assert [found.metadata.name for found in by_label] == ["s0"]


async def test_create_tells_a_name_that_is_taken(api: FakeApiServer, client: Client) -> None:
    created = await client.create(PODS, pod("p"))

    assert created["metadata"]["resourceVersion"]
    with pytest.raises(ApiError) as raised:
        await client.create(PODS, pod("p"))
    assert raised.value.already_exists
    assert not raised.value.conflict
    assert "/api/v1/namespaces/a/pods" in str(raised.value)


async def test_create_takes_the_namespace_from_the_call_and_a_name_from_the_server(
    api: FakeApiServer, client: Client
) -> None:
    created = await client.create(PODS, {"metadata": {"generateName": "p-"}}, namespace="b", type=Tiny)

    assert created.metadata.namespace == "b"
    assert created.metadata.name.startswith("p-")
    with pytest.raises(ValueError, match="needs a namespace"):
        await client.create(PODS, {"metadata": {"name": "p"}})


async def test_update_with_an_old_version_is_a_conflict(api: FakeApiServer, client: Client) -> None:
    old = api.put(PODS, pod("p"))
    api.put(PODS, pod("p", labels={"somebody": "else"}))

    with pytest.raises(ApiError) as raised:
        await client.update(PODS, old)

    assert raised.value.conflict


async def test_update_keeps_fields_that_we_do_not_know(api: FakeApiServer, client: Client) -> None:
    api.put(RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": {"fromTheFuture": {"x": [1]}, "driver": "d"}})

    slice_ = await client.get(RESOURCE_SLICES, "s")
    slice_["spec"]["driver"] = "e"
    await client.update(RESOURCE_SLICES, slice_)

    assert [x["spec"] for x in api.all(RESOURCE_SLICES)] == [{"fromTheFuture": {"x": [1]}, "driver": "e"}]


async def test_json_patch_changes_and_its_test_refuses(api: FakeApiServer, client: Client) -> None:
    stored = api.put(PODS, pod("p", annotations={"gpu.topology/gpus": "4"}))
    patch = (
        Patch()
        .test("metadata", "resourceVersion", value=stored["metadata"]["resourceVersion"])
        .add("metadata", "annotations", "gpu.topology/level", value="nvlink")
    )

    changed = await client.patch(PODS, "p", patch, kind=PatchKind.JSON, namespace="a", type=Tiny)
    assert changed.metadata.annotations == {"gpu.topology/gpus": "4", "gpu.topology/level": "nvlink"}

    with pytest.raises(ApiError) as raised:
        await client.patch(PODS, "p", patch, kind=PatchKind.JSON, namespace="a")
    assert raised.value.invalid


async def test_a_patch_in_a_dry_run_is_checked_and_changes_nothing(api: FakeApiServer, client: Client) -> None:
    stored = api.put(PODS, pod("p"))
    body = {"metadata": {"labels": {"x": "y"}, "resourceVersion": stored["metadata"]["resourceVersion"]}}
    tried = await client.patch(PODS, "p", body, kind=PatchKind.MERGE, namespace="a", dry_run=True)
    assert tried["metadata"]["labels"] == {"x": "y"}
    assert await client.get(PODS, "p", namespace="a") == stored
    body["metadata"]["resourceVersion"] = "0"
    with pytest.raises(ApiError) as refused:
        await client.patch(PODS, "p", body, kind=PatchKind.MERGE, namespace="a", dry_run=True)
    assert refused.value.conflict


async def test_merge_patch_removes_with_null(api: FakeApiServer, client: Client) -> None:
    api.put(PODS, pod("p", annotations={"a": "1", "b": "2"}))

    body = {"metadata": {"annotations": {"a": None, "c": "3"}}}
    changed = await client.patch(PODS, "p", body, kind=PatchKind.MERGE, namespace="a", type=Tiny)

    assert changed.metadata.annotations == {"b": "2", "c": "3"}


async def test_delete_says_whether_anything_was_there(api: FakeApiServer, client: Client) -> None:
    uid = api.put(PODS, pod("p"))["metadata"]["uid"]

    with pytest.raises(ApiError) as raised:
        await client.delete(PODS, "p", namespace="a", uid="another")
    assert raised.value.conflict
    assert await client.delete(PODS, "p", namespace="a", uid=uid)
    assert not await client.delete(PODS, "p", namespace="a", uid=uid)
    assert api.all(PODS) == []


async def test_finalizers_hold_an_object_until_they_are_gone(api: FakeApiServer, client: Client) -> None:
    api.put(PODS, pod("p", finalizers=["x/y"]))

    await client.delete(PODS, "p", namespace="a")
    held = await client.get(PODS, "p", namespace="a")
    assert held["metadata"]["deletionTimestamp"]
    del held["metadata"]["finalizers"]
    await client.update(PODS, held)

    assert api.all(PODS) == []


async def test_connections_are_kept(api: FakeApiServer, client: Client) -> None:
    await client.list(PODS)
    with pytest.raises(ApiError):
        await client.get(PODS, "p", namespace="a")
    await client.list(PODS)

    assert client.connection._session is not None
    connector = client.connection._session.connector
    assert connector is not None
    assert sum(len(connections) for connections in connector._conns.values()) == 1


def test_paths() -> None:
    assert RESOURCE_CLAIMS.path("a", "c") == "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c"
    assert LEASES.path() == "/apis/coordination.k8s.io/v1/leases"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert NODES.path(name="a?b") == "/api/v1/nodes/a%3Fb"


@pytest.mark.parametrize(("namespace", "name"), [("a", ""), ("a", ".."), ("a", "x/y"), (None, "p"), ("", "p")])
def test_a_path_that_would_address_something_else_is_refused(namespace: str | None, name: str) -> None:
    with pytest.raises(ValueError, match="Pod"):
        PODS.path(namespace, name)


def test_a_cluster_wide_kind_has_no_namespace() -> None:
    with pytest.raises(ValueError, match="has no namespace"):
        NODES.path("a", "n")


async def test_a_pod_is_evicted_as_it_was_seen() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="test") as client:
        pod = api.put(PODS, {"metadata": {"name": "p", "namespace": "a"}, "status": {"phase": "Running"}})
        seen = {"uid": pod["metadata"]["uid"], "resourceVersion": "1"}
        body = {"metadata": {"name": "p", "namespace": "a"}, "deleteOptions": {"preconditions": seen}}
        with pytest.raises(ApiError) as refused:
            await client.create(PODS, body, namespace="a", subresource="eviction")
        assert refused.value.conflict
        assert api.requests[-1].path == "/api/v1/namespaces/a/pods/p/eviction"
        seen["resourceVersion"] = pod["metadata"]["resourceVersion"]
        await client.create(PODS, body, namespace="a", subresource="eviction")
        assert api.find(PODS, "p", "a") is None
