"""Since when claims are idle: only what every look has seen counts, and nothing that nobody saw."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.discovery import Discovery
from dradriver.node.gpu_work import GpuWork
from dradriver.node.idle import idle_watch
from dradriver.node.idle.idle_watch import GAP_S, INTERVAL_S, QUIET_S, IdleWatch
from dradriver.node.journal import Entry

NOTHING = GpuWork(0, frozenset())
LOAD = GpuWork(40, frozenset({1}))


class World:
    """Claims, GPUs and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.claims = {uid: claim(uid, f"g-{uid}") for uid in ("a", "b")}
        self.work: dict[str, GpuWork] | Exception = {"g-a": NOTHING, "g-b": NOTHING}
        self.asked: list[Mapping[str, int]] = []
        self.watch = IdleWatch(
            self.ask, self.prepared, lambda: None, pod_of=lambda _: None, clock=lambda: self.now
        )  # fmt: skip

    async def ask(self, gpus: Mapping[str, int]) -> Mapping[str, GpuWork]:
        self.asked.append(gpus)
        if isinstance(self.work, Exception):
            raise self.work
        return self.work

    async def prepared(self) -> Mapping[str, Entry[PreparedClaim]]:
        return {uid: Entry(one, (0, 0, 0)) for uid, one in self.claims.items()}

    async def looks(self, seconds: float) -> None:
        for _ in range(int(seconds / INTERVAL_S)):
            self.now += INTERVAL_S
            with contextlib.suppress(DriverError, TimeoutError):
                await self.watch.once()

    @property
    def idle(self) -> list[str]:
        return [uid for uid in self.claims if self.watch.idle_since(uid) is not None]

    def since(self, uid: str) -> float:
        """Return for how many seconds a claim has been idle."""
        since = self.watch.idle_since(uid)
        assert since is not None
        return (datetime.datetime.now(datetime.UTC) - since).total_seconds()


def claim(uid: str, *gpus: str, namespace: str = "team", **more: Any) -> PreparedClaim:
    devices = tuple(PreparedDevice(request="r", pool="n", device=gpu, uuid=gpu, **more) for gpu in gpus)
    return PreparedClaim(uid=uid, namespace=namespace, name=uid, devices=devices)


@pytest.fixture
def world() -> Iterator[World]:
    yield World()
    for one in (metrics.GPUS_BUSY, metrics.GPUS_IDLE):
        one.set({})


async def test_who_does_nothing_for_long_is_idle_since_the_first_look_of_it(world: World) -> None:
    await world.looks(QUIET_S)
    assert world.idle == []
    await world.looks(INTERVAL_S)
    assert world.idle == ["a", "b"]
    assert world.since("a") == pytest.approx(QUIET_S, abs=5)
    first = world.watch.idle_since("a")
    await world.looks(600)
    assert world.watch.idle_since("a") == first


@pytest.mark.parametrize("what", [LOAD, GpuWork(0, None), GpuWork()])
async def test_one_look_at_work_or_at_nothing_begins_again(world: World, what: GpuWork) -> None:
    await world.looks(QUIET_S + INTERVAL_S)
    world.work = {"g-a": what, "g-b": NOTHING}
    await world.looks(INTERVAL_S)
    assert world.idle == ["b"]
    world.work = {"g-a": NOTHING, "g-b": NOTHING}
    await world.looks(QUIET_S)
    assert world.idle == ["b"]
    await world.looks(INTERVAL_S)
    assert world.idle == ["a", "b"]


@pytest.mark.parametrize("error", [DriverError("it hangs"), TimeoutError()])
async def test_a_driver_that_does_not_say_makes_no_pod_idle(world: World, error: Exception) -> None:
    await world.looks(QUIET_S + INTERVAL_S)
    world.work = error
    await world.looks(INTERVAL_S)
    assert world.idle == []


async def test_looks_that_did_not_come_are_no_looks(world: World) -> None:
    await world.looks(QUIET_S + INTERVAL_S)
    world.now += GAP_S
    assert world.idle == ["a", "b"]
    world.now += 1
    assert world.idle == [], "nobody has looked for a minute"
    await world.looks(INTERVAL_S)
    assert world.idle == []


async def test_a_claim_that_was_given_back_is_forgotten_and_one_of_its_uid_begins_again(world: World) -> None:
    await world.looks(QUIET_S + INTERVAL_S)
    gone = world.claims.pop("a")
    await world.looks(INTERVAL_S)
    world.claims["a"] = gone
    assert world.idle == ["b"]


async def test_each_gpu_is_asked_for_what_was_after_its_newest_sample(world: World) -> None:
    world.work = {"g-a": GpuWork(0, frozenset({1}), until_us=5), "g-b": GpuWork(0, frozenset({1}), until_us=10**18)}
    await world.looks(2 * INTERVAL_S)
    first, second = world.asked
    assert second["g-a"] == first["g-a"], "nothing is older than what was asked for"
    assert first["g-b"] < second["g-b"] < 10**18, "nobody's clock hides what comes"


async def test_no_driver_is_asked_without_claims(world: World) -> None:
    world.claims = {"a": claim("a", "g-a", admin=True)}
    await world.looks(INTERVAL_S)
    assert world.asked == []


async def test_metrics_tell_how_much_of_what_is_held_works(world: World) -> None:
    world.claims = {
        "a": claim("a", "g-a"),
        "b": claim("b", "g-b", part="mps", told={"type": "share"}, namespace="other"),
        "c": claim("c", "g-b", part="mps", told={"type": "share"}),
        "d": claim("d", "g-d"),
    }
    world.work = {"g-a": GpuWork(40, frozenset({1})), "g-b": NOTHING, "g-d": GpuWork(percent=None)}
    await world.looks(QUIET_S + INTERVAL_S)
    assert dict(samples(metrics.GPUS_BUSY)) == {"team": pytest.approx(0.4), "other": 0.0}
    assert dict(samples(metrics.GPUS_IDLE)) == {"team": 0.5, "other": 0.5}
    assert metrics.GPUS_UNREAD._value.get() == 1


def samples(metric: Any) -> Iterator[tuple[str, float]]:
    for family in metric.collect():
        for sample in family.samples:
            yield sample.labels["namespace"], sample.value


async def test_an_answer_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(idle_watch, "ANSWER_S", 0.01)
    discovery = cast("Discovery", SimpleNamespace(slow=True, work=lambda _: hangs.wait()))
    ask = idle_watch.asked_of(discovery)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await ask({"g": 0})
    hangs.set()


async def test_it_goes_on_when_the_driver_does_not_say(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.work = DriverError("no driver")
    world.watch._interval_s = 0
    task = asyncio.create_task(world.watch.run())
    while len(world.asked) < 3:
        await asyncio.sleep(0)
    task.cancel()
    assert [record.message for record in caplog.records] == [
        "The node agent cannot measure whether GPUs are idle: no driver"
    ]
