"""The accounting is compared with what the reflectors show, and put right if an error in the program left it wrong."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.pod_records import Foreign
from dradriver.controller import audit
from dradriver.controller.audit import Audit
from dradriver.controller.controller import Controller
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.scraped import sample

CLAIM = ("default", claim_of("p"))
POD = ("default", "p")
DUO = ("default", "duo")
FIRST = ("default", "first")


async def settled() -> GpuCluster:
    """Two nodes, a pod of ours on one, two that wait for a set, and a foreign one."""
    cluster = GpuCluster()
    cluster.node("a")
    cluster.node("b")
    cluster.pod("p", 4, requests={"cpu": "2"})
    cluster.pod("first", 8, wishes={"shared-claim": "duo"}, nodeSelector={"not": "there"})
    cluster.pod("second", 8, wishes={"shared-claim": "duo"}, nodeSelector={"not": "there"})
    container = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    cluster.put(
        PODS, {"metadata": {"name": "f", "namespace": "x"}, "spec": {"nodeName": "a", "containers": [container]}}
    )
    cluster.rival("theirs", "b", [1])
    await cluster.settle()
    return cluster


def _held_by_no_claim(picture: Picture) -> None:
    picture.inventory.holds.hold(CLAIM, {})


def _held_by_a_ghost(picture: Picture) -> None:
    picture.inventory.hold(("default", "ghost"), {("b", "gpu-ghost"): None})


class Interrupted(dict[Device, Usage]):
    """Devices whose iteration fails after the last one, so that an update with them is applied only in part."""

    def items(self) -> Any:
        yield from super().items()
        raise ZeroDivisionError


def _stands_with_a_device_alone(picture: Picture) -> None:
    device = next(iter(picture.inventory.holds.of(CLAIM)))
    with pytest.raises(ZeroDivisionError):
        picture.inventory.holds.hold(("default", "ghost"), Interrupted({device: None}))


def _stands_with_no_device(picture: Picture) -> None:
    with pytest.raises(ZeroDivisionError):
        picture.inventory.holds.hold(CLAIM, Interrupted())


def _claim_gone(picture: Picture) -> None:
    del picture.claims["default", "theirs"]


def _claim_changed(picture: Picture) -> None:
    picture.claims[CLAIM] = msgspec.structs.replace(picture.claims[CLAIM], users=("somebody",))


def _pod_gone(picture: Picture) -> None:
    del picture.pods[POD]


def _pod_there(picture: Picture) -> None:
    picture.pods["default", "ghost"] = picture.pods[POD]


def _node_gone(picture: Picture) -> None:
    picture.nodes.set_node("a", None)


def _slice_gone(picture: Picture) -> None:
    piece = next(iter(picture.offered.slices().values()))
    picture.inventory.set_slice(piece, None)


def _usage(picture: Picture) -> None:
    picture.nodes.take("a", {"cpu": 700})


def _usage_of_ours(picture: Picture) -> None:
    taken = picture.node_usage.by(POD)
    assert taken is not None
    with _as_if(picture, POD, None):
        picture.node_usage.recount(POD)
    picture.nodes.take(*taken)  # only the node knows of it


def _claimant_gone(picture: Picture) -> None:
    with _as_if(picture, POD, None):
        picture.claim_users.put(CLAIM, POD)
    assert not picture.claim_users.of(CLAIM)


def _claimant_there(picture: Picture) -> None:
    with _as_if(picture, POD, picture.pods[FIRST]):
        picture.claim_users.put(DUO, POD)
    assert POD in picture.claim_users.of(DUO)


def _misled(picture: Picture) -> None:
    first = picture.pods[FIRST]
    assert picture.claim_users.lead(DUO) is first
    ends = msgspec.structs.replace(first.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    with _as_if(picture, FIRST, msgspec.structs.replace(first, metadata=ends)):
        picture.claim_users.forget_lead(DUO)
        picture.claim_users.lead(DUO)
    assert picture.claim_users.lead(DUO) is picture.pods["default", "second"]


@contextlib.contextmanager
def _as_if(picture: Picture, key: Key, pod: Pod | None) -> Iterator[None]:
    """Replace a pod in the cache, or remove it, without an update of the accounting that depends on it."""
    before = picture.pods[key]
    if pod is None:
        del picture.pods[key]
    else:
        picture.pods[key] = pod
    try:
        yield
    finally:
        picture.pods[key] = before


def _no_gpu_time(picture: Picture) -> None:
    picture.gpu_time.holds(CLAIM, {}, given=False)


def _charged_nothing(picture: Picture) -> None:
    picture.gpu_time.charges.clear()


def _gpu_time_of_a_ghost(picture: Picture) -> None:
    picture.gpu_time.holds(("default", "ghost"), {("a", "gpu-1"): None}, given=True)


def _foreign_pod_there(picture: Picture) -> None:
    ghost = Foreign(
        namespace="a", name="ghost", uid="u", resource_version="1", node="a", takes={}, labels='{"app":"x"}'
    )
    picture.neighbours.foreign_changed(None, ghost)


def _free(picture: Picture) -> None:
    picture.inventory.free()[picture.nodes.row("a")] += 1


BREAKS: list[tuple[Callable[[Picture], None], str]] = [
    (_held_by_no_claim, "allocations"),
    (_held_by_a_ghost, "allocations"),
    (_stands_with_a_device_alone, "allocations"),
    (_stands_with_no_device, "allocations"),
    (_claim_gone, "claims"),
    (_claim_changed, "claims"),
    (_pod_gone, "pods"),
    (_pod_there, "pods"),
    (_foreign_pod_there, "pods"),
    (_node_gone, "nodes"),
    (_slice_gone, "slices"),
    (_usage, "usage"),
    (_usage_of_ours, "usage"),
    (_claimant_gone, "claim users"),
    (_claimant_there, "claim users"),
    (_misled, "claim users"),
    (_free, "free"),
    (_no_gpu_time, "gpu time"),
    (_charged_nothing, "gpu time"),
    (_gpu_time_of_a_ghost, "gpu time"),
]


@pytest.mark.parametrize(("damage", "record"), BREAKS, ids=[damage.__name__ for damage, _ in BREAKS])
async def test_what_is_wrong_is_said_counted_and_put_right(
    damage: Callable[[Picture], None], record: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await settled()
    picture = cluster.worker.picture
    before = sample("gpu_topology_audit_differences_total", record=record)
    users, used = sorted(picture.claim_users.every()), copy.deepcopy(picture.nodes.used())
    damage(picture)

    assert await cluster.audit() > 0
    assert sample("gpu_topology_audit_differences_total", record=record) > before
    assert f"{record} of" in caplog.text
    assert await cluster.audit() == 0
    assert len(picture.inventory.holds.of(CLAIM)) == 4
    assert (sorted(picture.claim_users.every()), picture.nodes.used()) == (users, used)
    assert used["a"]["cpu"] == 3000 + (2000 if cluster.gpus("p")[0] == "a" else 0)
    cluster.pod("next", 7)
    await cluster.settle()
    assert cluster.gpus("next")[0] == "a"


async def test_what_only_an_answer_has_told_yet_is_no_difference() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    cluster.deliver()
    shown = cluster.shown()
    await cluster.worker.rest()
    assert CLAIM in cluster.worker.picture.claims
    assert await Audit(cluster.worker.picture, shown).look() == 0
    assert CLAIM in cluster.worker.picture.claims


async def test_a_change_that_an_error_swallowed_is_taken_in_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
            controller = Controller(client)
            running = group.create_task(controller.watch())
            await asyncio.sleep(1)
            picture = controller.worker.picture
            with monkeypatch.context() as broken:
                broken.setattr(Picture, "held", lambda *_: 1 / 0)
                cluster.rival("theirs", "a", [2])
                await asyncio.sleep(1)
            assert not picture.inventory.holds.of(("default", "theirs"))
            await asyncio.sleep(audit.PERIOD_S)
            assert picture.inventory.holds.of(("default", "theirs"))
            caplog.clear()
            await asyncio.sleep(audit.PERIOD_S)
            assert not [line for line in caplog.records if line.levelno >= logging.ERROR]
            cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
            await asyncio.sleep(1)
            assert not picture.inventory.holds.of(("default", "theirs"))
            running.cancel()


async def test_slices_of_nics_are_audited_once_they_are_read() -> None:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        shown = nics.published("a", nics.of_machine(cluster.machines["a"]))
        cluster.put(RESOURCE_SLICES, shown)
        async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
            controller = Controller(client)
            running = group.create_task(controller.watch())
            await asyncio.sleep(1)
            picture = controller.worker.picture
            assert picture.nics.on("a") == []
            picture.nics.unread()
            await asyncio.sleep(1)
            every, name = picture.nics.on("a"), shown["metadata"]["name"]
            assert len(every) == len(shown["spec"]["devices"])
            picture.nics_changed(Change(("", name), picture.nics.slice_of(name), None))
            assert picture.nics.on("a") == []
            await asyncio.sleep(audit.PERIOD_S)
            assert picture.nics.on("a") == every
            running.cancel()


async def test_the_log_is_bounded_and_others_have_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for number in range(200):
        cluster.rival(f"r{number}", "a", [number % 8])
    cluster.deliver()
    cluster.worker.picture.claims.clear()
    assert await cluster.audit() >= 200
    assert len(caplog.records) < 40
