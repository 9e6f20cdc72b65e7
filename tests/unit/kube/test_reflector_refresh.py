"""The reflector reads everything anew when it is told to, whatever its watches do."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from typing import Any

import pytest

from dradriver.kube.errors import Unreachable
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.following import following, lists, put

pytestmark = pytest.mark.looptime


@pytest.fixture(autouse=True)
def _same_jitter() -> None:
    random.seed(7)


@pytest.mark.parametrize("mode", ["silence", "hang"])
async def test_a_refresh_does_not_wait_for_a_watch_that_is_silent(mode: Any) -> None:
    async with FakeApiServer() as api, following(api) as it:
        api.fail(watch=True, mode=mode)
        api.disconnect()
        await asyncio.sleep(1)
        put(api, "p")
        await asyncio.sleep(20)
        assert it.told() == []
        await it.reflector.refresh(1)
        assert it.told() == ["+p"]


async def test_a_refresh_reads_a_list_where_all_watches_are_frozen() -> None:
    async with FakeApiServer() as api, following(api) as it:
        api.fail(times=math.inf, watch=True, mode="silence")
        api.disconnect()
        await asyncio.sleep(1)
        put(api, "p")
        await it.reflector.refresh(15)
        assert it.told() == ["+p"]
        assert len(lists(api)) == 1


async def test_a_refresh_does_not_wait_for_a_backoff() -> None:
    async with FakeApiServer() as api, following(api) as it:
        api.fail(status=429, retry_after=200, watch=True)
        api.disconnect()
        await asyncio.sleep(5)
        put(api, "p")
        await it.reflector.refresh(1)
        assert it.told() == ["+p"]


async def test_a_refresh_that_fails_is_tried_again_and_says_so_in_the_end() -> None:
    async with FakeApiServer() as api, following(api) as it:
        api.fail(times=2, status=503)
        put(api, "p")
        await it.reflector.refresh(10)
        assert "p" in it.names

        api.fail(times=math.inf, status=503)
        with pytest.raises(Unreachable, match="pods: not read again in 10 s"):
            await it.reflector.refresh(10)
        assert "p" in it.names


async def test_cancelling_a_refresh_leaves_the_reflector_at_work() -> None:
    async with FakeApiServer() as api, following(api) as it:
        held = asyncio.Event()
        api.fail(mode="hold", until=held)
        asked = asyncio.create_task(it.reflector.refresh(100))
        await asyncio.sleep(1)
        asked.cancel()
        held.set()
        put(api, "p")
        await asyncio.sleep(1)
        assert "p" in it.names


@pytest.mark.slow
@pytest.mark.parametrize("downtime_s", [5, 40])
@pytest.mark.parametrize("watch_list", [True, False])
async def test_after_a_restart_of_the_server_all_is_read_again_within_5_seconds(
    downtime_s: float, *, watch_list: bool
) -> None:
    """Nobody takes connections for a while, then the server sends everybody back to the beginning, and is slow to."""
    for seed in range(10):
        random.seed(seed)
        async with FakeApiServer(watch_list=watch_list) as api:
            put(api, "p")
            config = dataclasses.replace(api.config)
            async with following(api, config=config) as it:
                object.__setattr__(config, "url", "http://127.0.0.1:1")
                api.disconnect()
                await asyncio.sleep(downtime_s)
                put(api, "q")
                api.compact()
                put(api, "r")
                api.fail(status=429, reason="TooManyRequests", message="storage is (re)initializing", retry_after=1)
                object.__setattr__(config, "url", api.config.url)
                await asyncio.sleep(5)
                assert it.names == {"p", "q", "r"}, seed
