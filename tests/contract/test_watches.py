"""Lists and watches: what comes, in which order, and with which versions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from dradriver.api.base.pods import Pod
from dradriver.kube.client import Unreachable
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.kube.stream_lines import Lines
from tests.contract.conftest import Object, Server, refused

INITIAL: dict[str, Any] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


@dataclass
class Watch:
    lines: Lines

    async def next(self, count: int = 1) -> list[tuple[str, Object]]:
        """Return the next events, bookmarks aside that say no more than a version."""
        found: list[tuple[str, Object]] = []
        while len(found) < count:
            event = json.loads(await anext(self.lines))
            if event["type"] != "BOOKMARK" or event["object"]["metadata"].get("annotations"):
                found.append((event["type"], event["object"]))
        return found


@contextlib.asynccontextmanager
async def watching(server: Server, resource: Resource = RESOURCE_CLAIMS, **params: str) -> AsyncIterator[Watch]:
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "30"} | params
    namespace = server.namespace if resource.namespaced else None
    async with server.client.stream(resource, namespace=namespace, params=query, silence_s=10) as lines:
        yield Watch(lines)


def told(events: list[tuple[str, Object]]) -> list[tuple[str, str]]:
    return [(kind, obj["metadata"]["name"]) for kind, obj in events]


def version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def test_events_come_in_the_order_of_the_writes(server: Server) -> None:
    _, begin = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace)
    first = await server.claim("first")
    async with watching(server, resourceVersion=begin) as watch:
        second = await server.claim("second")
        changed = await server.patch(RESOURCE_CLAIMS, "first", {"metadata": {"labels": {"a": "b"}}})
        await server.delete(RESOURCE_CLAIMS, "second")
        events = await watch.next(4)

    assert told(events) == [("ADDED", "first"), ("ADDED", "second"), ("MODIFIED", "first"), ("DELETED", "second")]
    versions = [version(obj) for _, obj in events]
    assert versions[:3] == [version(first), version(second), version(changed)]
    assert versions == sorted(set(versions)), "an end has a version of its own, newer than the object's last"
    assert events[3][1]["metadata"]["uid"] == second["metadata"]["uid"]


async def test_a_list_is_of_one_version(server: Server) -> None:
    await server.claim("a")
    last = await server.claim("b")

    claims, at = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace)
    assert [claim["metadata"]["name"] for claim in claims] == ["a", "b"]
    assert int(at) >= version(last)


async def test_a_list_comes_in_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dradriver.kube.client.PAGE", 2)
    for name in "abcde":
        await server.claim(name)

    claims, _ = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace)
    assert [claim["metadata"]["name"] for claim in claims] == list("abcde")


async def test_a_watch_list_begins_with_all_that_was_written_before_it(server: Server) -> None:
    last = await server.claim("a")
    async with watching(server, **INITIAL) as watch:
        (first, (kind, end)) = await watch.next(2)
        assert told([first]) == [("ADDED", "a")]
        assert (kind, end["metadata"]["annotations"]) == ("BOOKMARK", {"k8s.io/initial-events-end": "true"})
        assert version(end) >= version(last)
        await server.claim("b")
        assert told(await watch.next()) == [("ADDED", "b")]


async def test_a_watch_list_needs_the_word_for_how_fresh(server: Server) -> None:
    async def begin() -> None:
        async with watching(server, sendInitialEvents="true"):
            pass

    assert (await refused(begin())).invalid


async def test_a_watch_from_a_version_that_is_not_there_yet_says_nothing(server: Server) -> None:
    """As after a restored backup: no refusal tells that this version will never come."""
    _, at = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace)
    async with watching(server, resourceVersion=str(int(at) + 10**6)) as watch:
        watch.lines.silence_s = 4
        await server.claim()
        with pytest.raises(Unreachable, match="silent"):
            await watch.next()


async def test_a_deletion_with_a_finalizer_is_two_events(server: Server) -> None:
    created = await server.claim("c", finalizers=["example.com/hold"])
    async with watching(server, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        await server.delete(RESOURCE_CLAIMS, "c")
        await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"finalizers": None}})
        deleted, gone = await watch.next(2)

    assert told([deleted, gone]) == [("MODIFIED", "c"), ("DELETED", "c")]
    assert deleted[1]["metadata"]["deletionTimestamp"]
    assert version(gone[1]) > version(deleted[1])


LABELS: list[tuple[str, set[str]]] = [
    ("a=1", {"one"}),
    ("a==1", {"one"}),
    ("a!=1", {"two", "none"}),
    ("a", {"one", "two"}),
    ("!a", {"none"}),
    ("a in (1, 2),b", {"two"}),
    ("a notin (1)", {"two", "none"}),
]


@pytest.mark.parametrize(("selector", "names"), LABELS, ids=[selector for selector, _ in LABELS])
async def test_label_selectors(server: Server, selector: str, names: set[str]) -> None:
    for name, labels in {"one": {"a": "1"}, "two": {"a": "2", "b": ""}, "none": {"c": "1"}}.items():
        await server.claim(name, labels=labels)

    found, _ = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace, label_selector=selector)
    assert {claim["metadata"]["name"] for claim in found} == names


async def test_field_selectors(server: Server) -> None:
    await server.pod("bound", nodeName="n1")
    await server.pod("free")

    async def names(selector: str) -> set[str]:
        found, _ = await server.client.list(PODS, namespace=server.namespace, field_selector=selector)
        return {pod["metadata"]["name"] for pod in found}

    assert await names("spec.nodeName=n1") == {"bound"}
    assert await names("spec.nodeName!=n1") == {"free"}
    assert await names("spec.nodeName=,metadata.name=free") == {"free"}
    assert (await refused(names("spec.priority=1"))).status == 400


async def test_slices_are_selected_by_driver(server: Server) -> None:
    driver = f"{server.namespace}.example.com"
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    for name, other in (("mine", driver), ("other", "other." + driver)):
        spec = {"driver": other, "pool": pool, "allNodes": True}
        await server.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{server.namespace}-{name}"}, "spec": spec})
    try:
        found, _ = await server.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")
        assert [piece["metadata"]["name"] for piece in found] == [f"{server.namespace}-mine"]
    finally:
        for name in ("mine", "other"):
            await server.client.delete(RESOURCE_SLICES, f"{server.namespace}-{name}")


async def test_what_leaves_a_selection_is_deleted_for_its_watch(server: Server) -> None:
    _, begin = await server.client.list(RESOURCE_CLAIMS, namespace=server.namespace)
    async with watching(server, resourceVersion=begin, labelSelector="a=1") as watch:
        await server.claim("c")
        came = await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"a": "1"}}})
        left = await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"a": "2"}}})
        events = await watch.next(2)

    assert told(events) == [("ADDED", "c"), ("DELETED", "c")]
    assert [version(obj) for _, obj in events] == [version(came), version(left)]


async def test_a_refresh_shows_every_write_before_it(server: Server) -> None:
    changes: list[Change[Pod]] = []
    reflector = Reflector(server.client, PODS, Pod, namespace=server.namespace, on_change=changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reflector.run())
        for number in range(5):
            await server.pod(f"p{number}")
            await reflector.refresh(10)
            assert (server.namespace, f"p{number}") in reflector.store
        running.cancel()
    assert [change.key[1] for change in changes] == [f"p{number}" for number in range(5)]
