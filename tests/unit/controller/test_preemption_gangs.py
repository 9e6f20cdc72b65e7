"""Preemption of gangs, as wholes, and for gangs: all claims stand first, with seats and without."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.claims.pins import Key
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.cluster.pods.kept_places import KEPT_S
from dradriver.controller.loop.preemption import MOST_ASKED
from dradriver.controller.loop.preemption_turns import LONGEST_PAUSE_S
from dradriver.controller.loop.worker import RECHECK_S
from dradriver.kube.client import ApiError
from dradriver.kube.resources import PODS, Resource
from dradriver.queue.caps import Caps
from dradriver.queue.limits import Allowance
from dradriver.queue.pending import PendingWorkload
from tests.effort import sampled
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS, Jobs
from tests.fakes.gpucluster import Killed, claim_of
from tests.fakes.preempting import KUBELET, ON, Contested, contested
from tests.fakes.troubles import working


def gang(cluster: Contested, name: str, size: int, gpus: int, priority: int) -> list[str]:
    pods = [f"{name}-{index}" for index in range(size)]
    for pod in pods:
        cluster.pod(pod, gpus, priority=priority, wishes={"gang": name, "gang-size": str(size)})
    return pods


async def run(cluster: Contested, pods: list[str]) -> None:
    for _ in range(3):
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    assert all(cluster.get_pod(pod)["spec"].get("nodeName") for pod in pods)


async def test_a_gang_ends_as_a_whole_also_on_other_nodes() -> None:
    cluster = await contested(nodes="ab")
    pods = gang(cluster, "train", 2, 8, 0)
    await run(cluster, pods)
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == pods
    node, _ = cluster.gpus("me")
    there = [pod for pod in pods if cluster.get_pod(pod)["spec"]["nodeName"] == node]
    assert cluster.evicted()[-1:] == there  # whoever has what is wanted is told last


@pytest.mark.parametrize("seats", [True, False])
async def test_a_gang_gets_its_places_together_once_all_have_ended(seats: bool) -> None:
    cluster = await contested(nodes="abc")
    if seats:
        cluster.barrier()
    await run(cluster, [])
    for node in "abc":
        cluster.pod(f"low-{node}", 8, priority=0, nodeSelector={"kubernetes.io/hostname": node})
    await run(cluster, [f"low-{node}" for node in "abc"])
    me = gang(cluster, "me", 2, 8, 10)
    before = len(cluster.client.writes)
    await cluster.settle()
    writes = cluster.client.writes[before:]
    evictions = [at for at, (verb, _) in enumerate(writes) if verb == "evict"]
    assert len(evictions) == len(cluster.ending()) == 2
    assert all(writes.index(("create", claim_of(pod))) < evictions[0] for pod in me)
    assert all(writes.index(("patch", pod)) < evictions[0] for pod in me)
    first, second = cluster.ending()
    cluster.gone(first)
    cluster.deliver()
    cluster.schedule()
    await cluster.settle()
    if seats:
        assert not any(cluster.get_pod(pod)["spec"].get("nodeName") for pod in me)
    cluster.gone(second)
    cluster.deliver()
    await run(cluster, me)
    assert len(cluster.evicted()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("write", sampled(range(1, 9)))
async def test_a_leader_that_dies_leaves_a_gang_that_the_next_goes_on_with(write: int) -> None:
    cluster = await contested(nodes="ab")
    for node in "ab":
        cluster.pod(f"low-{node}", 8, priority=0, nodeSelector={"kubernetes.io/hostname": node})
    await run(cluster, ["low-a", "low-b"])
    me = gang(cluster, "me", 2, 8, 10)
    cluster.client.kill_at = -(len(cluster.client.writes) + write)
    try:
        await cluster.settle()
    except Killed:
        ended = cluster.ending()
        assert not ended or all(cluster.claim(pod) is not None for pod in me)
        cluster.restart()
        await cluster.settle()
        assert not set(ended) & set(cluster.evicted())
    assert cluster.ending() == ["low-a", "low-b"]
    cluster.gone("low-a", "low-b")
    cluster.deliver()
    await run(cluster, me)


class Train:
    """A Job of two pods that are a gang, and run."""

    def __init__(self, cluster: Contested) -> None:
        self.cluster = cluster
        self.jobs = Jobs(cluster.store, self._pod, delete=cluster.end)
        spec: Object = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0}
        cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})

    def _pod(self, _: Object, name: str, __: int) -> Object:
        return self.cluster.admitted(name, 8, priority=0, wishes={"gang": "auto"})

    @property
    def job(self) -> Object:
        found = self.cluster.find(JOBS, "train", "default")
        assert found is not None
        return found

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.cluster.all(PODS) if pod["metadata"]["ownerReferences"])


async def trained(*suspendable: str) -> tuple[Contested, Train]:
    cluster = Contested(suspendable=suspendable)
    for node in "ab":
        cluster.node(node)
    train = Train(cluster)
    for _ in range(4):
        train.jobs.act()
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    assert len(cluster.all(PODS)) == 2
    assert all(pod["spec"].get("nodeName") for pod in cluster.all(PODS))
    return cluster, train


async def test_a_jobs_gang_is_suspended_and_resumed_and_no_pod_of_it_fails() -> None:
    cluster, train = await trained("Job")
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert train.job["spec"]["suspend"] is True
    assert "for default/me (priority 10)" in json.loads(train.job["metadata"]["annotations"][names.RESTART])["why"]
    assert cluster.evicted() == []
    train.jobs.act()
    await cluster.settle()
    assert len(cluster.ending()) == 2
    cluster.gone(*cluster.ending())
    await cluster.settle()
    assert train.job["spec"]["suspend"] is False
    train.jobs.act()
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.get_pod("me")["spec"].get("nodeName")
    assert train.job.get("status", {}).get("failed", 0) == 0
    assert cluster.evicted() == []


async def test_a_leader_that_dies_after_the_suspension_leaves_a_job_that_the_next_resumes() -> None:
    cluster, train = await trained("Job")
    cluster.pod("me", 8, priority=10)
    cluster.client.kill_at = -(len(cluster.client.writes) + 4)
    with pytest.raises(BaseExceptionGroup):  # of all whose owners it was about to write
        await cluster.settle()
    assert train.job["spec"]["suspend"] is True
    cluster.restart()
    await cluster.settle()
    train.jobs.act()
    await cluster.settle()
    cluster.gone(*cluster.ending())
    await cluster.settle()
    assert train.job["spec"]["suspend"] is False
    assert cluster.claim("me") is not None
    assert [verb for verb, name in cluster.client.writes if name == "train"] == ["patch"]


@pytest.mark.parametrize(("right", "jobset"), [((), False), (("JobSet",), False), (("Job",), True)])
async def test_without_the_right_a_jobs_gang_never_ends(right: tuple[str, ...], jobset: bool) -> None:
    cluster, train = await trained(*right)
    label = {"jobset.sigs.k8s.io/jobset-name": "s"}
    for name in train.names() if jobset else ():
        cluster.store.edit(PODS, ("default", name), lambda pod: pod["metadata"]["labels"].update(label))
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.claim("me") is None
    assert not train.job["spec"].get("suspend")
    assert cluster.ending() == []


@pytest.mark.slow
async def test_an_owner_that_refuses_has_the_promise_given_back_and_no_pod_ended() -> None:
    cluster, train = await trained("Job")
    cluster.store.edit(JOBS, ("default", "train"), lambda job: job["metadata"].update(labels={"kueue.x-k8s.io/q": "q"}))
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(3)
        assert "preemption of default/Job/train's 2 pods (priority 0)" in (cluster.note("me", "reason") or "")
        await asyncio.sleep(50)
    assert cluster.claim("me") is None
    assert "Kueue" in (cluster.note("me", "reason") or "")
    assert not train.job["spec"].get("suspend")
    assert cluster.ending() == []


async def test_a_pod_that_comes_to_a_gang_which_need_not_end_after_all_has_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, train = await trained("Job")
    cluster.store.edit(JOBS, ("default", "train"), lambda job: job["spec"].update(backoffLimit=6))
    lost = cluster.all(PODS)[0]["metadata"]["name"]
    cluster.end(("default", lost))
    cluster.gone(lost)
    original = cluster.client.get

    async def get(resource: Resource, *args: Any, **more: Any) -> Any:
        if resource == JOBS:
            raise ApiError(500, "InternalError", "no answer")
        return await original(resource, *args, **more)

    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        monkeypatch.setattr(cluster.client, "get", get)
        await asyncio.sleep(1.5)
        assert cluster.claim("me") is not None
        train.jobs.act()
        (late,) = (name for pod in cluster.all(PODS) if (name := pod["metadata"]["name"]).startswith("train-0-"))
        await asyncio.sleep(1.5)
        assert cluster.claim(late) is None  # all of its gang have to end
        cluster.remove(PODS, "me", "default")
        cluster.collect()
        await asyncio.sleep(5)
    assert cluster.claim(late) is not None  # its place was kept for it


@pytest.mark.parametrize(("near", "ends"), [("leaf", []), ("preferred leaf", ["low"])])
async def test_no_pod_ends_where_the_others_of_its_gang_may_not_have_it(near: str, ends: list[str]) -> None:
    leaf = "network.topology.nvidia.com/leaf"
    cluster = await contested(nodes="")
    for node, name in (("a", "one"), ("b", "one"), ("c", "two")):
        cluster.node(node, labels={leaf: name})
    wishes = {"gang": "train", "gang-size": "2", "near": near}
    pods = ["train-0", "train-1"]
    for pod in pods:
        cluster.pod(pod, 8, priority=10, wishes=wishes)
    await run(cluster, pods)
    node, _ = cluster.gpus("train-1")
    if node == "c":
        pods.reverse()
    await cluster.run(("low", 8, 0))
    lost = next(pod for pod in pods if cluster.gpus(pod)[0] != "c")
    cluster.node(cluster.gpus(lost)[0], None, labels={leaf: "one"}, unschedulable=True)
    cluster.remove(PODS, lost, "default")
    cluster.collect()
    await cluster.settle()
    cluster.pod(lost, 8, priority=10, wishes=wishes)
    await cluster.settle()
    assert cluster.ending() == ends


async def test_no_more_end_than_its_tenants_cap_leaves_room_for() -> None:
    cluster = Contested()
    for node in "abcd":
        cluster.node(node)
    await cluster.run(*[(f"low{at}", 8, 0) for at in range(4)])
    tenant = Tenant(namespaces=("team",), cap=(Cap(gpus=16),))
    cluster.worker.follow(msgspec.structs.replace(ON, tenants={"v": tenant}))
    for at in range(4):
        cluster.pod(f"g-{at}", 8, namespace="team", priority=10, wishes={"gang": "g", "gang-size": "1-4"})
    await cluster.settle()
    assert len(cluster.ending()) == 2
    assert sum(cluster.features.caps.use("v").values()) == 16


async def test_of_thousands_whom_a_cap_parks_few_are_asked_about_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Key] = []
    allow = Caps.allow

    def counted(caps: Caps, workload: PendingWorkload, allowance: Allowance) -> Allowance:
        asked.append(workload.key)
        return allow(caps, workload, allowance)

    monkeypatch.setattr(Caps, "allow", counted)
    cluster = Contested()
    cluster.node("a")
    await cluster.run(("low", 8, 0))
    tenant = Tenant(namespaces=("mine",), cap=(Cap(gpus=4),))
    policies = msgspec.structs.replace(ON, tenants={"mine": tenant})
    cluster.worker.follow(policies)
    for at in range(100):
        cluster.pod(f"p-{at}", 8, namespace="mine", priority=10)
    await cluster.settle()
    asked.clear()
    async with working(cluster):
        for _ in range(3):
            cluster.worker.follow(policies)  # from now on all may be tried again
            await asyncio.sleep(RECHECK_S)
    assert 0 < len(asked) <= 3 * MOST_ASKED
    assert cluster.ending() == []


async def test_a_gang_of_which_some_are_about_to_be_bound_ends_for_no_other_yet() -> None:
    cluster = await contested(nodes="a")
    pods = gang(cluster, "train", 2, 4, 0)
    await run(cluster, pods)

    def unbound(pod: Object) -> None:
        del pod["spec"]["nodeName"]
        pod["status"]["phase"] = "Pending"

    cluster.store.edit(PODS, ("default", pods[1]), unbound)
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert cluster.ending() == []
    cluster.store.edit(PODS, ("default", pods[1]), lambda pod: pod["spec"].update(nodeName="a"))
    await asyncio.sleep(LONGEST_PAUSE_S)
    await cluster.settle()
    assert cluster.ending() == pods


async def lost(**wishes: str) -> Contested:
    """Return a cluster with a pod of 4 GPUs that runs next to a gang's pod, which ends while its gang runs on."""
    cluster = await contested(nodes="ab")
    pods = ["train-0", "train-1"]
    for pod, node in zip(pods, "ab", strict=True):
        on_node = {"kubernetes.io/hostname": node}
        cluster.pod(pod, 4, priority=20, wishes={"gang": "train", "gang-size": "2", **wishes}, nodeSelector=on_node)
    await run(cluster, pods)
    await cluster.run(("low", 4, 0), nodeSelector={"kubernetes.io/hostname": "a"})
    await cluster.run(("other", 4, 20))
    assert cluster.gpus("low")[0] == "a"
    gone_at = datetime.datetime.fromtimestamp(cluster.time_s() + 300, datetime.UTC)
    end = {"finalizers": [KUBELET], "deletionTimestamp": f"{gone_at:%Y-%m-%dT%H:%M:%SZ}"}
    cluster.store.edit(PODS, ("default", "train-0"), lambda pod: pod["metadata"].update(end))
    await cluster.settle()
    return cluster


