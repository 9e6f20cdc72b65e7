"""Leader election against the fake API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dradriver.kube.client import Client
from dradriver.kube.leader import ElectionLease, LeaderElector, Timings
from dradriver.kube.resources import CONFIG_MAPS, LEASES
from tests.fakes.apiserver import FakeApiServer

pytestmark = pytest.mark.looptime


class Candidate:
    """A candidate whose work notes when it began and ended, by the loop's clock."""

    def __init__(self, client: Client, identity: str, *, config_map: str = "", **options: Any) -> None:
        lease = ElectionLease("ns", "x", config_map)
        self.elector = LeaderElector(client, lease, identity=identity, **options)
        self.began: list[float] = []
        self.ended: list[float] = []
        self.stop_s = 0.0  # how long the work takes to stop
        self.finish = asyncio.Event()

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        self.began.append(loop.time())
        try:
            await self.finish.wait()
        finally:
            await asyncio.sleep(self.stop_s)
            self.ended.append(loop.time())

    @property
    def working(self) -> bool:
        return len(self.began) > len(self.ended)


@contextlib.asynccontextmanager
async def candidates(api: FakeApiServer, *identities: str, **options: Any) -> AsyncIterator[list[Candidate]]:
    """Candidates at work, the first of them leading; cancelled at the end."""
    async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
        made = [Candidate(client, identity, **options) for identity in identities]
        tasks = []
        for candidate in made:
            tasks.append(group.create_task(candidate.elector.run(candidate.work)))
            await asyncio.sleep(1)
        yield made
        for task in tasks:
            task.cancel()


def lease(api: FakeApiServer) -> dict[str, Any]:
    found = api.find(LEASES, "x", "ns")
    assert found is not None
    spec: dict[str, Any] = found["spec"]
    return spec


def put(api: FakeApiServer, **spec: Any) -> None:
    api.put(LEASES, {"metadata": {"name": "x", "namespace": "ns"}, "spec": spec})


async def test_the_first_leads_and_renews() -> None:
    async with FakeApiServer() as api, candidates(api, "a") as (a,):
        assert a.working
        first = lease(api)
        assert (first["holderIdentity"], first["leaseDurationSeconds"], first["leaseTransitions"]) == ("a", 15, 0)

        await asyncio.sleep(10)

        renewed = lease(api)
        assert renewed["renewTime"] > first["renewTime"]
        assert renewed["acquireTime"] == first["acquireTime"]
        assert renewed["leaseTransitions"] == 0
        assert len(a.began) == 1


async def test_a_second_waits_and_takes_over_at_once_when_the_lease_is_given_back() -> None:
    async with FakeApiServer() as api, candidates(api, "a", "b") as (a, b):
        await asyncio.sleep(60)
        assert not b.began

        a.finish.set()
        await asyncio.sleep(5)

        assert not a.working
        assert b.working
        spec = lease(api)
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)


async def test_work_that_returns_ends_the_run_and_gives_the_lease_back() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        a = Candidate(client, "a")
        a.finish.set()

        await a.elector.run(a.work)

        assert lease(api)["holderIdentity"] == ""


async def test_work_that_crashes_gives_the_lease_back_and_the_error_passes_through() -> None:
    async def crash() -> None:
        await asyncio.sleep(5)
        raise RuntimeError("oops")

    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        with pytest.raises(RuntimeError, match="oops"):
            await Candidate(client, "a").elector.run(crash)
        assert lease(api)["holderIdentity"] == ""


async def test_cancelling_stops_the_work_then_gives_the_lease_back() -> None:
    async with FakeApiServer() as api:
        async with candidates(api, "a") as (a,):
            a.stop_s = 20  # longer than the lease: it is renewed while the work stops
            assert lease(api)["holderIdentity"] == "a"
        assert len(a.ended) == 1
        assert lease(api)["holderIdentity"] == ""
        last_write = [request.time for request in api.requests if request.method == "PUT"][-1]
        assert last_write >= a.ended[0]


async def test_a_standby_that_is_cancelled_leaves_the_lease_alone() -> None:
    async with FakeApiServer() as api:
        put(api, holderIdentity="other", leaseDurationSeconds=15, renewTime="t", leaseTransitions=3)
        async with candidates(api, "a") as (a,):
            assert not a.began
        assert lease(api)["holderIdentity"] == "other"
        assert {"GET"} == {request.method for request in api.requests}


