"""What the client makes of refusals, silence, nonsense and tokens that change."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import Metadata
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.errors import ConfigError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
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


async def test_a_refusal_carries_what_the_server_said(api: FakeApiServer, client: Client) -> None:
    api.fail(status=429, reason="TooManyRequests", message="slow down", details={"kind": "pods"}, retry_after=7)

    with pytest.raises(ApiError) as raised:
        await client.list(PODS)

    error = raised.value
    assert (
        error.status,
        error.api_reason,
        error.message,
        error.details,
        error.retry_after_s,
    ) == (429, "TooManyRequests", "slow down", {"kind": "pods"}, 7.0)


async def test_a_refusal_that_is_no_status_object_is_still_one(api: FakeApiServer, client: Client) -> None:
    api.fail(status=502, body=b"<html>bad gateway</html>")

    with pytest.raises(ApiError, match="502: <html>bad gateway"):
        await client.list(PODS)


@pytest.mark.parametrize(
    ("status", "name"), [(403, "forbidden"), (404, "not_found"), (409, "conflict"), (410, "gone"), (422, "invalid")]
)
def test_errors_are_told_apart(status: int, name: str) -> None:
    told = ("forbidden", "not_found", "conflict", "gone", "invalid", "already_exists")

    assert [name] == [word for word in told if getattr(ApiError(status), word)]


def test_a_version_that_the_server_has_not_reached_is_gone_too() -> None:
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}

    assert ApiError(504, "Timeout", "", details).gone
    assert not ApiError(504, "Timeout").gone


@pytest.mark.looptime
async def test_a_call_that_is_not_answered_ends_in_time() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="t", timeout_s=5) as client:
        api.fail(mode="hang")
        loop = asyncio.get_running_loop()
        started_s = loop.time()

        with pytest.raises(Unreachable, match="GET /api/v1/pods"):
            await client.list(PODS)
        assert 5 <= loop.time() - started_s <= 6


async def test_a_server_that_is_not_there_is_unreachable(api: FakeApiServer) -> None:
    config = dataclasses.replace(api.config, url="http://127.0.0.1:1")
    async with Client(config, user_agent="t") as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            await client.list(PODS)


async def test_an_answer_that_is_not_kubernetes_is_unreachable(api: FakeApiServer, client: Client) -> None:
    for body in (b"<html>", b'{"metadata":{"name":3}}', b"\xff\xfe", b""):
        api.fail(body=body)
        with pytest.raises(Unreachable, match="not what it should be"):
            await client.get(PODS, "p", namespace="a", type=Tiny)


async def test_a_dropped_connection_does_not_repeat_a_write(api: FakeApiServer, client: Client) -> None:
    api.fail(mode="drop", method="POST")

    with pytest.raises(Unreachable):
        await client.create(PODS, pod("p"))
    assert len(api.requests) == 1


async def test_nesting_deeper_than_pythons_recursion_limit_blinds_no_watch(api: FakeApiServer, client: Client) -> None:
    # 10 KiB of opaque parameters are 5,000 brackets, which any author of a claim may write.
    deep = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    opaque = b'{"source":"FromClaim","opaque":{"driver":"d","parameters":' + deep + b"}}"
    claim = (
        b'{"metadata":{"name":"c","namespace":"a"},"status":{"allocation":{"devices":{"config":[' + opaque + b"]}}}}"
    )
    api.fail(body=b'{"metadata":{"resourceVersion":"7"},"items":[' + claim + b"]}", times=2)

    limit = sys.getrecursionlimit()
    claims, _ = await client.list(RESOURCE_CLAIMS, type=ResourceClaim)
    assert claims[0].status.allocation is not None
    tiny, _ = await client.list(RESOURCE_CLAIMS, type=Tiny)
    assert [claim.metadata.name for claim in tiny] == ["c"]
    assert sys.getrecursionlimit() == limit


async def test_a_new_token_is_used_at_the_next_request(api: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with Client(dataclasses.replace(api.config, token_file=file), user_agent="t") as client:
        await client.list(PODS)
        file.write_text("second\n")
        await client.list(PODS)

    assert [request.headers["Authorization"] for request in api.requests] == ["Bearer first", "Bearer second"]


async def test_a_token_that_was_replaced_under_way_is_tried_again_at_once(api: FakeApiServer, tmp_path: Path) -> None:
    tokens = iter(["old", "new"])

    tokens = iter(["old", "new"])

    class Rotating(type(api.config)):  # type: ignore[misc]
        """Hands out the old token once, as if the file had been replaced just after it was read."""

        def bearer(self) -> str:
            return next(tokens)

    api.token = "new"
    async with Client(Rotating(url=api.config.url), user_agent="t") as client:
        assert ([], str(api.store.version)) == await client.list(PODS)

    assert [request.headers["Authorization"] for request in api.requests] == ["Bearer old", "Bearer new"]


async def test_a_refused_token_that_was_not_replaced_is_an_error(api: FakeApiServer, client: Client) -> None:
    api.token = "another"

    with pytest.raises(ApiError) as raised:
        await client.list(PODS)
    assert raised.value.status == 401
    assert len(api.requests) == 1


async def test_a_token_file_that_is_gone_is_named(api: FakeApiServer, tmp_path: Path) -> None:
    config = dataclasses.replace(api.config, token_file=tmp_path / "token")
    async with Client(config, user_agent="t") as client:
        with pytest.raises(ConfigError, match="token: cannot read the service account's token"):
            await client.list(PODS)
