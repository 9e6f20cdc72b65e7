"""The policies in force in a process that watches their ConfigMap, while the mounted file is older than it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.policies.policy_sections import DEFAULTS, UNKNOWN
from dradriver.kube.client import Client
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.process.watched_policies import WatchedPolicies
from tests.fakes.apiserver import FakeApiServer

pytestmark = pytest.mark.looptime

ONE, TWO, BAD = "weights: {nvlink: 1}", "weights: {nvlink: 2}", "weights: {nvlnk: 3}"
TICK_S = 0.5
LATE_S = 6.0
FORBIDDEN: dict[str, Any] = {"path": "/configmaps$", "status": 403, "reason": "Forbidden"}


def put(api: FakeApiServer, text: str | None, name: str = "policies", **more: Any) -> None:
    data = {} if text is None else {"policies.yaml": text}
    api.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "system"}, "data": data} | more)


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@contextlib.asynccontextmanager
async def following(api: FakeApiServer, file: Path, told: list[str] | None = None) -> AsyncIterator[WatchedPolicies]:
    """Policies that are followed while the block runs, from their first read on; ``told`` gets each trouble."""
    troubles = [] if told is None else told

    async def tell(trouble: str) -> None:
        troubles.append(trouble)

    async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as tasks:
        policies = WatchedPolicies(client, file, namespace="system", name="policies", on_trouble=tell)
        task = tasks.create_task(policies.run())
        await policies.first_read()
        yield policies
        task.cancel()


async def test_a_change_of_the_object_is_in_force_without_the_file(api: FakeApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, TWO)
    put(api, BAD, name="others")
    async with following(api, file) as policies:
        assert policies.in_force.weights.nvlink == 2, "the mounted file is older than the object"
        put(api, "weights: {nvlink: 3}")
        await asyncio.sleep(TICK_S)
        assert policies.in_force.weights.nvlink == 3
        file.write_text("weights: {nvlink: 4}")
        await asyncio.sleep(LATE_S)
        assert policies.in_force.weights.nvlink == 3


@pytest.mark.parametrize("harm", ["bad", "deleted", "no key", "no data"])
async def test_the_last_good_ones_stay(harm: str, api: FakeApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, TWO)
    told: list[str] = []
    async with following(api, file, told) as policies:
        if harm == "deleted":
            api.remove(CONFIG_MAPS, "policies", "system")
        else:
            more: dict[str, Any] = {"data": None} if harm == "no data" else {}
            put(api, BAD if harm == "bad" else None, **more)
        await asyncio.sleep(LATE_S)
        assert (policies.in_force.weights.nvlink, len(told)) == (2, 1)
        wanted = (
            "did you mean nvlink?"
            if harm == "bad"
            else "policies.yaml of ConfigMap system/policies does not exist any more"
        )
        assert wanted in told[0]
        put(api, ONE)
        await asyncio.sleep(TICK_S)
        assert (policies.in_force.weights.nvlink, policies.trouble) == (1, None)


async def test_the_file_counts_while_the_server_refuses_the_object_and_never_after(
    api: FakeApiServer, tmp_path: Path
) -> None:
    """The roles of an earlier release do not let the controller watch the ConfigMap."""
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, "weights: {nvlink: 3}")
    fault = api.fail(times=math.inf, **FORBIDDEN)
    async with following(api, file) as policies:
        assert policies.in_force.weights.nvlink == 1
        file.write_text(TWO)
        await asyncio.sleep(LATE_S)
        assert policies.in_force.weights.nvlink == 2
        fault.stop()
        await asyncio.sleep(60)
        assert policies.in_force.weights.nvlink == 3
        api.fail(times=math.inf, **FORBIDDEN)
        api.disconnect()
        file.write_text(ONE)
        await asyncio.sleep(60)
        assert policies.in_force.weights.nvlink == 3, "an older file must not come back into force"


async def test_a_bad_file_is_not_in_force_and_the_object_is(api: FakeApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "policies.yaml").write_text(BAD)
    fault = api.fail(times=math.inf, **FORBIDDEN)
    put(api, TWO)
    async with following(api, file) as policies:
        assert policies.in_force is UNKNOWN
        fault.stop()
        await asyncio.sleep(60)
        assert (policies.in_force.weights.nvlink, policies.trouble) == (2, None)


async def test_without_file_and_object_the_defaults_count(api: FakeApiServer, tmp_path: Path) -> None:
    async with following(api, tmp_path / "policies.yaml") as policies:
        assert (policies.in_force, policies.trouble) == (DEFAULTS, None)
        put(api, TWO)
        await asyncio.sleep(TICK_S)
        assert policies.in_force.weights.nvlink == 2


async def test_an_object_as_large_as_the_server_stores_is_read(api: FakeApiServer, tmp_path: Path) -> None:
    put(api, "# " + "\u00e9" * 30_000 + "\n" + TWO)
    async with following(api, tmp_path / "policies.yaml") as policies:
        assert policies.in_force.weights.nvlink == 2


async def test_a_refusal_after_the_first_read_is_trouble_until_it_ends(api: FakeApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, TWO)
    told: list[str] = []
    async with following(api, file, told) as policies:
        fault = api.fail(times=math.inf, **FORBIDDEN)
        api.disconnect()
        await asyncio.sleep(LATE_S)
        assert len(told) == 1
        assert "policies.yaml of ConfigMap system/policies cannot be read: " in told[0]
        assert policies.in_force.weights.nvlink == 2
        fault.stop()
        put(api, ONE)
        await asyncio.sleep(60)
        assert (policies.in_force.weights.nvlink, policies.trouble) == (1, None)


async def test_a_process_that_begins_to_act_reads_behind_a_silent_watch(api: FakeApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, ONE)
    async with following(api, file) as policies:
        fault = api.fail(times=math.inf, path="/configmaps$", watch=True, mode="silence")
        api.disconnect()
        await asyncio.sleep(TICK_S)
        put(api, TWO)
        await asyncio.sleep(TICK_S)
        assert policies.in_force.weights.nvlink == 1, "the watch says nothing"
        fault.stop()
        await policies.read_again()
        assert policies.in_force.weights.nvlink == 2


async def test_a_server_without_an_answer_does_not_stop_a_process_that_begins_to_act(
    api: FakeApiServer, tmp_path: Path
) -> None:
    (file := tmp_path / "policies.yaml").write_text(ONE)
    put(api, TWO)
    async with following(api, file) as policies:
        api.fail(times=math.inf, path="/configmaps$", mode="hang")
        await policies.read_again()
        assert policies.in_force.weights.nvlink == 2