@pytest.mark.slow
@pytest.mark.parametrize(
    "outage", [{"mode": "hang"}, {"mode": "drop"}, {"status": 503}, {"status": 500}, {"status": 403}], ids=str
)
async def test_an_outage_ends_the_work_before_another_can_lead(outage: dict[str, Any]) -> None:
    async with FakeApiServer() as api, candidates(api, "a", "b") as (a, b):
        await asyncio.sleep(20)
        fault = api.fail(times=math.inf, **outage)
        began = asyncio.get_running_loop().time()
        renewed = max(request.time for request in api.requests if request.method == "PUT")

        await asyncio.sleep(30)
        assert [pytest.approx(renewed + 10, abs=0.1)] == a.ended
        assert not b.began

        fault.stop()
        await asyncio.sleep(40)
        assert a.working != b.working
        assert min(a.began[1:] + b.began) >= began + 30


async def test_a_short_outage_is_survived() -> None:
    async with FakeApiServer() as api, candidates(api, "a", "b") as (a, b):
        fault = api.fail(times=math.inf, mode="hang")
        await asyncio.sleep(6)
        fault.stop()
        await asyncio.sleep(30)
        assert a.working
        assert not a.ended
        assert not b.began


async def test_a_leader_that_makes_no_progress_loses_the_lease_and_takes_it_again_when_it_does() -> None:
    progress = True
    async with FakeApiServer() as api, candidates(api, "a", makes_progress=lambda: progress) as (a,):
        await asyncio.sleep(20)
        progress = False
        renewed = max(request.time for request in api.requests if request.method == "PUT")
        await asyncio.sleep(30)
        assert [pytest.approx(renewed + 10, abs=0.1)] == a.ended
        assert max(request.time for request in api.requests if request.method == "PUT") == renewed
        assert not a.working
        progress = True
        await asyncio.sleep(30)
        assert a.working


async def test_a_dead_leader_is_followed_after_its_lease_by_our_clock() -> None:
    async with FakeApiServer() as api:
        # Its clock is a year ahead, and it is dead.
        put(api, holderIdentity="dead", leaseDurationSeconds=15, renewTime="2999-01-01T00:00:00.000000Z")
        async with candidates(api, "a") as (a,):
            await asyncio.sleep(13)
            assert not a.began
            await asyncio.sleep(8)
            assert a.working
            assert 15 <= a.began[0] <= 20


async def test_a_live_leader_whose_clock_is_behind_is_not_followed() -> None:
    async with FakeApiServer() as api, candidates(api) as _, Client(api.config, user_agent="t") as client:
        put(api, holderIdentity="live", leaseDurationSeconds=15, renewTime="1999-01-01T00:00:00.000000Z")
        a = Candidate(client, "a")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(a.elector.run(a.work))
            for second in range(30):
                await asyncio.sleep(2)
                renew = f"1999-01-01T00:00:{second:02d}.000000Z"
                put(api, holderIdentity="live", leaseDurationSeconds=15, renewTime=renew)
            assert not a.began
            running.cancel()


async def test_a_leader_that_was_replaced_stops_at_once() -> None:
    async with FakeApiServer() as api, candidates(api, "a") as (a,):
        put(api, holderIdentity="usurper", leaseDurationSeconds=15, renewTime="t")
        await asyncio.sleep(3)
        assert not a.working
        assert lease(api)["holderIdentity"] == "usurper"

        await asyncio.sleep(25)
        assert a.working
        assert len(a.began) == 2


async def test_work_that_does_not_stop_ends_the_process_before_another_can_lead() -> None:
    ended: list[tuple[int, float]] = []

    def end(status: int) -> None:
        ended.append((status, asyncio.get_running_loop().time()))

    async with FakeApiServer() as api, candidates(api, "a", end_process=end) as (a,):
        await asyncio.sleep(20)
        a.stop_s = 100
        fault = api.fail(times=math.inf, mode="hang")
        renewed = max(request.time for request in api.requests if request.method == "PUT")
        await asyncio.sleep(20)
        assert [status for status, _ in ended] == [1]
        assert ended[0][1] == pytest.approx(renewed + 15, abs=0.1)
        fault.stop()
        a.stop_s = 0


