"""Owners that the controller may not suspend, for whom several ask: nobody asks the API server again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, Resource
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS, Jobs
from tests.fakes.preempting import Contested
from tests.fakes.troubles import working


async def test_a_job_that_may_not_be_suspended_is_asked_for_once_a_minute_for_all_that_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Contested(suspendable=["Job"])
    for node in "ab":
        cluster.node(node)

    def pod(_: Object, name: str, __: int) -> Object:
        return cluster.admitted(name, 8, wishes={"gang": "auto", "on-member-loss": "restart"})

    jobs = Jobs(cluster.store, pod, delete=cluster.end)
    spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 9}
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
    for _ in range(4):
        jobs.act()
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    members = sorted(pod["metadata"]["name"] for pod in cluster.all(PODS))
    refused, get, patch = list[float](), cluster.client.get, cluster.client.patch

    async def forbidden(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            refused.append(asyncio.get_running_loop().time())
            raise ApiError(403, "Forbidden", "may not patch jobs")
        return await patch(resource, *args, **more)

    async def silent(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            raise ApiError(500, "InternalError", "no answer")
        return await get(resource, *args, **more)

    monkeypatch.setattr(cluster.client, "patch", forbidden)
    monkeypatch.setattr(cluster.client, "get", silent)
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(1)
        assert cluster.claim("me") is not None
        cluster.remove(PODS, members[0], "default")  # now it has to start anew, too
        cluster.collect()
        await asyncio.sleep(1)
        monkeypatch.setattr(cluster.client, "get", get)
        await asyncio.sleep(40)
    assert len(refused) == 1
    assert cluster.ending() == []
