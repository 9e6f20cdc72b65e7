"""How many writes and promises may be under way, and who waits for what."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.api.claims.pins import Key
from dradriver.controller.loop.dispatcher import Dispatcher
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.scheduler_pace import LEAST, Pace, Waits
from dradriver.queue.write_lanes import MOST, MOST_SLOW, MOST_SLOW_IN_ALL, QUOTA_REMEMBERED_S, Lanes, Slot, WaitReason
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working
from tests.kept import entries

FIRST = 0, "", ""  # before all others that wait


def nothing() -> None:
    pass


def ignore(_: object) -> None:
    pass


def age(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]


async def test_sixteen_writes_are_under_way_and_no_more() -> None:
    lanes, slots = Lanes(nothing), []
    for _ in range(MOST):
        assert lanes.room()
        slots.append(lanes.take("n", ignore))
    assert not lanes.room()
    assert not lanes.idle
    for slot in slots:
        slot.give_back()
    assert lanes.room()
    assert lanes.idle


async def test_writes_that_hang_give_their_slots_away_and_clog_their_own_namespace_only() -> None:
    lanes = Lanes(nothing)
    slow: list[Slot] = []
    slots = [lanes.take("slow", slow.append) for _ in range(MOST_SLOW)]
    await asyncio.sleep(0.9)
    assert slow == []
    assert lanes.obstacle(("slow", "p"), FIRST) is None
    await asyncio.sleep(0.2)
    assert set(slow) == set(slots)
    assert lanes.obstacle(("slow", "p"), FIRST) is WaitReason.NAMESPACE
    assert lanes.obstacle(("other", "p"), FIRST) is None
    assert lanes.idle
    assert lanes.next(lambda: None) is None
    for slot in slots:
        slot.give_back()
    assert lanes.next(lambda: None) == ("slow", "p")
    assert lanes.room()


async def test_each_write_has_its_own_time_and_only_a_slow_one_gives_the_slot_away() -> None:
    lanes = Lanes(nothing)
    slow: list[Slot] = []
    slot = lanes.take("n", slow.append)
    for _ in range(5):
        await asyncio.sleep(0.9)
        slot.begin()
    assert (slow, lanes.idle) == ([], False)
    await asyncio.sleep(1.1)
    assert (slow, lanes.idle) == ([slot], True)
    slot.begin()
    await asyncio.sleep(1.1)
    assert slow == [slot, slot], "the next one may be held up as well"
    slot.give_back()
    await asyncio.sleep(2)
    assert (len(slow), slot.since, lanes.idle) == (2, None, True)


async def test_hanging_writes_of_many_namespaces_stop_no_other() -> None:
    lanes = Lanes(nothing)
    for number in range(2 * MOST_SLOW_IN_ALL):
        lanes.take(f"slow{number}", ignore)
        if number % MOST == MOST - 1:
            await asyncio.sleep(1.1)
    assert lanes.room()
    assert lanes.obstacle(("slow3", "p"), FIRST) is WaitReason.NAMESPACE
    assert lanes.obstacle(("good", "p"), FIRST) is None


async def test_failures_of_writes_that_were_under_way_together_count_once() -> None:
    lanes = Lanes(nothing)
    for _ in range(16):
        lanes.failed(ApiError(429))
    await asyncio.sleep(0.101)
    assert lanes.room()


async def test_trouble_pauses_all_twice_as_long_each_time_and_one_success_ends_that() -> None:
    woken: list[float] = []
    lanes = Lanes(lambda: woken.append(asyncio.get_running_loop().time()))
    trouble = ApiError(503)
    for pause_s in (0.1, 0.2, 0.4):
        lanes.failed(trouble)
        assert not lanes.room()
        await asyncio.sleep(pause_s * 0.99)
        assert not lanes.room()
        await asyncio.sleep(pause_s * 0.02)
        assert lanes.room()
    assert len(woken) == 3, "whoever waits is told when the pause is over"
    slot = lanes.take("n", ignore)
    assert not lanes.room(), "one write after another finds out"
    lanes.succeeded()
    assert lanes.room()
    slot.give_back()
    lanes.failed(trouble)
    await asyncio.sleep(0.101)
    assert lanes.room()


async def test_a_quota_that_is_too_busy_pauses_its_namespace_alone_and_lets_in_one_after_the_other() -> None:
    lanes = Lanes(nothing)
    before = entries(lanes)
    for pause_s in (0.1, 0.2):
        for slot in [lanes.take("n", ignore) for _ in range(3)]:
            lanes.crowded("n")
            slot.give_back()
        assert [lanes.obstacle(("n", name), (0, name, "")) for name in "ba"] == [WaitReason.QUOTA] * 2
        assert lanes.obstacle(("other", "p"), FIRST) is None
        await asyncio.sleep(pause_s * 0.99)
        assert lanes.next(lambda: None) is None
        await asyncio.sleep(pause_s * 0.02)
        assert lanes.next(lambda: None) == ("n", "a")
        assert lanes.obstacle(("n", "a"), (0, "a", "")) is None
    slot = lanes.take("n", ignore)
    assert lanes.next(lambda: None) is None, "one write after another finds out"
    lanes.succeeded(created_in="n")
    slot.give_back()
    assert lanes.next(lambda: None) == ("n", "b")
    slot = lanes.take("n", ignore)
    assert lanes.obstacle(("n", "c"), (0, "c", "")) is None
    slot.give_back()
    assert entries(lanes) > before, "it is remembered for a while"
    await asyncio.sleep(QUOTA_REMEMBERED_S)
    assert entries(lanes) == before, "nothing is kept of a namespace where nobody wants to write"


async def test_a_busy_quota_holds_up_claims_and_no_other_writes() -> None:
    lanes = Lanes(nothing)
    slot = lanes.take("n", ignore)
    lanes.crowded("n")
    slot.give_back()
    assert lanes.obstacle(("n", "a"), (0, "a", "")) is WaitReason.QUOTA
    assert lanes.obstacle(("n", "a"), (0, "a", ""), creates=False) is None
    slot = lanes.take("n", ignore)
    lanes.succeeded()
    await asyncio.sleep(0.2)
    assert lanes.obstacle(("n", "b"), (0, "b", "")) is WaitReason.QUOTA, "this says nothing of the quota"
    slot.give_back()
    assert [lanes.next(lambda: None) for _ in range(2)] == [("n", "b"), None], "a has gone on"


async def test_a_write_that_hangs_after_a_conflict_holds_up_no_other_of_its_namespace() -> None:
    lanes = Lanes(nothing)
    slot = lanes.take("n", ignore)
    lanes.crowded("n")
    slot.give_back()
    await asyncio.sleep(0.2)
    slow: list[Slot] = []
    slot = lanes.take("n", slow.append)
    assert lanes.obstacle(("n", "p"), FIRST) is WaitReason.QUOTA
    await asyncio.sleep(1.1)
    assert slow == [slot]
    assert lanes.next(lambda: None) == ("n", "p")
    assert lanes.obstacle(("n", "p"), FIRST) is None


async def test_nothing_is_kept_of_a_namespace_whose_last_unit_found_no_place() -> None:
    lanes = Lanes(nothing)
    before = entries(lanes)
    slot = lanes.take("n", ignore)
    lanes.crowded("n")
    slot.give_back()
    assert lanes.obstacle(("n", "p"), FIRST) is WaitReason.QUOTA
    await asyncio.sleep(0.2)
    assert lanes.next(lambda: None) == ("n", "p")
    assert entries(lanes) > before, "it may come back at once"
    await asyncio.sleep(QUOTA_REMEMBERED_S)
    assert entries(lanes) == before


async def test_the_time_that_the_server_asks_for_counts() -> None:
    lanes = Lanes(nothing)
    lanes.failed(ApiError(429, retry_after_s=7))
    await asyncio.sleep(6.9)
    assert not lanes.room()
    await asyncio.sleep(0.2)
    assert lanes.room()
    lanes.failed(ApiError(429, retry_after_s=7_000))
    await asyncio.sleep(30.1)
    assert lanes.room(), "but not for ever"


def test_promises_wait_for_a_scheduler_that_is_behind_and_for_no_other() -> None:
    pace = Pace()
    slow, other = pace.line("n", Waits("")), pace.line("other", Waits(""))
    for number in range(LEAST):
        assert pace.room(slow, 0.0)
        pace.lifted(("n", f"p{number}"), Waits(""))
    assert not pace.room(slow, 0.0)
    assert pace.room(other, 0.0)
    pace.answered(("n", "p0"), 1.0, bound=True)
    assert pace.room(slow, 1.0)


def test_a_fast_scheduler_gets_as_much_as_it_binds_in_fifteen_seconds() -> None:
    pace = Pace()
    fast = pace.line("n", Waits(""))
    for number in range(1000):
        pace.lifted(("n", f"p{number}"), Waits(""))
        if number < 700:
            pace.answered(("n", f"p{number}"), 5.0, bound=True)
    assert pace.room(fast, 6.0), "300 wait, and 70 a second are bound"
    assert not pace.room(fast, 16.0), "none was bound in the last ten seconds"


def test_a_pod_counts_once_and_not_after_its_answer() -> None:
    pace = Pace()
    for _ in range(LEAST + 1):
        pace.lifted(("n", "p"), Waits(""))
    assert pace.room(pace.line("n", Waits("")), 0.0)
    pace.answered(("n", "p"), 0.0, bound=False)
    pace.answered(("n", "p"), 0.0, bound=False)
    assert pace.room(pace.line("n", Waits("")), 0.0)


def test_of_schedulers_that_were_not_seen_to_allocate_a_claim_a_tenant_tries_one_at_a_time() -> None:
    pace = Pace(lambda namespace: "team" if namespace in "ab" else "")
    first = pace.line("a", Waits("nobody-0"))
    assert pace.room(first, 0.0)
    pace.lifted(("a", "p"), Waits("nobody-0"))
    assert not any(pace.room(pace.line(namespace, Waits("nobody-1")), 0.0) for namespace in "ab")
    assert pace.room(pace.line("c", Waits("nobody-0")), 0.0), "another's names are their own"
    assert pace.room(pace.line("a", Waits("")), 0.0)
    pace.allocates("nobody-1")
    assert pace.room(pace.line("a", Waits("nobody-1")), 0.0), "it is known now"
    assert not pace.room(first, 0.0)
    pace.answered(("a", "p"), 1.0, bound=True)
    assert pace.room(first, 1.0)


def test_each_try_with_a_scheduler_that_is_not_known_has_the_next_one_wait_longer() -> None:
    pace, now, pauses = Pace(), 0.0, []
    line = pace.line("n", Waits("nobody"))
    for number in range(8):
        assert pace.room(line, now)
        pace.lifted(("n", f"p{number}"), Waits("nobody"))
        until = pace.silent([("n", f"p{number}"), ("n", "seated")], now + 30.0)
        assert not pace.room(line, until - 0.1)
        pauses.append(until - now - 30.0)
        now = until
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 120.0, 120.0]


def test_a_known_scheduler_that_leaves_the_pods_of_a_namespace_alone_gets_fewer_of_them_until_it_binds_again() -> None:
    pace = Pace()
    line = pace.line("n", Waits(""))

    def most() -> int:
        """Have pods wait as long as there is room, and return how many did."""
        count = 0
        while pace.room(line, 0.0):
            pace.lifted(("n", f"p{count}"), Waits(""))
            count += 1
        return count

    def rest(count: int) -> None:
        for number in range(count):
            pace.answered(("n", f"p{number}"), 100.0, bound=False)

    assert most() == LEAST
    rest(LEAST)
    rooms = []
    for number in range(6):
        pace.lifted(("n", f"silent-{number}"), Waits(""))
        assert pace.silent([("n", f"silent-{number}")], 30.0) == 30.0
        rooms.append(most())
        rest(rooms[-1])
    assert rooms == [64, 32, 16, 8, 8, 8]
    for number in range(3):
        pace.lifted(("n", f"good-{number}"), Waits(""))
        pace.answered(("n", f"good-{number}"), -100.0, bound=True)
    assert most() == LEAST


def test_nothing_is_kept_of_schedulers_and_namespaces_that_are_gone() -> None:
    pace, kept = Pace(), list[int]()
    for number in range(100):
        pace.lifted((f"n{number}", "p"), Waits(""))
        pace.answered((f"n{number}", "p"), float(number), bound=True)
        kept.append(entries(pace))
        pace.room(pace.line(f"n{number}", Waits("")), number + 20.0)
    assert kept[:11] == sorted(set(kept[:11])), "each of the last ten seconds counts"
    assert set(kept[10:]) == {kept[10]}, "and none before them"


async def test_who_waits_goes_on_in_turn_when_its_cause_is_over() -> None:
    lanes = Lanes(nothing)
    lanes.failed(ApiError(503))
    for name in "cab":
        assert lanes.obstacle(("n", name), (0, name, "")) is WaitReason.SLOT
    assert lanes.next(lambda: None) is None
    await asyncio.sleep(0.2)
    slow = [lanes.take("tenant", ignore) for _ in range(MOST_SLOW)]
    await asyncio.sleep(1.1)
    assert lanes.obstacle(("tenant", "d"), (0, "d", "")) is WaitReason.NAMESPACE
    assert lanes.next(lambda: (0, 0.0, "0", "")) == ("n", "a"), (
        "who only waited for a slot does not wait for those without a place"
    )
    slow.pop().give_back()
    assert lanes.next(lambda: None) == ("n", "b")
    assert lanes.obstacle(("n", "e"), (0, "e", ""), schedulers=[Waits("")]) is None
    for number in range(LEAST):
        lanes.lifted(("n", f"p{number}"), Waits(""))
    assert lanes.obstacle(("n", "e"), (0, "e", ""), schedulers=[Waits("")]) is WaitReason.SCHEDULER
    assert [lanes.next(lambda: (0, 0.0, "d", "")) for _ in range(2)] == [("n", "c"), None], (
        "d and e let others go ahead before"
    )
    assert [lanes.next(lambda: None) for _ in range(2)] == [("tenant", "d"), None]
    lanes.answered(("n", "p0"), bound=True)
    assert [lanes.next(lambda: None) for _ in range(2)] == [("n", "e"), None]


async def test_each_waits_for_one_thing_and_who_left_is_forgotten() -> None:
    lanes = Lanes(nothing)
    before, kept = entries(lanes), list[int]()
    slots = [lanes.take("tenant", ignore) for _ in range(MOST)]
    await asyncio.sleep(1.1)
    assert lanes.obstacle(("tenant", "first"), FIRST) is WaitReason.NAMESPACE
    slots += [lanes.take("n", ignore) for _ in range(MOST)]
    for number in range(200):
        order = 0, f"{number:03}", ""
        for namespace, reason in (("n", WaitReason.SLOT), ("tenant", WaitReason.NAMESPACE)):
            assert lanes.obstacle((namespace, f"p{number}"), order) is reason
            lanes.forget((namespace, f"p{number}"))
        kept.append(entries(lanes))
    assert max(kept) == max(kept[:40]), "no more than that is kept of those who left"
    for slot in slots:
        slot.give_back()
    assert [lanes.next(lambda: None) for _ in range(2)] == [("tenant", "first"), None]
    assert entries(lanes) == before


@pytest.mark.slow
async def test_of_hundreds_that_wait_for_their_scheduler_as_many_are_looked_at_as_may_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster(promise_s=1e6, unschedulable_s=1e6)
    for number in range(26):
        cluster.node(f"n{number:02}", "dgx-h100")
    for number in range(LEAST + 130):
        cluster.pod(f"p{number:03}", 1, namespace="silent")
    looks: list[str] = []
    look = Dispatcher.look

    def counted(dispatcher: Dispatcher, key: Key) -> None:
        looks.append(key[1])
        look(dispatcher, key)

    async with working(cluster):
        await asyncio.sleep(20)  # all are told why they wait
        assert len(cluster.all(RESOURCE_CLAIMS)) in range(LEAST, LEAST + MOST)
        placed = {claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS)}
        monkeypatch.setattr(Dispatcher, "look", counted)
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
