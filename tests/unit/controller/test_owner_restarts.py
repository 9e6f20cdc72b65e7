"""Gangs started anew: suspended owners are always resumed, by whom ever, no Job's pod fails, and once means once."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.gangs import suspendable_owners
from dradriver.controller.owners import owner_restarts
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_suspension import DONE, PAUSED
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Resource
from tests.effort import sampled
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS, JOBSETS, Jobs
from tests.fakes.gpucluster import GpuCluster, Killed
from tests.fakes.troubles import working

MPIJOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", namespaced=True)
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", namespaced=True)
CRON = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "c", "controller": True}
ARGO = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "w", "controller": True}


class World:
    """A cluster with a Job of three pods that run, or a JobSet of them."""

    def __init__(self, resource: Resource = JOBS, *, loss: str = "replace", **metadata: Any) -> None:
        self.cluster = GpuCluster()
        seconds = itertools.count()
        began = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        self.cluster.store.clock = lambda: began + datetime.timedelta(seconds=next(seconds))  # no two in one second
        self.loss = loss
        for node in "abc":
            self.cluster.node(node)
        self.resource = resource
        self.jobs = Jobs(self.cluster.store, self._pod)
        spec: Object = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
        if resource is JOBSETS:
            spec = {"replicatedJobs": [{"name": "w", "template": {"spec": spec}}]}
        self.cluster.put(resource, {"metadata": {"name": "train", "namespace": "default"} | metadata, "spec": spec})

    def _pod(self, _: Object, name: str, __: int) -> Object:
        pod = self.cluster.admitted(name, 8, wishes={"gang": "auto", "on-member-loss": self.loss})
        del pod["metadata"]["creationTimestamp"]  # it is made when it is
        return pod

    async def run(self) -> None:
        """Let everybody do what there is to do, pods be bound included."""
        for _ in range(6):
            self.jobs.act()
            self.cluster.collect()
            await self.cluster.settle()
            self.cluster.schedule()
        await self.cluster.settle()

    @property
    def pods(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.cluster.all(PODS)}

    @property
    def running(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.cluster.all(PODS) if pod["spec"].get("nodeName")}

    @property
    def owner(self) -> Object:
        found = self.cluster.find(self.resource, "train", "default")
        assert found is not None
        return found

    def ask(self) -> str:
        self.cluster.deliver()
        picture = self.cluster.worker.picture
        gang = next(iter(picture.gangs))
        pods = [picture.pods[pod] for pod in picture.gangs.pods(gang)]
        return self.cluster.restarts.ask(gang, pods, "for a test")

    async def refused(self) -> str:
        """Ask, and return why it cannot be."""
        assert self.ask() == ""
        await self.run()
        return self.ask()

    def record(self) -> suspendable_owners.Record:
        found = suspendable_owners.record_of(msgspec.convert(self.owner, suspendable_owners.Suspendable))
        assert found is not None
        return found

    def suspensions(self) -> int:
        """Return how often the owner was suspended."""
        said = [
            event.new["spec"].get("suspend", False)
            for event in self.cluster.store.of(self.resource).log
            if event.new is not None
        ]
        return sum(now and not before for before, now in zip([False, *said], said, strict=False))

    def whole(self, before: set[str]) -> None:
        """Check that all runs anew and nothing is left behind."""
        assert len(self.running) == 3
        assert not self.pods & before
        assert not self.owner["spec"].get("suspend")
        assert names.RESTARTING not in self.owner["metadata"].get("labels", {})
        assert all(job.get("status", {}).get("failed", 0) == 0 for job in self.cluster.all(JOBS))


async def world(resource: Resource = JOBS, *, loss: str = "replace", **metadata: Any) -> World:
    made = World(resource, loss=loss, **metadata)
    await made.run()
    assert len(made.running) == 3
    return made


@pytest.mark.parametrize("resource", [JOBS, JOBSETS], ids=lambda one: one.kind)
async def test_the_topmost_owner_is_suspended_and_resumed_and_no_pod_has_failed(resource: Resource) -> None:
    it = await world(resource)
    before = it.pods
    assert it.ask() == ""
    await it.cluster.settle()
    assert it.owner["spec"]["suspend"] is True
    assert names.RESTARTING in it.owner["metadata"]["labels"]
    noted = msgspec.json.decode(it.owner["metadata"]["annotations"][names.RESTART], type=suspendable_owners.Record)
    assert (noted.uid, noted.why, noted.over) == (it.owner["metadata"]["uid"], "for a test", False)
    assert it.ask() == ""
    await it.run()
    it.whole(before)
    assert it.suspensions() == 1


async def test_it_stays_suspended_until_its_pods_are_gone_but_not_for_ever() -> None:
    it = await world()
    for pod in it.cluster.all(PODS):
        it.cluster.put(PODS, pod | {"metadata": pod["metadata"] | {"finalizers": ["a.example.com/slow"]}})
    assert it.ask() == ""
    await it.run()
    assert it.owner["spec"]["suspend"] is True
    await asyncio.sleep(owner_restarts.LONGEST_S)
    await it.run()
    assert it.owner["spec"]["suspend"] is False


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", sampled([1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6]))
@pytest.mark.parametrize("resource", [JOBS, JOBSETS], ids=lambda one: one.kind)
async def test_a_leader_that_is_killed_at_any_write_leaves_nothing_suspended(resource: Resource, kill_at: int) -> None:
    it = await world(resource)
    before = it.pods
    it.cluster.client.writes.clear()
    it.cluster.client.kill_at = kill_at
    it.ask()
    try:
        await it.run()
    except (Killed, BaseExceptionGroup):
        it.cluster.restart()
        if it.pods == before:  # its caller finds the gang as it was, and asks again, where pods are there
            it.ask()
        await it.run()
    else:
        raise AssertionError("it is killed")
    it.whole(before)
    assert it.suspensions() == 1


async def test_a_second_leader_finishes_what_it_is_not_asked_for() -> None:
    it = await world()
    before = it.pods
    it.ask()
    await it.cluster.settle()
    assert it.owner["spec"]["suspend"] is True
    it.cluster.restart()
    await it.run()
    it.whole(before)


async def test_what_a_predecessor_suspends_while_the_next_leads_already_is_resumed() -> None:
    it = await world()
    before = it.pods
    it.ask()
    predecessor = it.cluster.restarts
    it.cluster.restart()
    leads = asyncio.create_task(it.cluster.restarts.run())
    await asyncio.sleep(1)  # by then it has searched and found nothing
    await predecessor.settle()
    assert it.owner["spec"]["suspend"] is True
    async with asyncio.timeout(owner_restarts.AGAIN_LIST_S + 10):
        while it.owner["spec"].get("suspend"):
            it.jobs.act()
            it.cluster.deliver()
            await asyncio.sleep(1)
    leads.cancel()
    await it.run()
    it.whole(before)


async def test_once_for_the_same_pods_also_by_the_next_leader() -> None:
    it = await world()
    it.ask()
    picture = it.cluster.worker.picture
    gang = next(iter(picture.gangs))
    pods = [picture.pods[pod] for pod in picture.gangs.pods(gang)]
    await it.run()
    assert it.cluster.restarts.ask(gang, pods, "again") == DONE
    it.cluster.restart()
    await it.run()
    client = cast("Client", it.cluster.client)
    shown = {("default", pod.metadata.name): pod for pod in pods}  # to a leader whose watch is late
    late = owner_restarts.OwnerRestarts(client, OwnerKinds(client), pods=shown, touch=lambda _: None)
    assert late.ask(gang, pods, "again") == ""
    await late.settle()
    assert late.ask(gang, pods, "again") == DONE
    await it.run()
    assert it.suspensions() == 1


async def test_between_two_restarts_there_is_a_pause_that_grows() -> None:
    it = await world()
    it.ask()
    await it.run()
    assert await it.refused() == PAUSED
    assert it.suspensions() == 1
    record = it.record()
    old = f"{datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"

    def age(job: Object) -> None:
        text = msgspec.json.encode(msgspec.structs.replace(record, at=old)).decode()
        job["metadata"]["annotations"][names.RESTART] = text

    it.cluster.store.edit(JOBS, ("default", "train"), age)
    before = it.pods
    await it.run()
    it.whole(before)
    assert it.record().times == 2
    assert it.record().due_in_s(datetime.datetime.now(datetime.UTC)) > suspendable_owners.FIRST_PAUSE_S


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "'Job train' is in a queue of Kueue"),
        ({"annotations": {"kueue.x-k8s.io/prebuilt-workload-name": "q"}}, "'Job train' is in a queue of Kueue"),
        ({"ownerReferences": [ARGO]}, "'Job train' was created by 'Workflow w'"),
    ],
)
async def test_what_others_suspend_and_resume_is_left_to_them(metadata: Object, told: str) -> None:
    it = await world(**metadata)
    assert told in await it.refused()
    assert it.suspensions() == 0
    assert len(it.running) == 3


async def test_a_cron_job_changes_none_of_its_jobs() -> None:
    it = await world(ownerReferences=[CRON])
    before = it.pods
    it.ask()
    await it.run()
    it.whole(before)


async def test_kueue_is_seen_by_the_pods_that_it_started_too() -> None:
    it = await world()
    for pod in it.cluster.all(PODS):
        pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "w"
        it.cluster.put(PODS, pod)
    assert "Kueue has admitted the pods of the gang" in await it.refused()


def edit(it: World, change: Callable[[Object], Any]) -> None:
    it.cluster.store.edit(JOBS, ("default", "train"), change)


async def test_who_suspended_it_resumes_it() -> None:
    it = await world()
    edit(it, lambda job: job["spec"].update(suspend=True))
    assert it.ask() == ""
    await it.cluster.settle()
    assert "was suspended by another program" in it.ask()
    await it.run()
    assert it.owner["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("change", "suspended"),
    [
        (lambda job: job["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}), True),
        (lambda job: job["metadata"].pop("labels"), True),
        (lambda job: job["metadata"].pop("annotations"), True),
        (lambda job: job["spec"].update(suspend=False), False),
        (lambda job: job["metadata"]["labels"].update(mine="x"), False),
    ],
    ids=["Kueue", "label", "record", "resumed", "something else"],
)
async def test_what_others_do_meanwhile_stands(change: Callable[[Object], Any], suspended: bool) -> None:
    it = await world()
    it.ask()
    await it.cluster.settle()
    edit(it, change)
    await it.run()
    assert it.owner["spec"]["suspend"] is suspended
    assert names.RESTARTING not in it.owner["metadata"].get("labels", {}) or "labels" not in str(change)
    assert not it.cluster.restarts.suspended()


async def test_a_change_between_reading_and_writing_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    it = await world()
    patch = it.cluster.client.patch
    late = [lambda job: job["spec"].update(suspend=True)]

    async def patching(resource: Resource, name: str, *args: Any, **more: Any) -> Any:
        if resource == JOBS and late:
            edit(it, late.pop())
        return await patch(resource, name, *args, **more)

    monkeypatch.setattr(it.cluster.client, "patch", patching)
    it.ask()
    await it.cluster.settle()
    await it.run()
    assert it.owner["spec"]["suspend"] is True, "as somebody else wants it"
    assert names.RESTART not in it.owner["metadata"].get("annotations", {})


@pytest.mark.parametrize("verb", ["get", "patch"])
async def test_without_the_right_it_says_so_and_nothing_happens(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    it = await world()
    original = getattr(it.cluster.client, verb)

    async def refuse(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            raise ApiError(403, "Forbidden", "no")
        return await original(resource, *args, **more)

    monkeypatch.setattr(it.cluster.client, verb, refuse)
    before = it.pods
    told = await it.refused()
    assert (
        f"The controller cannot {'read' if verb == 'get' else 'suspend'} 'Job train': set controller.gangOwners.Job"
        in told
    )
    assert it.running == before


async def test_a_server_in_trouble_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    it = await world()
    before = it.pods
    failures: list[Exception] = [Unreachable("no"), ApiError(500, "", "etcdserver: no leader"), TimeoutError()] * 2
    patch = it.cluster.client.patch

    async def patching(resource: Resource, name: str, *args: Any, **more: Any) -> Any:
        if resource == JOBS and failures and len(failures) % 2:
            await patch(resource, name, *args, **more)  # it was done, but the answer is lost
        if resource == JOBS and failures:
            raise failures.pop()
        return await patch(resource, name, *args, **more)

    monkeypatch.setattr(it.cluster.client, "patch", patching)
    it.ask()
    for _ in range(4):
        await it.run()
    it.whole(before)
    assert it.suspensions() == 1


@pytest.mark.parametrize(("allowed", "stops"), [(2, True), (3, False)])
async def test_a_budget_that_allows_fewer_than_run_stops_it(allowed: int, stops: bool) -> None:
    it = await world()
    before = it.pods
    budget = {"spec": {"selector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}}}}
    status = {"status": {"disruptionsAllowed": allowed}}
    other = {"spec": {"selector": {"matchLabels": {"a": "b"}}}, "status": {"disruptionsAllowed": 0}}
    it.cluster.put(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "keep", "namespace": "default"}} | budget | status)
    it.cluster.put(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "other", "namespace": "default"}} | other)
    if stops:
        assert "'keep' allows 2 disruptions now, but 3 of its pods run" in await it.refused()
        assert it.running == before
    else:
        it.ask()
        await it.run()
        it.whole(before)


async def test_a_copy_of_a_suspended_owner_is_not_resumed() -> None:
    it = await world()
    it.ask()
    await it.cluster.settle()
    copied = it.owner
    copied["metadata"] = {key: copied["metadata"][key] for key in ("labels", "annotations")} | {"name": "copy"}
    it.cluster.put(JOBS, copied | {"metadata": copied["metadata"] | {"namespace": "default"}})
    await it.run()
    copy = it.cluster.find(JOBS, "copy", "default")
    assert copy is not None
    assert copy["spec"]["suspend"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"uid": 1}', "x" * 9000, '{"uid":"u","gang":"g","loss":"l","why":"w","at":"9"}']
)
async def test_what_only_looks_like_a_record_does_not_count(text: str) -> None:
    it = await world(annotations={names.RESTART: text}, labels={names.RESTARTING: "true"})
    before = it.pods
    it.ask()
    await it.run()
    it.whole(before)


async def test_bare_pods_and_those_of_several_owners_are_left_alone() -> None:
    cluster = GpuCluster()
    pods = []
    for i, owner in enumerate(("", "one", "two")):
        pod = cluster.admitted(f"p{i}", 8, wishes={"gang": "g", "gang-size": "3"})
        if owner:
            made_by = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner, "controller": True}
            pod["metadata"]["ownerReferences"] = [made_by]
            cluster.put(JOBS, {"metadata": {"name": owner, "namespace": "default", "uid": owner}, "spec": {}})
        cluster.put(PODS, pod)
        pods.append(("default", f"p{i}"))
    cluster.deliver()
    found = [cluster.worker.picture.pods[pod] for pod in pods]
    restarts = cluster.restarts
    assert restarts.ask(("default", "gang/a"), found[:1], "r") == ""
    assert restarts.ask(("default", "gang/b"), found[1:], "r") == ""
    await cluster.worker.sweep()
    assert "have no owner" in restarts.ask(("default", "gang/a"), found[:1], "r")
    assert "more than one owner, 'Job one' and others" in restarts.ask(("default", "gang/b"), found[1:], "r")


@pytest.mark.parametrize(("resource", "path"), [(MPIJOBS, ("runPolicy", "suspend")), (TRAIN_JOBS, ("suspend",))])
async def test_each_kind_has_its_field(resource: Resource, path: tuple[str, ...]) -> None:
    cluster = GpuCluster()
    pod = cluster.admitted("p", 8, wishes={"gang": "auto"})
    owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": "t", "uid": "u", "controller": True}
    cluster.put(resource, {"metadata": {"name": "t", "namespace": "default", "uid": "u"}, "spec": {"other": 1}})
    if resource is TRAIN_JOBS:
        made = {"apiVersion": JOBSETS.api_version, "kind": "JobSet", "name": "t", "uid": "s", "controller": True}
        metadata = {"name": "t", "namespace": "default", "uid": "s", "ownerReferences": [owner]}
        cluster.put(JOBSETS, {"metadata": metadata, "spec": {}})
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "t"
        owner = made
    pod["metadata"]["ownerReferences"] = [owner]
    cluster.put(PODS, pod)
    cluster.deliver()
    restarts = cluster.restarts
    restarts.ask(("default", "gang/a"), [cluster.worker.picture.pods["default", "p"]], "r")
    await cluster.worker.sweep()

    def field() -> Any:
        found: Any = cluster.find(resource, "t", "default")
        assert found["spec"]["other"] == 1
        for name in ("spec", *path):
            found = found[name]
        return found

    assert field() is True
    cluster.store.edit(
        resource,
        ("default", "t"),
        lambda one: one.update(status={"conditions": [{"type": "Suspended", "status": "True"}]}),
    )
    cluster.remove(PODS, "p", "default")
    cluster.deliver()
    await cluster.worker.sweep()
    assert field() is False


async def test_pods_of_a_stateful_set_are_deleted_each_once() -> None:
    cluster = GpuCluster()
    for i in range(2):
        pod = cluster.admitted(f"s-{i}", 8, wishes={"gang": "g", "gang-size": "2"})
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        cluster.put(PODS, pod)
    cluster.deliver()
    pods = [cluster.worker.picture.pods["default", f"s-{i}"] for i in range(2)]
    cluster.remove(PODS, "s-1", "default")
    cluster.put(PODS, cluster.admitted("s-1", 8))  # another by now, which nobody meant
    restarts = cluster.restarts
    assert restarts.ask(("default", "gang/a"), pods, "r") == ""
    await cluster.worker.sweep()
    assert [pod["metadata"]["name"] for pod in cluster.all(PODS)] == ["s-1"]
    assert restarts.ask(("default", "gang/a"), pods, "r") == DONE
    assert cluster.client.writes == [("delete", "s-0"), ("delete", "s-1")]


async def test_so_many_are_suspended_at_once_and_no_more() -> None:
    most = owner_restarts.MOST_IN_NAMESPACE
    owners = [f"job-{number}" for number in range(most + 1)]
    cluster = GpuCluster()
    for name in owners:
        pod = cluster.admitted(name, 8, wishes={"gang": "auto"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        cluster.put(PODS, pod)
        cluster.put(JOBS, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {}})
    cluster.deliver()
    for name in owners:
        cluster.restarts.ask(("default", f"gang/{name}"), [cluster.worker.picture.pods["default", name]], "r")
    await cluster.worker.sweep()
    assert len(suspended_in(cluster, "default")) == most
    jobs = Jobs(cluster.store, lambda *_: cluster.admitted("new", 8))
    suspended = 0
    for _ in range(6):
        jobs.act()
        cluster.deliver()
        await cluster.worker.sweep()
        suspended = max(suspended, len(suspended_in(cluster, "default")))
    assert suspended <= most
    assert all(names.RESTART in job["metadata"].get("annotations", {}) for job in cluster.all(JOBS))


async def test_what_was_answered_before_does_not_count_once_the_owner_can_be_suspended() -> None:
    cluster = GpuCluster()
    asking(cluster, "default", "unwanted", is_needed=lambda: False)
    await cluster.worker.sweep()
    restarts, pods = cluster.restarts, [cluster.worker.picture.pods["default", "unwanted"]]
    gang = "default", "gang/unwanted"
    assert restarts.ask(gang, pods, "r") == owner_restarts.UNWANTED
    await restarts.check(gang, pods, "r")
    assert suspended_in(cluster, "default") == []
    assert restarts.ask(gang, pods, "r", at_once=True) == ""
    await cluster.worker.sweep()
    assert suspended_in(cluster, "default") == ["unwanted"]
    assert restarts.suspended() == {gang}
    await restarts.check(gang, pods, "r")


def marked(cluster: GpuCluster, namespace: str, count: int) -> None:
    """Let a namespace have Jobs that look as if the controller had suspended them, with pods that never go."""
    for number in range(count):
        name = f"{namespace}-{number}"
        record = suspendable_owners.Record(uid=name, gang="g", loss="l", why="w", at="2026-01-02T03:04:05Z")
        metadata = {"name": name, "namespace": namespace, "uid": name, "labels": {names.RESTARTING: "true"}}
        metadata |= {"annotations": {names.RESTART: msgspec.json.encode(record).decode()}}
        cluster.put(JOBS, {"metadata": metadata, "spec": {"suspend": True}})


def asking(cluster: GpuCluster, namespace: str, *jobs: str, is_needed: Callable[[], bool] = lambda: True) -> None:
    """Ask that Jobs of one pod each start anew."""
    restarts = cluster.restarts
    for name in jobs:
        pod = cluster.admitted(name, 8, namespace=namespace, wishes={"gang": "auto"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        cluster.put(PODS, pod)
        cluster.put(JOBS, {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": {}})
    cluster.deliver()
    for name in jobs:
        restarts.ask(
            (namespace, f"gang/{name}"), [cluster.worker.picture.pods[namespace, name]], "r", is_needed=is_needed
        )


def suspended_in(cluster: GpuCluster, namespace: str) -> list[str]:
    jobs = [job for job in cluster.all(JOBS) if job["metadata"]["namespace"] == namespace]
    return [job["metadata"]["name"] for job in jobs if job["spec"].get("suspend")]


@pytest.mark.parametrize("count", [1, 70])
async def test_what_one_namespace_has_marked_keeps_no_other_from_its_own(count: int) -> None:
    cluster = GpuCluster()
    marked(cluster, "tenant", count)
    await cluster.restarts.find()
    asking(cluster, "default", *(f"job-{number}" for number in range(owner_restarts.MOST_IN_NAMESPACE + 1)))
    await cluster.worker.sweep()
    assert len(suspended_in(cluster, "default")) == owner_restarts.MOST_IN_NAMESPACE
    asking(cluster, "tenant", "job-of-tenant")
    await cluster.worker.sweep()
    assert ("job-of-tenant" in suspended_in(cluster, "tenant")) == (count == 1)


async def test_a_namespace_with_nothing_suspended_always_has_room_for_its_first() -> None:
    cluster = GpuCluster()
    for number in range(owner_restarts.MOST // owner_restarts.MOST_IN_NAMESPACE):
        marked(cluster, f"tenant-{number}", owner_restarts.MOST_IN_NAMESPACE)
    await cluster.restarts.find()
    asking(cluster, "default", "first", "second")
    await cluster.worker.sweep()
    assert suspended_in(cluster, "default") == ["first"]


async def test_so_many_suspended_owners_of_a_namespace_are_read_in_a_second_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GpuCluster()
    marked(cluster, "tenant", 200)
    get, reads = cluster.client.get, itertools.count()

    async def counted(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            next(reads)
        return await get(resource, *args, **more)

    monkeypatch.setattr(cluster.client, "get", counted)
    leads = asyncio.create_task(cluster.restarts.run())
    await asyncio.sleep(60)
    assert next(reads) <= 200 + 60 * owner_restarts.MOST_IN_NAMESPACE
    await asyncio.sleep(owner_restarts.LONGEST_S)
    assert suspended_in(cluster, "tenant") == []
    leads.cancel()


async def test_a_gang_that_is_to_restart_does_so_once_for_a_lost_pod_and_loses_one_failure() -> None:
    it = await world(loss="restart")
    before = it.pods
    gone = it.cluster.all(PODS)[1]["metadata"]["name"]
    it.cluster.remove(PODS, gone, "default")
    for _ in range(2):
        await it.run()
    assert len(it.running) == 3
    assert not it.pods & before
    assert it.suspensions() == 1
    assert it.owner["status"].get("failed") == 1, "the pod that was lost, and no other"
    assert "it lost a pod" in it.record().why


@pytest.mark.slow
async def test_a_gang_whose_owner_was_once_refused_starts_again_although_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = await world(loss="restart")
    original = it.cluster.client.patch

    async def refuse(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            raise ApiError(403, "Forbidden", "a policy of somebody's")
        return await original(resource, *args, **more)

    lost = it.cluster.all(PODS)[1]
    it.cluster.remove(PODS, lost["metadata"]["name"], "default")
    it.cluster.collect()
    it.cluster.rival("theirs", lost["spec"]["nodeName"], range(8))  # so that whoever comes for it has no place
    with monkeypatch.context() as patched:
        patched.setattr(it.cluster.client, "patch", refuse)
        await it.run()
    assert it.suspensions() == 0
    async with working(it.cluster):
        await asyncio.sleep(owner_restarts.AGAIN_S + 5)
    assert it.suspensions() == 1


async def test_one_that_is_to_replace_it_is_not_suspended() -> None:
    it = await world(loss="replace")
    before = it.pods
    it.cluster.remove(PODS, it.cluster.all(PODS)[1]["metadata"]["name"], "default")
    await it.run()
    assert (len(it.running), len(it.pods & before), it.suspensions()) == (3, 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", sampled([*range(1, 9), *range(-8, 0)]))
async def test_a_leader_killed_at_any_write_after_a_loss_ends_with_a_whole_gang(kill_at: int) -> None:
    it = await world(loss="restart")
    before = it.pods
    it.cluster.remove(PODS, it.cluster.all(PODS)[1]["metadata"]["name"], "default")
    it.cluster.client.writes.clear()
    it.cluster.client.kill_at = kill_at
    with pytest.raises((Killed, BaseExceptionGroup)):
        await it.run()
    it.cluster.restart()
    for _ in range(3):
        await it.run()
    assert len(it.running) == 3
    assert not it.pods & before
    assert it.suspensions() == 1
    assert not it.owner["spec"]["suspend"]
