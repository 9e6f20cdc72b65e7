"""Events: one for each text about an object, counted, and never in anybody's way."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import EVENTS
from tests.fakes.apiserver import FakeApiServer

POD = Reference(kind="Pod", namespace="a", name="p", uid="u-1")


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    async with Client(api.config, user_agent="tests/1", timeout_s=5) as entered:
        yield entered


def recorder(client: Client, instance: str = "one") -> Recorder:
    return Recorder(client, component="gpu-topology-controller", instance=instance)


async def tell(recorder: Recorder, message: str = "no node has 4 GPUs free", **changes: Any) -> None:
    fields: dict[str, Any] = {"about": POD, "type": "Warning", "reason": "NoPlace", "action": "Place"}
    await recorder.record(message=message, **(fields | changes))


async def test_an_event_says_who_what_and_about_which_object(api: FakeApiServer, client: Client) -> None:
    await tell(recorder(client))

    (event,) = api.all(EVENTS)
    assert event["metadata"]["namespace"] == "a"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "p", "uid": "u-1"}
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "NoPlace", "Place")
    assert event["message"] == "no node has 4 GPUs free"
    assert event["source"]["component"] == event["reportingComponent"] == "gpu-topology-controller"
    assert event["reportingInstance"] == "one"
    assert event["count"] == 1
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["firstTimestamp"])
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_the_same_again_is_counted_with_one_request(api: FakeApiServer, client: Client) -> None:
    mine = recorder(client)
    for _ in range(3):
        await tell(mine)

    (event,) = api.all(EVENTS)
    assert event["count"] == 3
    assert [request.method for request in api.requests] == ["POST", "PATCH", "PATCH"]
    assert set(api.requests[-1].body) == {"count", "lastTimestamp"}


async def test_a_successor_counts_on(api: FakeApiServer, client: Client) -> None:
    for instance in ("one", "two"):
        mine = recorder(client, instance)
        await tell(mine)
        await tell(mine)

    (event,) = api.all(EVENTS)
    assert event["count"] == 4
    assert event["reportingInstance"] == "one"


@pytest.mark.parametrize(
    "change",
    [
        {"message": "another"},
        {"type": "Normal"},
        {"reason": "Other"},
        {"action": "Renew"},
        {"about": Reference(kind="Pod", namespace="a", name="p", uid="u-2")},
        {
            "about": Reference(
                kind="ResourceClaim", namespace="a", name="p", uid="u-1", api_version="resource.k8s.io/v1"
            )
        },
    ],
    ids=str,
)
async def test_anything_else_is_an_event_of_its_own(api: FakeApiServer, client: Client, change: Any) -> None:
    mine = recorder(client)
    await tell(mine)
    await tell(mine, **change)

    assert [event["count"] for event in api.all(EVENTS)] == [1, 1]


async def test_an_event_that_expired_begins_again(api: FakeApiServer, client: Client) -> None:
    mine = recorder(client)
    await tell(mine)
    await tell(mine)
    (event,) = api.all(EVENTS)
    api.remove(EVENTS, event["metadata"]["name"], "a")

    await tell(mine)

    assert [event["count"] for event in api.all(EVENTS)] == [1]


async def test_an_object_without_namespace_has_its_events_in_default(api: FakeApiServer, client: Client) -> None:
    await tell(recorder(client), about=Reference(kind="Node", namespace="", name="n1", uid="u"))

    (event,) = api.all(EVENTS)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


@pytest.mark.parametrize("codes", [(0xD83D,), (0xDC00,), (0xDE00, 0xD83D)])
async def test_half_a_letter_is_one_that_is_not_known(
    codes: tuple[int, ...], api: FakeApiServer, client: Client
) -> None:
    half = "".join(map(chr, codes))
    mine = recorder(client)
    for _ in range(2):
        await tell(mine, f"file a{half}b", reason=f"Bad{half}")
    (event,) = api.all(EVENTS)
    unknown = "\ufffd" * len(half)
    assert (event["message"], event["reason"], event["count"]) == (f"file a{unknown}b", f"Bad{unknown}", 2)
    await tell(mine, "file a\ud83d\ude00b")
    assert sorted(event["message"] for event in api.all(EVENTS)) == sorted([f"file a{unknown}b", "file a\U0001f600b"])


async def test_texts_are_bounded(api: FakeApiServer, client: Client) -> None:
    long = Reference(kind="Pod", namespace="a", name=".".join(["x" * 62] * 4), uid="u")
    await tell(recorder(client), "ü" * 5000, about=long)

    (event,) = api.all(EVENTS)
    assert event["message"] == "ü" * 1021 + "..."
    assert len(event["metadata"]["name"]) <= 253
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in event["metadata"]["name"].split("."))


@pytest.mark.parametrize(
    "failure",
    [
        {"status": 403, "reason": "Forbidden"},
        {"status": 500},
        {"status": 429, "retry_after": 60},
        {"mode": "drop"},
        {"body": b"<html>"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_failure_costs_a_line_in_the_log(
    api: FakeApiServer, client: Client, caplog: pytest.LogCaptureFixture, failure: Any, method: str
) -> None:
    mine = recorder(client)
    fault = api.fail(times=math.inf, method=method, **failure)
    await tell(mine)
    await tell(mine)

    assert fault.hits
    assert "Event NoPlace about Pod a/p cannot be written" in caplog.text


async def test_a_token_that_cannot_be_read_costs_no_more(
    api: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(api.config, token_file=tmp_path / "token")
    async with Client(config, user_agent="t") as client:
        await tell(recorder(client))
    assert "Event NoPlace" in caplog.text


async def test_what_is_remembered_is_bounded(
    api: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dradriver.kube.event_recorder.REMEMBERED", 2)
    mine = recorder(client)
    for message in ("a", "b", "c", "a"):
        await tell(mine, message)

    assert len(mine._counts) == 2
    assert sorted((event["message"], event["count"]) for event in api.all(EVENTS)) == [("a", 2), ("b", 1), ("c", 1)]
