"""Reservations outlast their controller: what is written of them, and what the next leader makes of it."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.api.claims import reservation_config_map as stored
from dradriver.controller.features.reservations import LOOK_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.queue import reservation_access
from dradriver.queue.reservation_rules import Terms
from tests.fakes.apistore import Object
from tests.fakes.reserving import OURS, WAIT_S, Reserving, passed_by


async def test_another_leader_goes_on_with_it() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    await cluster.later(600)
    before = cluster.held[0]
    await cluster.fail_over()
    (after,) = cluster.held
    assert (after.who, after.gpus) == (before.who, before.gpus)
    assert after.idle_gpu_s >= before.idle_gpu_s > 0
    cluster.pod("late", 4)
    await cluster.settle()
    assert not cluster.runs("late")
    await cluster.end("s1")
    assert cluster.runs("big")


async def test_what_stood_idle_without_a_leader_is_counted() -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    idle_since = cluster.now
    await cluster.look()
    cluster.now += 1800
    await cluster.fail_over()
    assert cluster.held[0].idle_gpu_s == pytest.approx(4 * (cluster.now - idle_since))


async def test_another_leader_knows_who_has_waited_since_when() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0", 8)
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(Terms().bounded_wait_s / 2 + 120)
    await cluster.fail_over()
    await cluster.later(Terms().bounded_wait_s / 2)
    assert cluster.held


async def test_nothing_is_written_where_no_pod_waits() -> None:
    cluster = Reserving()
    cluster.node("a")
    await cluster.settle()
    await cluster.run("s0", 4)
    await cluster.later(WAIT_S)
    assert cluster.map is None


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"version": 9}', '{"version":1,"kept":[{"who":"x"}]}', '{"version":1,"blocked":[["a/b/c",1e99,0]]}',
     '{"version":1,"kept":[{"who":"nobody","gpus":{"a":["x"]},"counted_at":1}],"blocked":[]}',
     '{"version":1,"kept":[{"who":"default/gone/1","gpus":{"a":["x","y"]},"counted_at":1}]}'],
)  # fmt: skip
async def test_what_others_write_there_does_no_harm(text: str) -> None:
    cluster = Reserving()
    cluster.node("a")
    cluster.put(
        CONFIG_MAPS,
        {"metadata": {"name": "gpu-topology-reservations", "namespace": OURS}, "data": {"reservations.json": text}},
    )
    await cluster.fail_over()
    await cluster.look()
    await cluster.run("s0", 8)
    assert (cluster.held, cluster.runs("s0")) == ((), True)


async def test_the_store_writes_over_what_others_have_changed_and_says_once_what_is_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = await passed_by()
    await cluster.end("s0")
    cluster.store.edit(CONFIG_MAPS, (OURS, stored.NAME), lambda found: found["metadata"].update(labels={"a": "b"}))
    await cluster.later(120)
    assert cluster.map is not None
    assert "labels" not in cluster.map["metadata"], "written over"
    cluster.remove(CONFIG_MAPS, stored.NAME, OURS)
    await cluster.later(120)
    assert cluster.map is not None, "written again"
    cluster.client.refuse["update"] = [ApiError(403, "Forbidden", "quota") for _ in range(3)]
    await cluster.later(180)
    (told,) = [record.getMessage() for record in caplog.records if "ConfigMap of reservations" in record.getMessage()]
    assert told.endswith(". A new leader would not know the last change.")
    before = cluster.held[0].idle_gpu_s
    await cluster.later(60)
    await cluster.fail_over()
    assert cluster.held[0].idle_gpu_s >= before


async def test_a_write_of_reservations_that_is_not_answered_keeps_none_from_ending() -> None:
    cluster = await passed_by()
    await cluster.end("s0")

    async def hang(*_: object, **__: object) -> Object:
        return await asyncio.Future[Object]()

    cluster.client.update = hang  # type: ignore[method-assign]
    work = asyncio.create_task(cluster.features.reservations.run(cluster.kept))
    await asyncio.sleep(LOOK_S)
    assert cluster.held
    cluster.now += Terms().idle_s * 3
    await asyncio.sleep(LOOK_S)
    assert not cluster.held
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def test_what_is_written_is_bounded_and_read_back() -> None:
    kept = [stored.Kept(who=f"a/p{n}/u", gpus={f"n{n}": ["x"]}, counted_at=1.0, tenant=str(n)) for n in range(99)]
    since = [stored.Since(f"a/{n}/u", float(n), 1) for n in range(999)]
    made = stored.config_map(kept, since, namespace=OURS, owners=[{"uid": "7"}], version="9")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "7"
    found = stored.read(made)
    assert (found.kept, found.blocked) == (kept[: stored.MOST_KEPT], since[: stored.MOST_BLOCKED])
    assert len(reservation_access.read(found)) == 1, "one a partition"
