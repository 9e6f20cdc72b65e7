"""GPU time in ConfigMaps: what one leader has counted the next goes on from, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import datetime
import logging
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import REGISTRY

from dradriver.api.base.errors import WordError
from dradriver.api.claims import idleness, usage_config_maps
from dradriver.api.claims.usage_config_maps import MOST_BYTES, OTHERS, PLACES, Bucket
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue, Tenant
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.controller.writing.usage_store import FIRST_LOAD_S, UsageStore
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CLUSTER_ROLES, CONFIG_MAPS, PODS, RESOURCE_CLAIMS
from tests.effort import sampled
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

OURS = "gpu-topology"
OWNER = "gpu-topology-controller"
HOUR = 3600.0
START = 400_000 * HOUR  # the 16th hour of a day


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class Cluster(GpuCluster):
    """A cluster whose controller keeps GPU time; where it ``keeps``, beyond an uninstallation."""

    keeps = False

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__()
        self.put(CLUSTER_ROLES, {"metadata": {"name": OWNER}, "rules": []})

    def time_s(self) -> float:
        return self.clock.now

    def restart(self) -> None:
        super().restart()
        self.usage = UsageStore(
            cast("Client", self.client), self.worker.picture, self.worker.tenants, namespace=OURS,
            owner=None if self.keeps else ReleaseOwner(cast("Client", self.client), OWNER), clock=self.clock,
        )  # fmt: skip

    async def run(self, name: str, gpus: int = 4, *, namespace: str = "default", says_when: bool = True) -> None:
        self.pod(name, gpus, namespace=namespace)
        await self.settle()
        self.schedule()
        claim = self.find(RESOURCE_CLAIMS, claim_of(name), namespace)
        assert claim is not None
        if says_when:
            claim["status"]["allocation"]["allocationTimestamp"] = _time(self.clock.now)
        self.put(RESOURCE_CLAIMS, claim)
        await self.settle()

    async def stop(self, name: str, *, namespace: str = "default") -> None:
        self.remove(PODS, name, namespace)
        self.collect()
        await self.settle()

    def kept(self) -> dict[int, dict[tuple[str, str], float]]:
        """Return GPU-seconds by hour, namespace and owner, as the API has them."""
        found: dict[int, dict[tuple[str, str], float]] = {}
        for one in sorted(map(usage_config_maps.read, self.all(CONFIG_MAPS)), key=lambda kept: kept.until):
            for hour, buckets in one.hours.items():
                for bucket, seconds in buckets.items():
                    found.setdefault(hour, {})[bucket.namespace, bucket.owner] = seconds
        return found


def _time(now: float) -> str:
    return datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat().replace("+00:00", "Z")


async def cluster() -> Cluster:
    made = Cluster()
    made.node("a")
    await made.settle()
    await made.usage.load()
    return made


async def test_what_claims_hold_is_written_once_a_minute_and_the_day_when_the_hour_is_over() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    (first,) = made.all(CONFIG_MAPS)
    assert first["metadata"]["name"] == usage_config_maps.name_of(None)
    assert first["metadata"]["ownerReferences"][0]["name"] == OWNER
    assert made.kept() == {400_000: {("default", ""): 240.0}}
    made.clock.now += HOUR
    await made.usage.write()
    assert made.kept() == {400_000: {("default", ""): 4 * HOUR}, 400_001: {("default", ""): 240.0}}
    assert {one["metadata"]["name"] for one in made.all(CONFIG_MAPS)} == {
        usage_config_maps.name_of(None),
        usage_config_maps.name_of(400_000 // 24),
    }
    await made.stop("p")
    await made.usage.write()
    before = len(made.client.writes)
    made.clock.now += 60
    await made.usage.write()
    assert len(made.client.writes) == before, "nothing has grown"


async def test_a_leader_gives_what_is_stored_the_owner_that_its_options_say() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += HOUR + 60
    await made.usage.write()
    stored = made.kept()
    assert len(made.all(CONFIG_MAPS)) == 2
    for keeps, owners in ((True, []), (False, [OWNER])):
        made.keeps = keeps
        made.restart()
        made.deliver()
        await made.usage.load()
        every = made.all(CONFIG_MAPS)
        assert [owner["name"] for one in every for owner in one["metadata"].get("ownerReferences", ())] == 2 * owners
        assert made.kept() == stored


async def test_usage_is_read_where_its_owner_cannot_be_changed(caplog: pytest.LogCaptureFixture) -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    made.keeps = True
    made.restart()
    made.deliver()

    async def immutable(*_: Any, **__: Any) -> Any:
        raise ApiError(422, "Invalid", "immutable")

    made.client.update = immutable  # type: ignore[method-assign]
    await made.usage.load()
    assert made.worker.picture.gpu_time.hours
    assert "The ConfigMap's ownerReferences stay unchanged" in caplog.text


async def test_the_next_leader_goes_on_from_what_was_written_and_from_the_claims_that_are_there() -> None:
    made = await cluster()
    await made.run("stays")
    await made.run("ends")
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += 30
    await made.stop("ends")
    made.restart()
    await made.settle()
    await made.usage.load()
    made.clock.now += 30
    await made.usage.write()
    assert made.kept()[400_000] == {("default", ""): 2 * 240.0 + 240.0}, "but for the half minute of who has ended"
    assert made.worker.tenants.shares.held("default") == (4.0, 4.0)


@pytest.mark.parametrize("write", sampled(range(1, 7), fast=2))
@pytest.mark.parametrize("stored", [False, True])
async def test_a_crash_while_a_long_gap_is_written_loses_none_of_it(write: int, stored: bool) -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += 4 * 24 * HOUR
    made.restart()
    await made.settle()
    await made.usage.load()
    made.client.kill_at = (-1 if stored else 1) * (len(made.client.writes) + write)
    with pytest.raises(Killed):
        await made.usage.write()
    made.restart()
    await made.settle()
    await made.usage.load()
    await made.usage.write()
    assert sum(rows["default", ""] for rows in made.kept().values()) == 4 * (4 * 24 * HOUR + 60)


async def test_pods_and_what_did_nothing_are_kept_over_a_change_of_the_leader() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 10 * 60
    await made.usage.write()
    claim = made.find(RESOURCE_CLAIMS, claim_of("p"), "default")
    assert claim is not None
    since = datetime.datetime.fromtimestamp(START + 5 * 60, datetime.UTC)
    results = claim["status"]["allocation"]["devices"]["results"]
    claim["status"]["devices"] = [
        {name: one[name] for name in ("driver", "pool", "device")}
        | {"data": idleness.told(since, now=since + datetime.timedelta(minutes=5))}
        for one in results
    ]
    made.put(RESOURCE_CLAIMS, claim)
    await made.settle()
    for restarts in (False, True):
        if restarts:
            made.restart()
            await made.settle()
            await made.usage.load()
        made.clock.now += 60
        await made.usage.write()
    kept = usage_config_maps.read(
        next(one for one in made.all(CONFIG_MAPS) if one["metadata"]["name"] == usage_config_maps.name_of(None))
    )
    ((bucket, seconds),) = kept.hours[400_000].items()
    assert seconds == 4 * 12 * 60
    detail = kept.details[400_000]
    assert detail.idle == {bucket: 4 * 7 * 60}, "also the five minutes before it was said"
    assert detail.pods == {(bucket, "p"): (4 * 12 * 60, 4 * 7 * 60)}


@pytest.mark.slow
def test_pods_have_the_room_that_is_left_and_those_of_a_row_are_never_more() -> None:
    hours: usage_config_maps.Hours = {}
    details: usage_config_maps.Details = {}
    for hour in range(400_000, 400_024):
        buckets = [Bucket(f"team-{n % 9}", f"Job/{'j' * 40}-{n}", "NVIDIA H100", "whole") for n in range(500)]
        hours[hour] = {bucket: 8.0 * (n + 1) for n, bucket in enumerate(buckets)}
        pods = {(b, f"{'p' * 60}-{n}"): (s / 8, s / 16) for b, s in hours[hour].items() for n in range(8)}
        details[hour] = usage_config_maps.Detail({b: s / 2 for b, s in hours[hour].items()}, pods)
    made = usage_config_maps.config_map(1, hours, until=START, namespace=OURS, version="1", details=details)
    assert len(made["data"]["usage.json"]) <= MOST_BYTES
    kept = usage_config_maps.read(made)
    for hour, rows in kept.hours.items():
        assert sum(rows.values()) == pytest.approx(sum(hours[hour].values()))
        assert sum(kept.details[hour].idle.values()) == pytest.approx(sum(rows.values()) / 2)
        had: dict[Bucket, float] = {}
        for (bucket, _), (seconds, _idle) in kept.details[hour].pods.items():
            had[bucket] = had.get(bucket, 0.0) + seconds
        assert len(kept.details[hour].pods) >= 100, "as many as there is room for"
        assert all(seconds <= rows[bucket] + 1e-3 for bucket, seconds in had.items())


async def test_where_no_allocation_says_when_its_claim_counts_from_its_creation() -> None:
    made = await cluster()
    await made.run("before", says_when=False)
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += 900
    await made.run("later", says_when=False)
    made.clock.now += 900
    made.restart()
    await made.settle()
    await made.usage.load()
    made.clock.now += 60
    await made.usage.write()
    assert made.kept()[400_000] == {("default", ""): 4 * (60 + 1800 + 60) + 4 * (900 + 60)}


async def test_an_hour_that_was_cut_off_is_not_counted_twice() -> None:
    """The day has the hour already, and the hour's own ConfigMap too: a crash came between the two writes."""
    made = await cluster()
    await made.run("p")
    made.clock.now += HOUR - 1
    await made.usage.write()
    made.clock.now += 61
    made.client.kill_at = len(made.client.writes) + 2
    with pytest.raises(Killed):
        await made.usage.write()
    made.restart()
    await made.settle()
    await made.usage.load()
    await made.usage.write()
    assert made.kept() == {400_000: {("default", ""): 4 * HOUR}, 400_001: {("default", ""): 240.0}}


