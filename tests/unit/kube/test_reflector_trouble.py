"""The reflector when the server misbehaves: every line of the list that reflectors elsewhere have failed on."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest

from dradriver.kube.errors import ApiError
from dradriver.kube.reflector import backoff_s
from tests.fakes.apirequests import status_object
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.following import event, following, lists, put, watches

pytestmark = pytest.mark.looptime
PROGRESS_DISABLED = {"type": "ERROR", "object": status_object(500, "InternalError", "RequestWatchProgress is disabled")}


@pytest.fixture(autouse=True)
def _same_jitter() -> None:
    random.seed(7)


@pytest.mark.parametrize(
    "refusal",
    [
        {"status": 400, "reason": "BadRequest"},
        {"status": 403, "reason": "Forbidden"},
        {"status": 405, "reason": "MethodNotAllowed"},
        {"status": 422, "reason": "Invalid"},
        {"status": 500, "reason": "InternalError"},
        {"lines": [PROGRESS_DISABLED]},
        {"lines": [event("ADDED", "stale", "5"), PROGRESS_DISABLED]},
    ],
    ids=lambda refusal: str(refusal.get("status", "event")),
)
async def test_a_refused_watch_list_becomes_a_list_for_good(refusal: dict[str, Any]) -> None:
    async with FakeApiServer() as api:
        put(api, "p")
        api.fail(watch=True, **refusal)
        async with following(api) as it:
            assert it.told() == ["+p"]
            api.fail(watch=True, status=410)
            api.disconnect()
            await asyncio.sleep(5)
        assert [request.query.get("limit") for request in lists(api)] == ["500", "500"]
        assert len([request for request in watches(api) if "sendInitialEvents" in request.query]) == 1


@pytest.mark.parametrize(
    "cut",
    [
        {"mode": "eof"},
        {"mode": "half-line"},
        {"mode": "silence"},
        {"mode": "hang"},
        {"lines": [event("ADDED", "stale", "5")]},
        {"lines": [b"<html>"]},
    ],
    ids=str,
)
async def test_a_watch_list_that_is_cut_short_becomes_a_list_this_time(cut: dict[str, Any]) -> None:
    async with FakeApiServer() as api:
        put(api, "p")
        api.fail(watch=True, **cut)
        async with following(api) as it:
            await asyncio.sleep(15)
            assert it.told() == ["+p"]
            assert len(lists(api)) == 1
            api.fail(watch=True, status=410)
            api.disconnect()
            await asyncio.sleep(5)
            assert len(lists(api)) == 1
            assert "sendInitialEvents" in watches(api)[-1].query


async def test_a_watch_list_without_an_end_becomes_a_list() -> None:
    # A server that does not know the word sends initial events and bookmarks, but none that says "whole".
    async with FakeApiServer(bookmark_s=5, watch_list_ends=False) as api:
        put(api, "p")
        async with following(api) as it:
            await asyncio.sleep(50)
            assert not it.reflector.synced.is_set()
            await asyncio.sleep(15)
            assert it.told() == ["+p"]


@pytest.mark.parametrize("as_event", [True, False])
@pytest.mark.parametrize(
    "gone",
    [
        status_object(410, "Gone", "gone"),
        status_object(410, "Expired", "too old resource version: 5 (9)"),
        status_object(504, "Timeout", "Too large", {"causes": [{"reason": "ResourceVersionTooLarge"}]}),
    ],
    ids=["gone", "expired", "too-large"],
)
async def test_a_version_that_is_gone_means_reading_everything_again(gone: dict[str, Any], *, as_event: bool) -> None:
    async with FakeApiServer(watch_list=False) as api:
        put(api, "p")
        async with following(api) as it:
            if as_event:
                api.fail(watch=True, lines=[{"type": "ERROR", "object": gone}])
            else:
                api.fail(watch=True, status=gone["code"], reason=gone["reason"], details=gone.get("details"))
            api.disconnect()
            await asyncio.sleep(5)
            put(api, "q")
            await asyncio.sleep(1)
            assert it.told() == ["+p", "+q"]
            assert it.reflector.synced.is_set()
        assert len(lists(api)) == 2
        assert all("resourceVersion" not in request.query for request in lists(api))


async def test_a_silent_connection_is_left_after_two_bookmarks_that_did_not_come() -> None:
    async with FakeApiServer() as api:
        async with following(api) as it:
            version = it.reflector._version
            api.fail(watch=True, lines=[{"type": "BOOKMARK", "object": {"metadata": {}}}], mode="silence")
            api.disconnect()
            await asyncio.sleep(1)
            put(api, "p")
            await asyncio.sleep(128)
            assert it.told() == []
            await asyncio.sleep(4)
            assert it.told() == ["+p"]
        assert version == watches(api)[-1].query["resourceVersion"]
        assert lists(api) == []


async def test_a_store_that_was_put_back_is_read_again() -> None:
    """Its server serves a watch from a version that it has not, and says nothing."""
    async with FakeApiServer() as api:
        put(api, "old")
        async with following(api) as it:
            api.store.restore(900)
            api.disconnect()
            put(api, "new")
            await asyncio.sleep(129)
            assert it.names == {"old"}
            await asyncio.sleep(5)
            assert it.names == {"new"}


async def test_bookmarks_keep_an_idle_watch_alive() -> None:
    async with FakeApiServer(bookmark_s=60) as api:
        async with following(api):
            await asyncio.sleep(250)
        assert len(api.requests) == 1


@pytest.mark.parametrize("filled", [True, False])
async def test_a_minute_of_503_is_fewer_than_15_requests(*, filled: bool) -> None:
    async with FakeApiServer() as api:
        outage = api.fail(times=math.inf, status=503, reason="ServiceUnavailable") if not filled else None
        async with following(api) as it:
            if outage is None:
                outage = api.fail(times=math.inf, status=503, reason="ServiceUnavailable")
                api.disconnect()
            await asyncio.sleep(60)
            assert 3 <= outage.hits < 15
            outage.stop()
            put(api, "p")
            await asyncio.sleep(31)
            assert it.told() == ["+p"]
        assert lists(api) == []


async def test_a_server_that_ends_every_stream_at_once_is_not_hammered() -> None:
    async with FakeApiServer() as api, following(api):
        eof = api.fail(times=math.inf, watch=True, mode="eof")
        api.disconnect()
        await asyncio.sleep(60)
        assert 3 <= eof.hits < 20


async def test_a_server_that_always_says_gone_is_not_hammered() -> None:
    async with FakeApiServer(watch_list=False) as api, following(api):
        api.fail(times=math.inf, watch=True, lines=[{"type": "ERROR", "object": status_object(410, "Expired", "")}])
        before = len(api.requests)
        api.disconnect()
        await asyncio.sleep(60)
        assert 3 <= len(api.requests) - before < 30


async def test_a_stream_that_ends_cleanly_is_resumed_soon() -> None:
    async with FakeApiServer() as api, following(api) as it:
        for name in ("p1", "p2", "p3"):
            await asyncio.sleep(5)
            api.disconnect()
            put(api, name)
            await asyncio.sleep(0.5)
            assert it.told() == ["+" + name]


async def test_retry_after_is_honoured() -> None:
    async with FakeApiServer() as api:
        api.fail(status=429, reason="TooManyRequests", retry_after=20)
        async with following(api) as it:
            await asyncio.sleep(18)
            assert len(api.requests) == 1
            await asyncio.sleep(2)
            assert it.reflector.synced.is_set()


def test_waits_grow_with_full_jitter_and_end_at_30_seconds() -> None:
    waits = {n: [backoff_s(n, None) for _ in range(300)] for n in (1, 3, 6, 7, 1000)}

    assert max(waits[1]) <= 0.8
    assert 1.6 < max(waits[3]) <= 3.2
    assert 12 < max(waits[6]) <= 25.6
    assert 25 < max(waits[7]) <= 30
    assert 25 < max(waits[1000]) <= 30
    assert min(waits[1000]) < 3
    assert min(waits[1]) == 0.1


def test_retry_after_is_a_least_wait_and_has_a_limit() -> None:
    assert all(backoff_s(1, ApiError(429, retry_after_s=9)) == 9 for _ in range(20))
    assert backoff_s(1, ApiError(429, retry_after_s=10**9)) == 300


async def test_failures_are_history_once_a_stream_lived_a_minute() -> None:
    async with FakeApiServer(bookmark_s=30) as api, following(api) as it:
        api.fail(times=8, watch=True, status=503)
        api.disconnect()
        await asyncio.sleep(240)
        assert api.watchers == 1
        api.fail(watch=True, status=503)
        api.disconnect()
        put(api, "p")
        await asyncio.sleep(1.2)
        assert it.told() == ["+p"]


async def test_unknown_event_types_are_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    odd = {"type": "SOMETHING", "object": {"metadata": {"resourceVersion": "99"}}}
    async with FakeApiServer(watch_list=False) as api:
        api.fail(watch=True, status=422)
        api.fail(watch=True, lines=[odd, event("ADDED", "p", "5"), odd, odd], mode="silence")
        async with following(api) as it:
            assert it.told() == ["+p"]
    assert caplog.text.count("unknown type 'SOMETHING'") == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "half-line"},
        {"lines": [b'{"type":"ADDED"}']},
        {"lines": [b'{"type":"ADDED","object":{"metadata":{"name":5}}}']},
        {"lines": [b"\xff\xfe\x00"]},
        {"lines": [b"[" * 30_000]},
        {"mode": "drop"},
    ],
    ids=str,
)
async def test_a_malformed_line_ends_the_stream_and_no_more(bad: dict[str, Any]) -> None:
    async with FakeApiServer() as api:
        async with following(api) as it:
            version = it.reflector._version
            api.fail(watch=True, **bad)
            api.disconnect()
            await asyncio.sleep(3)
            put(api, "p")
            await asyncio.sleep(1)
            assert it.told() == ["+p"]
        assert version == watches(api)[-1].query["resourceVersion"]
        assert lists(api) == []


async def test_items_null_is_an_empty_list() -> None:
    async with FakeApiServer(watch_list=False) as api:
        api.fail(watch=False, body=b'{"metadata":{"resourceVersion":"1000"},"items":null}')
        async with following(api) as it:
            assert it.reflector.synced.is_set()
            assert it.names == set()


async def test_a_new_token_is_found_after_401(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    async with FakeApiServer(token="new") as api:
        put(api, "p")
        config = dataclasses.replace(api.config, token="", token_file=file)
        async with following(api, config=config) as it:
            assert it.told() == []
            file.write_text("new")
            await asyncio.sleep(10)
            assert it.told() == ["+p"]
        assert lists(api) == []


async def test_a_token_file_that_is_away_for_a_while_is_survived(tmp_path: Path) -> None:
    async with FakeApiServer(token="T") as api:
        put(api, "p")
        config = dataclasses.replace(api.config, token="", token_file=tmp_path / "token")
        async with following(api, config=config) as it:
            (tmp_path / "token").write_text("T")
            await asyncio.sleep(5)
            assert it.told() == ["+p"]


async def test_to_be_sent_back_to_the_beginning_is_no_failure() -> None:
    async with FakeApiServer(watch_list=False) as api, following(api) as it:
        api.fail(times=7, watch=True, status=503)
        api.disconnect()
        await asyncio.sleep(60)
        put(api, "p")
        for _ in range(5):
            api.fail(watch=True, status=410, reason="Expired")
            api.disconnect()
            await asyncio.sleep(1.5)
            assert it.names == {"p"}
            assert api.watchers == 1