async def test_no_pod_ends_for_gpus_that_are_kept_for_a_pod_of_a_gang() -> None:
    cluster = await lost()
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert cluster.ending() == ["train-0"]
    assert cluster.claim("me") is None
    cluster.gone("train-0")
    cluster.pod("train-0", 4, priority=20, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.gpus("train-0")[0] == "a"
    assert cluster.ending() == []


async def test_gpus_that_are_kept_for_a_pod_of_a_gang_delay_no_preemption() -> None:
    cluster = await lost()
    cluster.pod("me", 4, priority=10)
    await cluster.settle()
    assert sorted(cluster.ending()) == ["low", "train-0"]
    assert cluster.gpus("me") == cluster.gpus("low")


@pytest.mark.slow
async def test_the_pod_that_replaces_one_that_ends_waits_for_its_gpus() -> None:
    cluster = await lost()
    cluster.pod("train-0b", 4, priority=20, wishes={"gang": "train", "gang-size": "2"})
    async with working(cluster):
        await asyncio.sleep(KEPT_S / 2)
    assert cluster.ending() == ["train-0"]
    cluster.gone("train-0")
    await cluster.settle()
    assert cluster.gpus("train-0b")[0] == "a"


async def test_gpus_of_a_gang_that_starts_again_are_counted_on() -> None:
    cluster = await lost(**{"on-member-loss": "restart"})
    cluster.pod("me", 8, priority=10)
    await cluster.settle()
    assert sorted(cluster.ending()) == ["low", "train-0"]
    assert cluster.gpus("me")[0] == "a"


@pytest.mark.slow
async def test_gpus_are_counted_on_again_once_they_are_kept_no_more() -> None:
    cluster = await lost()
    cluster.pod("me", 8, priority=10)
    async with working(cluster):
        await asyncio.sleep(KEPT_S / 2)
        assert cluster.ending() == ["train-0"]
        await asyncio.sleep(KEPT_S)
        assert sorted(cluster.ending()) == ["low", "train-0"]