async def test_what_another_has_counted_further_is_read_and_not_overwritten() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    (found,) = made.all(CONFIG_MAPS)
    bucket = Bucket("other", "", "", "whole")
    theirs = usage_config_maps.config_map(None, {400_000: {bucket: 7.0}}, until=made.clock.now + 50, namespace=OURS)
    made.put(CONFIG_MAPS, found | {"data": theirs["data"]})
    made.clock.now += 60
    with pytest.raises(ApiError) as caught:
        await made.usage.write()
    assert caught.value.conflict
    await made.usage.load()
    made.clock.now += 60
    await made.usage.write()
    assert made.kept() == {400_000: {("other", ""): 7.0, ("default", ""): 4 * 70.0}}


async def test_a_configmap_that_a_user_labelled_or_deleted_is_written_again() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    (found,) = made.all(CONFIG_MAPS)
    made.put(CONFIG_MAPS, found | {"immutable": False})
    made.clock.now += 60
    await made.usage.write()
    assert made.kept() == {400_000: {("default", ""): 480.0}}
    made.remove(CONFIG_MAPS, usage_config_maps.name_of(None), OURS)
    for _ in range(2):
        made.clock.now += 60
        await made.usage.write()
    assert made.kept() == {400_000: {("default", ""): 960.0}}


