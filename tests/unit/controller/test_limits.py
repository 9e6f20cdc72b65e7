"""How many writes and promises may be under way, and who waits for what."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.api.pins import Key
from dradriver.controller.worker import Worker
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.limiter import MOST, MOST_SLOW, MOST_SLOW_IN_ALL, Limiter
from dradriver.queue.pace import LEAST, Pace
from dradriver.queue.parking import Kind, Parking, WaitReason
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working


def nothing() -> None:
    pass


def age(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]


@pytest.mark.looptime
async def test_sixteen_writes_are_under_way_and_no_more() -> None:
    limiter, given = Limiter(nothing), []
    for _ in range(MOST):
        assert limiter.room()
        given.append(limiter.take("n", nothing))
    assert not limiter.room()
    assert not limiter.idle
    for give_back in given:
        give_back()
    assert limiter.room()
    assert limiter.idle


@pytest.mark.looptime
async def test_writes_that_hang_give_their_slots_away_and_clog_their_own_namespace_only() -> None:
    limiter, slow = Limiter(nothing), []
    given = [limiter.take("slow", lambda: slow.append(1)) for _ in range(MOST_SLOW)]
    await asyncio.sleep(0.9)
    assert slow == []
    assert not limiter.clogged("slow")
    await asyncio.sleep(0.2)
    assert len(slow) == MOST_SLOW
    assert limiter.clogged("slow")
    assert not limiter.clogged("other")
    assert limiter.idle
    for give_back in given:
        give_back()
    assert not limiter.clogged("slow")
    assert limiter.room()


@pytest.mark.looptime
async def test_hanging_writes_of_many_namespaces_stop_nobody_else() -> None:
    limiter = Limiter(nothing)
    for number in range(2 * MOST_SLOW_IN_ALL):
        limiter.take(f"slow{number}", nothing)
        if number % MOST == MOST - 1:
            await asyncio.sleep(1.1)
    assert limiter.room()
    assert limiter.clogged("slow3")
    assert not limiter.clogged("good")


@pytest.mark.looptime
async def test_failures_of_writes_that_were_under_way_together_count_once() -> None:
    limiter = Limiter(nothing)
    for _ in range(16):
        limiter.failed(ApiError(429))
    await asyncio.sleep(0.101)
    assert limiter.room()


@pytest.mark.looptime
async def test_trouble_pauses_all_twice_as_long_each_time_and_one_success_ends_that() -> None:
    woken: list[float] = []
    limiter = Limiter(lambda: woken.append(asyncio.get_running_loop().time()))
    trouble = ApiError(503)
    for pause_s in (0.1, 0.2, 0.4):
        limiter.failed(trouble)
        assert not limiter.room()
        await asyncio.sleep(pause_s * 0.99)
        assert not limiter.room()
        await asyncio.sleep(pause_s * 0.02)
        assert limiter.room()
    assert len(woken) == 3, "whoever waits is told when the pause is over"
    give_back = limiter.take("n", nothing)
    assert not limiter.room(), "one write after another finds out"
    limiter.succeeded()
    assert limiter.room()
    give_back()
    limiter.failed(trouble)
    await asyncio.sleep(0.101)
    assert limiter.room()


@pytest.mark.looptime
async def test_the_time_that_the_server_asks_for_counts() -> None:
    limiter = Limiter(nothing)
    limiter.failed(ApiError(429, retry_after_s=7))
    await asyncio.sleep(6.9)
    assert not limiter.room()
    await asyncio.sleep(0.2)
    assert limiter.room()
    limiter.failed(ApiError(429, retry_after_s=7_000))
    await asyncio.sleep(30.1)
    assert limiter.room(), "but not for ever"


def test_promises_wait_for_a_scheduler_that_is_behind_and_for_no_other() -> None:
    pace = Pace()
    for number in range(LEAST):
        assert pace.room("slow", 0.0)
        pace.lifted(("n", f"p{number}"), "slow")
    assert not pace.room("slow", 0.0)
    assert pace.room("other", 0.0)
    pace.answered(("n", "p0"), 1.0, bound=True)
    assert pace.room("slow", 1.0)


def test_a_fast_scheduler_gets_as_much_as_it_binds_in_fifteen_seconds() -> None:
    pace = Pace()
    for number in range(1000):
        pace.lifted(("n", f"p{number}"), "fast")
        if number < 700:
            pace.answered(("n", f"p{number}"), 5.0, bound=True)
    assert pace.room("fast", 6.0), "300 wait, and 70 a second are bound"
    assert not pace.room("fast", 16.0), "none was bound in the last ten seconds"


def test_a_pod_counts_once_and_not_after_its_answer() -> None:
    pace = Pace()
    for _ in range(LEAST + 1):
        pace.lifted(("n", "p"), "s")
    assert pace.room("s", 0.0)
    pace.answered(("n", "p"), 0.0, bound=False)
    pace.answered(("n", "p"), 0.0, bound=False)
    assert pace.room("s", 0.0)


def test_who_waits_goes_on_in_turn_when_its_cause_is_over() -> None:
    parking, writer, tenant = Parking(), WaitReason(Kind.WRITER), WaitReason(Kind.NAMESPACE, "tenant")
    for name in "cab":
        parking.park(("n", name), (name, ""), writer)
    parking.park(("n", "d"), ("d", ""), tenant)
    assert parking.release(lambda *_: False) is None
    assert parking.release(lambda cause, _: cause == tenant) == ("n", "d")
    assert parking.release(lambda cause, _: cause == tenant) is None
    parking.park(("n", "a"), ("a", ""), writer)
    assert parking.release(lambda _, order: order > ("a", "")) is None, "the oldest is asked for"
    assert [parking.release(lambda *_: True) for _ in range(4)] == [("n", "a"), ("n", "b"), ("n", "c"), None]


def test_each_waits_for_one_thing_and_who_left_is_forgotten() -> None:
    parking, writer, tenant = Parking(), WaitReason(Kind.WRITER), WaitReason(Kind.NAMESPACE, "tenant")
    parking.park(("n", "first"), ("", ""), tenant)
    for number in range(2000):
        key, order = ("n", f"p{number}"), (f"{number:04}", "")
        parking.park(key, order, writer)
        parking.park(key, order, tenant)
        parking.forget(key)
    assert sum(map(len, parking._lots.values())) <= 40
    assert parking.release(lambda cause, _: cause == writer) is None
    parking.park(("n", "first"), ("0", ""), writer)
    assert parking.release(lambda cause, _: cause == tenant) is None
    assert parking.release(lambda *_: True) == ("n", "first")
    assert [*parking._lots, *parking._waiting, *parking._size] == []


@pytest.mark.looptime
async def test_of_hundreds_that_wait_for_their_scheduler_as_many_are_looked_at_as_may_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster(promise_s=1e6, unschedulable_s=1e6)
    monkeypatch.setattr("dradriver.queue.pace.LEAST", 20)
    for number in range(12):
        cluster.node(f"n{number:02}", "dgx-h100")
    for number in range(150):
        cluster.pod(f"p{number:03}", 1, namespace="silent")
    looks: list[str] = []
    look = Worker._look

    def counted(worker: Worker, key: Key) -> None:
        looks.append(key[1])
        look(worker, key)

    async with working(cluster):
        await asyncio.sleep(20)  # all are told why they wait
        assert len(cluster.all(RESOURCE_CLAIMS)) in range(20, 20 + MOST)
        placed = {claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS)}
        monkeypatch.setattr(Worker, "_look", counted)
        for number in range(20):
            cluster.pod(f"q{number}", 1, namespace="other")
        await asyncio.sleep(0.1)
        assert sum(claim["metadata"]["namespace"] == "other" for claim in cluster.all(RESOURCE_CLAIMS)) == 20
        assert {name[0] for name in looks} == {"q"}
        looks.clear()
        for name in sorted(placed)[:20]:
            pod = cluster.find(PODS, name.removeprefix("gpus-"), "silent")
            assert pod is not None
            cluster.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "n00"}})
        await asyncio.sleep(0.1)
        pods = [pod for pod in cluster.all(PODS) if pod["metadata"]["namespace"] == "silent"]
        claims = [c["metadata"]["name"] for c in cluster.all(RESOURCE_CLAIMS) if c["metadata"]["namespace"] == "silent"]
        went = sorted(set(claims) - placed)
        waiting = sorted((pod for pod in pods if f"gpus-{pod['metadata']['name']}" not in placed), key=age)
        assert went == sorted(f"gpus-{pod['metadata']['name']}" for pod in waiting[: len(went)]), "the oldest"
        assert 10 <= len(went) <= 40
        assert len(looks) <= 20 + 4 * len(went)
