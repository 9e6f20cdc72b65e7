"""A plan is carried out as a whole: nobody ends before the API server would end everybody, and in time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue
from dradriver.controller.owners.evictions import LATE
from dradriver.controller.owners.owner_restarts import MOST_IN_NAMESPACE
from dradriver.controller.owners.owner_suspension import DONE, PAUSED
from dradriver.kube.client import ApiError
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Resource
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS, Jobs
from tests.fakes.gpucluster import Killed, claim_of
from tests.fakes.preempting import ON, Contested, contested
from tests.fakes.troubles import WEBHOOK, working

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
UNSUPPORTED = 'admission webhook "x.example.com" does not support dry run'


async def reasons_of(cluster: Contested, pod: str, *, looks: int) -> set[str]:
    """Let the controller work, look at a pod ten times a second, and return the reasons that it had."""
    reasons: set[str] = set()
    async with working(cluster):
        for _ in range(looks):
            await asyncio.sleep(0.1)
            reasons.add(cluster.note(pod, "reason") or "")
    return reasons


class Trains:
    """Nodes that are full, each with a Job whose two pods are a gang."""

    def __init__(self, count: int) -> None:
        self.cluster = Contested(suspendable=("Job",))
        self.names = [f"train-{number}" for number in range(count)]
        self.jobs = Jobs(self.cluster.store, self._pod, delete=self.cluster.end)
        spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0}
        for name in self.names:
            self.cluster.node(name)
            self.cluster.put(JOBS, {"metadata": {"name": name, "namespace": "default"}, "spec": dict(spec)})

    def _pod(self, job: Object, name: str, _: int) -> Object:
        node = job["metadata"]["name"]
        selector = {"kubernetes.io/hostname": node}
        return self.cluster.admitted(name, 4, priority=0, wishes={"gang": "auto"}, nodeSelector=selector)

    async def run(self) -> None:
        for _ in range(4):
            self.jobs.act()
            await self.cluster.settle()
            self.cluster.schedule()
        await self.cluster.settle()

    def job(self, name: str) -> Object:
        found = self.cluster.find(JOBS, name, "default")
        assert found is not None
        return found

    def suspended(self) -> list[str]:
        return [name for name in self.names if self.job(name)["spec"].get("suspend")]

    def gang(self, *, priority: int = 10) -> list[str]:
        """Create a gang that needs all of the nodes."""
        size = len(self.names)
        pods = [f"me-{number}" for number in range(size)]
        for pod in pods:
            self.cluster.pod(pod, 8, priority=priority, wishes={"gang": "me", "gang-size": str(size)})
        return pods

    def follow(self, **preemption: Any) -> None:
        terms = msgspec.structs.replace(ON.queue.preemption, **preemption)
        self.cluster.worker.follow(Policies(queue=Queue(preemption=terms)))


async def trains(count: int) -> Trains:
    made = Trains(count)
    await made.run()
    pods = made.cluster.all(PODS)
    assert len(pods) == 2 * count
    assert all(pod["spec"].get("nodeName") for pod in pods)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 2 * MOST_IN_NAMESPACE])
async def test_all_owners_of_a_plan_are_suspended_at_once(count: int) -> None:
    it = await trains(count)
    me = it.gang()
    await it.cluster.settle()
    assert it.suspended() == it.names
    it.jobs.act()
    await it.cluster.settle()
    it.cluster.gone(*it.cluster.ending())
    await it.cluster.settle()
    assert it.suspended() == []
    it.cluster.schedule()
    await it.cluster.settle()
    assert all(it.cluster.get_pod(pod)["spec"].get("nodeName") for pod in me)
    assert it.cluster.evicted() == []


def at_kueue(it: Trains, name: str) -> str:
    it.cluster.store.edit(JOBS, ("default", name), lambda job: job["metadata"].update(labels={"kueue.x-k8s.io/q": "q"}))
    return "in a queue of Kueue"


def suspended(it: Trains, name: str) -> str:
    it.cluster.store.edit(JOBS, ("default", name), lambda job: job["spec"].update(suspend=True))
    return "was suspended by another program"


def ended(it: Trains, name: str) -> str:
    status = {"conditions": [{"type": "Complete", "status": "True"}]}
    it.cluster.store.edit(JOBS, ("default", name), lambda job: job.update(status=status))
    return "has ended"


def gone(it: Trains, name: str) -> str:
    it.cluster.remove(JOBS, name, "default")
    return "does not exist any more"


def another(it: Trains, name: str) -> str:
    it.cluster.remove(JOBS, name, "default")
    it.cluster.put(JOBS, {"metadata": {"name": name, "namespace": "default"}, "spec": {"parallelism": 0}})
    return "was deleted and created again"


def paused(it: Trains, name: str) -> str:
    note(it, name, at=datetime.datetime.now(datetime.UTC))
    return PAUSED


def note(it: Trains, name: str, *, at: datetime.datetime, loss: str = "0") -> None:
    record = {"uid": it.job(name)["metadata"]["uid"], "gang": "g", "loss": loss, "why": "w", "over": True}
    text = json.dumps(record | {"at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})
    it.cluster.store.edit(
        JOBS, ("default", name), lambda job: job["metadata"].update(annotations={names.RESTART: text})
    )


def in_vain(it: Trains, name: str) -> str:
    """Note on a Job that it was suspended and resumed for the very pods that run."""
    owned = [pod for pod in it.cluster.all(PODS) if pod["metadata"]["ownerReferences"][0]["name"] == name]
    uids = sorted(pod["metadata"]["uid"] for pod in owned)
    loss = hashlib.sha256(",".join(uids).encode()).hexdigest()[:32]
    note(it, name, at=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), loss=loss)
    return DONE


def forbidden(it: Trains, name: str) -> str:
    refuse_patch(it, name, ApiError(403, "Forbidden", "no"))
    return "The controller cannot suspend"


def denied(it: Trains, name: str) -> str:
    refuse_patch(it, name, ApiError(422, "Invalid", "webhook x denied the request"))
    return "The gang cannot be restarted"


def refuse_patch(it: Trains, job: str, error: ApiError) -> None:
    original = it.cluster.client.patch

    async def patch(resource: Resource, name: str, body: Any, **more: Any) -> Any:
        if (resource, name) == (JOBS, job):
            raise error
        return await original(resource, name, body, **more)

    it.cluster.client.patch = patch  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", [at_kueue, suspended, ended, gone, another, paused, in_vain, forbidden, denied])
@pytest.mark.parametrize("which", [0, -1])
async def test_no_owner_is_suspended_if_one_of_the_plan_cannot_be(
    obstacle: Callable[[Trains, str], str], which: int
) -> None:
    it = await trains(3)
    name = it.names[which]
    why = obstacle(it, name)
    me = it.gang()
    reasons = await reasons_of(it.cluster, me[0], looks=150)
    assert not [other for other in it.names if other != name and it.job(other)["spec"].get("suspend")]
    assert it.cluster.ending() == []
    assert any(why in reason for reason in reasons), reasons


async def test_a_webhook_that_supports_no_dry_run_stops_no_end() -> None:
    it = await trains(2)
    original = it.cluster.client.patch

    async def patch(*args: Any, **more: Any) -> Any:
        if more.get("dry_run"):
            raise ApiError(400, "BadRequest", UNSUPPORTED)
        return await original(*args, **more)

    it.cluster.client.patch = patch  # type: ignore[method-assign]
    it.gang()
    async with working(it.cluster):
        await asyncio.sleep(5)
    assert it.suspended() == it.names


def refuse_evictions(cluster: Contested, pod: str, *, dry_too: bool = True) -> None:
    original = cluster.client.create

    async def create(resource: Resource, obj: Object, **options: Any) -> Any:
        about = options.get("subresource") == "eviction" and obj["metadata"]["name"] == pod
        if about and (dry_too or not options.get("dry_run")):
            raise ApiError(500, "InternalError", WEBHOOK, request="POST eviction", is_status=True)
        return await original(resource, obj, **options)

    cluster.client.create = create  # type: ignore[method-assign]


@pytest.mark.parametrize("refused", ["one", "two"])
async def test_no_pod_is_evicted_if_the_server_would_not_evict_another_of_the_plan(refused: str) -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    refuse_evictions(cluster, refused)
    cluster.pod("me", 8, priority=10)
    reasons = await reasons_of(cluster, "me", looks=50)
    assert cluster.ending() == []
    assert any(WEBHOOK in reason for reason in reasons), reasons


async def test_no_other_pod_is_evicted_in_vain_while_a_pod_of_the_plan_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await contested(("one", 2, 0), ("two", 3, 0), ("three", 3, 0))
    loop = asyncio.get_running_loop()
    ahead_s = NOW.timestamp() - loop.time()
    monkeypatch.setattr(time, "time", lambda: loop.time() + ahead_s)
    cluster.end(("default", "one"))
    gone_at = f"{NOW + datetime.timedelta(seconds=25):%Y-%m-%dT%H:%M:%SZ}"
    cluster.store.edit(PODS, ("default", "one"), lambda pod: pod["metadata"].update(deletionTimestamp=gone_at))
    await cluster.settle()
    refuse_evictions(cluster, "three")
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(5)
    assert cluster.ending() == ["one"]


@pytest.mark.parametrize("margin_s", [0.0, 30.0])
async def test_slow_evictions_keep_no_plan_from_being_carried_out(
    monkeypatch: pytest.MonkeyPatch, margin_s: float
) -> None:
    """As with a webhook that does not answer and whose failurePolicy is Ignore."""
    cluster = await contested(*((f"p{number}", 1, 0) for number in range(8)))
    terms = msgspec.structs.replace(ON.queue.preemption, margin_seconds=margin_s, workloads_per_minute=100)
    cluster.worker.follow(Policies(queue=Queue(preemption=terms)))
    loop = asyncio.get_running_loop()
    ahead_s = time.time() - loop.time()
    monkeypatch.setattr(time, "time", lambda: loop.time() + ahead_s)
    original = cluster.client.create

    async def slow(resource: Resource, obj: Object, **options: Any) -> Any:
        if options.get("subresource") == "eviction":
            await asyncio.sleep(10.0 if margin_s else 1.0)
        return await original(resource, obj, **options)

    cluster.client.create = slow  # type: ignore[method-assign]
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(25)
    assert len(cluster.ending()) == 8


async def test_no_pod_is_evicted_if_a_budget_has_come_to_refuse_the_last() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    for pod in ("one", "two"):
        cluster.store.edit(PODS, ("default", pod), lambda pod: pod["metadata"]["labels"].update(app="kept"))

    def allow(disruptions: int) -> None:
        budget: Object = {"metadata": {"name": "kept", "namespace": "default"}}
        spec = {"selector": {"matchLabels": {"app": "kept"}}}
        cluster.put(POD_DISRUPTION_BUDGETS, budget | {"spec": spec, "status": {"disruptionsAllowed": disruptions}})

    allow(2)
    original = cluster.client.create

    async def create(resource: Resource, obj: Object, **options: Any) -> Any:
        if obj["metadata"].get("name") == claim_of("me"):
            allow(1)  # another of its pods has failed since it was asked
        return await original(resource, obj, **options)

    cluster.client.create = create  # type: ignore[method-assign]
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(5)
    assert cluster.ending() == []
    assert cluster.claim("me") is None


async def test_no_owner_is_suspended_if_a_pod_of_the_plan_cannot_be_evicted() -> None:
    it = await trains(1)
    it.cluster.node("other")
    await it.cluster.run(("alone", 8, 0), nodeSelector={"kubernetes.io/hostname": "other"})
    refuse_evictions(it.cluster, "alone")
    for number in range(2):
        it.cluster.pod(f"me-{number}", 8, priority=10, wishes={"gang": "me", "gang-size": "2"})
    async with working(it.cluster):
        await asyncio.sleep(5)
    assert it.suspended() == []
    assert it.cluster.ending() == []


async def test_what_was_begun_is_finished_though_the_server_refuses_the_rest_for_a_while() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))
    refuse_evictions(cluster, "two", dry_too=False)
    refuse_evictions(cluster, "one", dry_too=False)
    create = cluster.client.create
    cluster.pod("me", 8, priority=10)
    cluster.client.ends = lambda key: None  # nothing shows yet that it was told
    refused = iter([False])

    async def once(resource: Resource, obj: Object, **options: Any) -> Any:
        if options.get("subresource") == "eviction" and not options.get("dry_run") and not next(refused, True):
            return {}
        return await create(resource, obj, **options)

    cluster.client.create = once  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(30)
        assert cluster.claim("me") is not None
        assert "preemption of" in (cluster.note("me", "reason") or "")


async def test_the_next_leader_finishes_what_was_begun_though_an_owner_refuses_meanwhile() -> None:
    it = await trains(2)
    patch = it.cluster.client.patch

    async def killed(resource: Resource, name: str, body: Any, **more: Any) -> Any:
        answer = await patch(resource, name, body, **more)
        if resource == JOBS and not more.get("dry_run"):
            raise Killed
        return answer

    it.cluster.client.patch = killed  # type: ignore[method-assign]
    me = it.gang()
    with contextlib.suppress(Killed, BaseExceptionGroup):
        await it.cluster.settle()
    (begun,) = it.suspended()
    (other,) = set(it.names) - {begun}
    at_kueue(it, other)
    it.cluster.restart()
    async with working(it.cluster):
        await asyncio.sleep(5)
    assert it.suspended() == [begun]
    assert all(it.cluster.claim(pod) is not None for pod in me)
    assert "preemption of" in (it.cluster.note(me[0], "reason") or "")


async def test_no_pod_is_told_to_end_if_it_is_too_late_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    it = await trains(2)
    it.follow(margin_seconds=5.0)
    loop, ahead_s = asyncio.get_running_loop(), [time.time() - asyncio.get_running_loop().time()]
    monkeypatch.setattr(time, "time", lambda: loop.time() + ahead_s[0])
    original = it.cluster.client.patch

    async def slow(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == PODS:
            ahead_s[0] += 4.0
        return await original(resource, *args, **more)

    it.cluster.client.patch = slow  # type: ignore[method-assign]
    me = it.gang()
    reasons = await reasons_of(it.cluster, me[0], looks=100)
    assert it.suspended() == []
    assert it.cluster.ending() == []
    assert any(LATE in reason for reason in reasons), reasons