async def test_what_could_not_be_written_is_not_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    made = await cluster()
    made.worker.follow(Policies(tenants={"had": Tenant(namespaces=("had",))}))
    await made.run("long", 8, namespace="had")
    for _ in range(59):
        made.clock.now += 60
        made.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: configmaps")]
        await made.usage.write()
    assert caplog.text.count("exceeded quota") == 1
    await made.stop("long", namespace="had")
    made.clock.now += 50
    made.client.refuse["create"] = [ApiError(503, "ServiceUnavailable", "x")]
    await made.usage.write()
    assert not made.kept()
    assert made.worker.tenants.shares.used("had") > 0
    await made.usage.write()
    assert made.kept() == {400_000: {("had", ""): 8 * 59 * 60.0}}


async def test_a_day_that_cannot_be_written_keeps_nothing_else_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await cluster()
    day = usage_config_maps.name_of(400_000 // 24)
    made.put(CONFIG_MAPS, {"metadata": {"name": day, "namespace": OURS}, "immutable": True, "data": {}})
    await made.usage.load()
    update = made.client.update

    async def refused(resource: Any, wanted: Any) -> Any:
        if wanted["metadata"]["name"] == day:
            raise ApiError(422, "Invalid", "field is immutable when `immutable` is set")
        return await update(resource, wanted)

    monkeypatch.setattr(made.client, "update", refused)
    await made.run("p")
    for _ in range(181):
        made.clock.now += 60
        await made.usage.write()
    made.remove(CONFIG_MAPS, day, OURS)
    whole = {400_000 + n: {("default", ""): 4 * HOUR} for n in range(3)}
    assert made.kept() == whole | {400_003: {("default", ""): 240.0}}, "the hour's has them"
    monkeypatch.undo()
    made.restart()
    await made.settle()
    await made.usage.load()
    made.clock.now += 60
    await made.usage.write()
    (kept,) = [usage_config_maps.read(one) for one in made.all(CONFIG_MAPS) if one["metadata"]["name"] == day]
    assert set(kept.hours) == {400_000, 400_001, 400_002}


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_hour_over_whose_end_nothing_is_held_is_kept(restarts: bool) -> None:
    made = await cluster()
    last = 400_000 // 24 * 24 + 23
    made.clock.now = last * HOUR + 60
    await made.run("p")
    made.clock.now += 3000
    await made.usage.write()
    await made.stop("p")
    await made.usage.write()
    made.clock.now += 1200
    if restarts:
        made.restart()
        await made.settle()
        await made.usage.load()
    await made.run("q")
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += HOUR
    await made.usage.write()
    assert made.kept()[last] == {("default", ""): 4 * 3000.0}
    assert usage_config_maps.name_of(last // 24) in {one["metadata"]["name"] for one in made.all(CONFIG_MAPS)}


async def test_a_clock_that_goes_back_writes_nothing_empty() -> None:
    made = await cluster()
    await made.run("p")
    made.clock.now += 60
    await made.usage.write()
    made.clock.now += 60
    made.worker.picture.gpu_time.settle()
    for back in (HOUR, 24 * HOUR):
        made.clock.now -= back
        await made.usage.write()
        made.clock.now += 60
        await made.usage.write()
    made.clock.now = START + HOUR + 60
    await made.usage.write()
    assert made.kept()[400_000][("default", "")] >= 480.0


async def test_one_that_cannot_be_read_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    made = await cluster()
    for data in (None, {}, {"usage.json": "null"}, {"usage.json": '{"version": 1, "until": 1, "hours": {"1": [7]}}'}):
        made.put(CONFIG_MAPS, {"metadata": {"name": usage_config_maps.name_of(3), "namespace": OURS}, "data": data})
        with caplog.at_level(logging.WARNING):
            await made.usage.load()
        assert "has no readable GPU usage" in caplog.text
        caplog.clear()
    later = {"version": 2, "until": 1, "hours": {}}
    made.put(
        CONFIG_MAPS,
        {
            "metadata": {"name": usage_config_maps.name_of(3), "namespace": OURS},
            "data": {"usage.json": msgspec.json.encode(later).decode()},
        },
    )
    await made.usage.load()
    assert "another release" in caplog.text


async def test_who_used_more_waits_longer_also_under_the_next_leader() -> None:
    made = await cluster()
    tenants = {name: Tenant(namespaces=(name,)) for name in ("had", "new")}
    policies = Policies(tenants=tenants, queue=Queue(half_life_hours=24.0))
    made.worker.follow(policies)
    await made.run("long", 8, namespace="had")
    made.clock.now += HOUR
    await made.usage.write()
    await made.stop("long", namespace="had")
    made.restart()
    made.worker.follow(policies)
    await made.settle()
    await made.usage.load()
    assert made.worker.tenants.share("had") == pytest.approx(8 * HOUR, rel=0.02)
    await made.run("in-the-way", 8)
    made.pod("first", 8, namespace="had")
    made.pod("second", 8, namespace="new")
    await made.settle()
    await made.stop("in-the-way")
    assert made.find(RESOURCE_CLAIMS, claim_of("second"), "new") is not None
    assert made.find(RESOURCE_CLAIMS, claim_of("first"), "had") is None


def by_namespace(rows: dict[Bucket, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for bucket, seconds in rows.items():
        found[bucket.namespace] = found.get(bucket.namespace, 0.0) + seconds
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("namespaces", "owner"), [(3, 250), (270, 250), (700, 10)])
def test_what_is_too_much_for_one_configmap_is_added_up_by_namespace(namespaces: int, owner: int) -> None:
    buckets = {
        Bucket(f"namespace-{n % namespaces:04}", f"Job/{n:05}-{'y' * owner}", "NVIDIA H100 80GB HBM3", "whole"): float(
            n
        )
        for n in range(5000)
    }
    made = usage_config_maps.config_map(
        1, {400_000 + n: buckets for n in range(24)}, until=START, namespace=OURS, version="1"
    )
    assert len(made["data"]["usage.json"]) <= MOST_BYTES
    for rows in usage_config_maps.read(made).hours.values():
        assert by_namespace(rows) == by_namespace(buckets), "each namespace's is exact"
        assert any(bucket.owner == OTHERS for bucket in rows)
        assert max(rows.values()) >= 4999.0


def test_words_of_any_length_end() -> None:
    hours = {400_000: {Bucket("team", "", f"{n}" * 500_000, "whole"): 1.0 for n in range(5)}}
    made = usage_config_maps.config_map(1, hours, until=START, namespace=OURS, version="1")
    assert sum(usage_config_maps.read(made).hours[400_000].values()) == 5.0


@pytest.mark.slow
def test_what_is_of_too_many_namespaces_is_of_no_tenant() -> None:
    buckets = {Bucket(f"{n:05}-{'x' * 57}", "y" * 320, "z" * 63, "whole"): float(n) for n in range(20_000)}
    made = usage_config_maps.config_map(
        1, {400_000 + n: buckets for n in range(24)}, until=START, namespace=OURS, version="1"
    )
    assert len(made["data"]["usage.json"]) <= MOST_BYTES
    for rows in usage_config_maps.read(made).hours.values():
        assert sum(rows.values()) == sum(buckets.values())
        assert len(rows) > 200


async def test_a_pods_word_removes_no_usage_of_tenants() -> None:
    made = await cluster()
    made.node("b")
    await made.settle()
    policies = Policies(tenants={name: Tenant(namespaces=(name,)) for name in ("good", "bad")})
    made.worker.follow(policies)
    await made.run("p", 4, namespace="good")
    evil = made.admitted("evil", 8, namespace="bad")
    owner = {"apiVersion": "x.example/v1", "kind": "K" * 60_000, "name": "n", "uid": "u", "controller": True}
    evil["metadata"]["ownerReferences"] = [owner]
    made.put(PODS, evil)
    await made.settle()
    made.schedule()
    await made.settle()
    for _ in range(30):
        made.clock.now += HOUR
        await made.usage.write()
    made.restart()
    made.worker.follow(policies)
    await made.settle()
    await made.usage.load()
    shares = made.worker.tenants.shares
    assert set(shares.tenants()) == {"good", "bad"}
    kept = sum(rows["good", ""] for rows in made.kept().values())
    assert kept == pytest.approx(30 * 4 * HOUR)
    assert shares.used("good") == pytest.approx(30 * 4 * HOUR, rel=0.1)


def test_there_are_a_fixed_number_of_them() -> None:
    assert len(usage_config_maps.every_name()) == len(set(usage_config_maps.every_name())) == PLACES + 1
    assert {usage_config_maps.name_of(day) for day in range(20_000, 20_100)} < set(usage_config_maps.every_name())


def test_a_list_is_no_configmap() -> None:
    with pytest.raises(WordError):
        usage_config_maps.read(cast("dict[str, Any]", {"metadata": None}))


async def test_a_new_leader_waits_to_know_what_tenants_had_and_not_for_long() -> None:
    made = await cluster()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    task = asyncio.create_task(made.usage.run())
    await made.usage.first_load()
    assert loop.time() < begun + 1.0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async def never(*_: Any, **__: Any) -> Any:
        raise ApiError(503, "ServiceUnavailable", "later")

    made.client.get = never  # type: ignore[method-assign]
    task = asyncio.create_task(made.usage.run())
    begun = loop.time()
    await made.usage.first_load()
    assert loop.time() == pytest.approx(begun + FIRST_LOAD_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_metrics_tell_hours_of_gpus() -> None:
    made = await cluster()
    made.worker.follow(Policies(tenants={"team": Tenant(namespaces=("default",))}))
    made.worker.tenants.shares.restart({"default": 8 * HOUR}, {})
    await made.usage.write()
    assert REGISTRY.get_sample_value("gpu_topology_tenant_gpu_hours", {"tenant": "team"}) == pytest.approx(
        8.0, rel=1e-3
    )