async def test_work_that_stops_in_time_ends_no_process() -> None:
    ended: list[int] = []
    async with FakeApiServer() as api, candidates(api, "a", end_process=ended.append) as (a,):
        a.stop_s = 4
        put(api, holderIdentity="usurper", leaseDurationSeconds=15, renewTime="t")
        await asyncio.sleep(60)
        assert a.began
        assert ended == []


async def test_an_error_of_work_that_was_stopped_passes_through() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise RuntimeError("while stopping")

    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        loop = asyncio.get_running_loop()
        loop.call_later(1, lambda: put(api, holderIdentity="usurper", leaseDurationSeconds=15, renewTime="t"))
        with pytest.raises(RuntimeError, match="while stopping"):
            await Candidate(client, "a").elector.run(work)
        assert lease(api)["holderIdentity"] == "usurper"


async def test_two_that_start_at_once_make_one_leader() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="t") as client:
        pair = [Candidate(client, "a"), Candidate(client, "b")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.elector.run(each.work)) for each in pair]
            await asyncio.sleep(60)
            assert sum(each.working for each in pair) == 1
            assert sum(len(each.began) for each in pair) == 1
            for task in tasks:
                task.cancel()


async def test_of_two_that_saw_the_same_free_lease_one_leads() -> None:
    async with FakeApiServer() as api:
        put(api, holderIdentity="", leaseTransitions=1)
        go = asyncio.Event()
        held = api.fail(method="PUT", times=2, mode="hold", until=go)
        async with Client(api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
            pair = [Candidate(client, "a"), Candidate(client, "b")]
            tasks = [group.create_task(each.elector.run(each.work)) for each in pair]
            await asyncio.sleep(1)
            assert held.hits == 2
            go.set()
            await asyncio.sleep(1)
            assert sum(len(each.began) for each in pair) == 1
            for task in tasks:
                task.cancel()


async def test_a_write_that_was_done_but_not_answered_is_no_loss() -> None:
    async with FakeApiServer() as api, candidates(api, "a") as (a,):
        # Somebody else changes the Lease between our GET and PUT, as our own lost PUT would have.
        api.fail(method="PUT", status=409, reason="Conflict")
        await asyncio.sleep(30)
        assert len(a.began) == 1
        assert a.working


async def test_unknown_fields_of_the_lease_are_kept() -> None:
    async with FakeApiServer() as api:
        put(api, holderIdentity="", strategy="OldestEmulationVersion", preferredHolder="z")
        async with candidates(api, "a"):
            assert lease(api)["strategy"] == "OldestEmulationVersion"
            assert lease(api)["holderIdentity"] == "a"


async def test_the_lease_says_of_its_leader_what_that_is_now() -> None:
    says = {"x/policies": "1"}
    async with FakeApiServer() as api:
        api.put(LEASES, {"metadata": {"name": "x", "namespace": "ns", "annotations": {"y": "kept"}}})
        async with candidates(api, "a", annotations=lambda: says):
            for digest in ("1", "2"):
                says["x/policies"] = digest
                await asyncio.sleep(3)
                found = api.find(LEASES, "x", "ns")
                assert found is not None
                assert found["metadata"]["annotations"] == {"y": "kept", "x/policies": digest}


async def test_times_are_utc_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        async with FakeApiServer() as api, candidates(api, "a"):
            spec = lease(api)
            for key in ("renewTime", "acquireTime"):
                stamp = datetime.datetime.strptime(spec[key], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.UTC)
                assert abs(datetime.datetime.now(datetime.UTC) - stamp) < datetime.timedelta(minutes=1)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_intervals_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="must grow in this order"):
        Timings(lease_duration_s=10, renew_deadline_s=10)


@pytest.mark.parametrize("there", [True, False])
async def test_a_lease_goes_with_the_config_map_that_is_named(there: bool) -> None:
    async with FakeApiServer() as api:
        if there:
            api.put(CONFIG_MAPS, {"metadata": {"name": "policies", "namespace": "ns"}})
        async with (
            candidates(api, "a", config_map="policies") as (leader,),
            Client(api.config, user_agent="t") as client,
        ):
            assert leader.working
            metadata = (await client.get(LEASES, "x", namespace="ns"))["metadata"]
            if there:
                uid = (await client.get(CONFIG_MAPS, "policies", namespace="ns"))["metadata"]["uid"]
                wanted = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "policies", "uid": uid}]
                assert metadata["ownerReferences"] == wanted
            assert ("ownerReferences" in metadata) == there
