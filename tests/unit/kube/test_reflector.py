"""The reflector against the fake API server: what it does when all goes well, and how its store and changes behave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from dradriver.kube.client import Client
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import PODS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.following import Tiny, event, following, lists, put, watches

pytestmark = pytest.mark.looptime


async def test_a_watch_list_fills_the_store_and_goes_on() -> None:
    async with FakeApiServer() as api:
        put(api, "p1")
        put(api, "p2")
        async with following(api) as it:
            assert it.names == {"p1", "p2"}
            assert sorted(it.told()) == ["+p1", "+p2"]

            put(api, "p3")
            put(api, "p1", labels={"x": "y"})
            api.remove(PODS, "p2", "a")
            await asyncio.sleep(1)

            assert it.told() == ["+p3", "~p1", "-p2"]
            assert it.names == {"p1", "p3"}
            assert it.reflector.store["a", "p1"].metadata.labels == {"x": "y"}
        assert len(api.requests) == 1
        query = api.requests[0].query
        assert query["sendInitialEvents"] == query["allowWatchBookmarks"] == "true"
        assert query["resourceVersionMatch"] == "NotOlderThan"
        assert "resourceVersion" not in query


async def test_nothing_is_seen_of_a_watch_list_before_its_end() -> None:
    async with FakeApiServer() as api:
        api.fail(watch=True, lines=[event("ADDED", "p1", "5"), event("ADDED", "p2", "4")], mode="silence")
        async with following(api) as it:
            assert not it.reflector.synced.is_set()
            assert it.names == set()
            assert it.told() == []


async def test_what_changes_while_a_watch_list_begins_is_not_lost() -> None:
    end = {"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}
    lines: list[bytes | dict[str, Any]] = [
        event("ADDED", "p1", "5"),
        event("ADDED", "p2", "4"),
        event("MODIFIED", "p1", "7"),
        event("DELETED", "p2", "8"),
        {"type": "BOOKMARK", "object": end},
    ]
    async with FakeApiServer() as api:
        api.fail(watch=True, lines=lines, mode="silence")
        async with following(api) as it:
            assert it.told() == ["+p1"]
            assert it.reflector.store["a", "p1"].metadata.resource_version == "7"


async def test_after_a_list_the_watch_begins_at_its_version() -> None:
    async with FakeApiServer(watch_list=False) as api:
        version = put(api, "p1")["metadata"]["resourceVersion"]
        async with following(api) as it:
            assert it.names == {"p1"}
            put(api, "p2")
            await asyncio.sleep(1)
            assert it.names == {"p1", "p2"}

        assert lists(api)[0].query == {"limit": "500"}
        query = watches(api)[-1].query
        assert version == query["resourceVersion"]
        assert query["allowWatchBookmarks"] == "true"
        assert 300 <= int(query["timeoutSeconds"]) <= 600


async def test_the_selection_is_part_of_lists_and_watches() -> None:
    async with FakeApiServer(watch_list=False) as api:
        put(api, "p1", labels={"x": "y"})
        put(api, "p2")
        fields = "metadata.namespace=a"
        async with following(api, label_selector="x=y", field_selector=fields, namespace="a") as it:
            assert it.names == {"p1"}
            put(api, "p1", labels={})
            put(api, "p2", labels={"x": "y"})
            await asyncio.sleep(1)
            assert it.told() == ["+p1", "-p1", "+p2"]
        assert all(request.path == "/api/v1/namespaces/a/pods" for request in api.requests)


async def test_the_next_watch_begins_where_the_last_event_or_bookmark_was() -> None:
    async with FakeApiServer(bookmark_s=10) as api:
        async with following(api) as it:
            last = put(api, "p1")["metadata"]["resourceVersion"]
            await asyncio.sleep(1)
            api.disconnect()
            await asyncio.sleep(1)
            assert watches(api)[-1].query["resourceVersion"] == last

            api.store.version += 50
            await asyncio.sleep(11)
            api.disconnect()
            await asyncio.sleep(1)
            assert watches(api)[-1].query["resourceVersion"] == str(int(last) + 50)
            assert it.told() == ["+p1"]
        assert lists(api) == []


async def test_versions_are_not_numbers_and_errors_have_none() -> None:
    error = {"metadata": {"resourceVersion": "wrong"}, "kind": "Status", "code": 503, "message": "etcd is away"}
    async with FakeApiServer(watch_list=False) as api:
        api.fail(watch=False, body=b'{"metadata":{"resourceVersion":"zz"},"items":[]}')
        api.fail(watch=True, status=422)
        api.fail(watch=True, lines=[event("ADDED", "p", "b"), event("MODIFIED", "p", "a")])
        api.fail(watch=True, lines=[{"type": "ERROR", "object": error}])
        api.fail(watch=True, mode="silence")
        async with following(api) as it:
            await asyncio.sleep(5)
            assert it.told() == ["+p", "~p"]
        assert [request.query.get("resourceVersion") for request in watches(api)] == [None, "zz", "a", "a"]


async def test_a_relist_tells_what_happened_meanwhile() -> None:
    async with FakeApiServer() as api:
        for name in ("gone", "same", "new-labels", "other-uid"):
            put(api, name)
        async with following(api) as it:
            old = it.reflector.store["a", "other-uid"]
            it.told()
            api.fail(watch=True, status=503, times=2)
            api.disconnect()
            await asyncio.sleep(0)
            api.remove(PODS, "gone", "a")
            api.remove(PODS, "other-uid", "a")
            put(api, "other-uid")
            put(api, "new-labels", labels={"x": "y"})
            put(api, "added")
            api.compact()
            await asyncio.sleep(10)

            changes = list(it.changes)
            assert sorted(it.told()) == ["+added", "+other-uid", "-gone", "-other-uid", "~new-labels"]
            went = next(change for change in changes if change.key[1] == "other-uid")
            assert went.new is None
            assert went.old is old
            assert it.names == {"same", "new-labels", "other-uid", "added"}


async def test_the_store_is_whole_before_anybody_is_told() -> None:
    seen: list[set[str]] = []
    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        put(api, "p1")
        put(api, "p2")
        reflector = Reflector(
            client, PODS, Tiny, on_change=lambda _: seen.append({name for _, name in reflector.store})
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(reflector.run())
            await reflector.synced.wait()
            running.cancel()
    assert seen == [{"p1", "p2"}, {"p1", "p2"}]


async def test_the_store_cannot_be_written() -> None:
    async with FakeApiServer() as api:
        put(api, "p1")
        async with following(api) as it:
            with pytest.raises(TypeError):
                del it.reflector.store["a", "p1"]  # type: ignore[attr-defined]


async def test_an_event_of_a_known_version_tells_nothing() -> None:
    async with FakeApiServer(watch_list=False) as api:
        api.fail(watch=True, status=422)
        api.fail(watch=True, lines=[event("ADDED", "p", "5"), event("MODIFIED", "p", "5"), event("DELETED", "q", "6")])
        async with following(api) as it:
            assert it.told() == ["+p"]


async def test_a_handler_that_raises_is_logged_and_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: Change[Tiny]) -> None:
        raise RuntimeError("oops")

    async with FakeApiServer() as api:
        put(api, "p1")
        put(api, "p2")
        async with following(api, on_change=bad) as it:
            assert it.names == {"p1", "p2"}
            put(api, "p3")
            await asyncio.sleep(1)
            assert it.names == {"p1", "p2", "p3"}
    assert "a handler of pods failed on a/p2" in caplog.text
    assert "oops" in caplog.text


async def test_cancelling_closes_the_connection() -> None:
    async with FakeApiServer() as api:
        async with following(api):
            assert api.watchers == 1
        await asyncio.sleep(1)
        assert api.watchers == 0


async def test_a_line_longer_than_aiohttp_reads_is_read() -> None:
    async with FakeApiServer() as api, following(api) as it:
        put(api, "big", annotations={"x": "y" * 1_400_000})
        put(api, "small")
        await asyncio.sleep(1)
        assert it.names == {"big", "small"}


async def test_an_event_nested_deeper_than_pythons_recursion_limit_is_read() -> None:
    deep = json.dumps(event("ADDED", "deep", "5", spec="here")).encode()
    deep = deep.replace(b'"here"', b'{"parameters":' + b"[" * 5000 + b"]" * 5000 + b"}")
    async with FakeApiServer(watch_list=False) as api:
        api.fail(watch=True, status=422)
        api.fail(watch=True, lines=[deep, event("ADDED", "p", "6")], mode="silence")
        async with following(api) as it:
            assert it.told() == ["+deep", "+p"]


async def test_metrics_count_what_was_done() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(f"gpu_topology_reflector_{name}", {"resource": "pods"} | labels) or 0

    names = ("lists_total", "watches_total")
    before = [value(name) for name in names] + [value("relists_total", reason="expired")]
    async with FakeApiServer(watch_list=False) as api:
        put(api, "p1")
        async with following(api):
            api.fail(watch=True, status=410, reason="Expired")
            api.disconnect()
            await asyncio.sleep(5)
            put(api, "p2")
            await asyncio.sleep(1)
            assert value("objects") == 2
            assert value("last_event_timestamp_seconds") > 1.7e9
    after = [value(name) for name in names] + [value("relists_total", reason="expired")]
    # WatchList refused, watch, watch refused with 410, watch after the second LIST.
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 4, 1]


async def test_a_refresh_reads_everything_again() -> None:
    async with FakeApiServer() as api:
        put(api, "p1")
        async with following(api) as it:
            assert it.told() == ["+p1"]
            put(api, "p2")
            await it.reflector.refresh(5)
            assert it.names == {"p1", "p2"}
            assert it.told() == ["+p2"]
            put(api, "p3")
            await asyncio.sleep(1)
            assert it.told() == ["+p3"]
        assert len(api.requests) == 2
        assert "sendInitialEvents" in api.requests[1].query
        assert "resourceVersion" not in api.requests[1].query


async def test_a_refresh_before_the_first_read_is_done_waits_for_one_that_began_later() -> None:
    async with FakeApiServer() as api:
        begun = asyncio.Event()
        api.fail(mode="hold", until=begun)
        async with following(api) as it:
            asked = asyncio.create_task(it.reflector.refresh(5))
            await asyncio.sleep(0)
            put(api, "p")
            begun.set()
            await asked
            assert it.told() == ["+p"]
        assert len(watches(api)) == 2


async def test_two_refreshes_at_once_are_both_answered() -> None:
    async with FakeApiServer() as api, following(api) as it:
        put(api, "p")
        await asyncio.gather(it.reflector.refresh(5), it.reflector.refresh(5))
        assert it.names == {"p"}


async def test_what_is_unchanged_is_kept_as_the_same_object_by_a_refresh() -> None:
    for watch_list in (True, False):
        async with FakeApiServer(watch_list=watch_list) as api:
            put(api, "p1")
            async with following(api) as it:
                before = it.reflector.store["a", "p1"]
                await it.reflector.refresh(5)
                assert it.reflector.store["a", "p1"] is before


def _marked(data: msgspec.Raw) -> Tiny | None:
    one: Tiny = msgspec.json.decode(data, type=Tiny)
    return one if "kept" in one.metadata.labels else None


@pytest.mark.parametrize("watch_list", [True, False])
async def test_what_nothing_is_kept_of_is_not_there(*, watch_list: bool) -> None:
    changes: list[Change[Tiny]] = []
    async with FakeApiServer(watch_list=watch_list) as api, Client(api.config, user_agent="t") as client:
        put(api, "p1", labels={"kept": "yes"})
        put(api, "p2")
        reflector = Reflector(client, PODS, _marked, on_change=changes.append)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(reflector.run())
            await reflector.synced.wait()
            assert list(reflector.store) == [("a", "p1")]
            one = reflector.store["a", "p1"]

            put(api, "p1", labels={})
            put(api, "p2", labels={"kept": "yes"})
            put(api, "p1", labels={"kept": "again"})
            last = put(api, "p3")["metadata"]["resourceVersion"]
            api.remove(PODS, "p3", "a")
            await asyncio.sleep(1)
            running.cancel()
    told = [(change.key[1], change.old is not None, change.new is not None) for change in changes]
    assert told == [("p1", False, True), ("p1", True, False), ("p2", False, True), ("p1", False, True)]
    assert changes[1].old is one
    assert set(reflector.store) == {("a", "p1"), ("a", "p2")}
    # The version moves on with what is not kept, too.
    assert int(reflector._version) > int(last)
