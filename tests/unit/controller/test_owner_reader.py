"""Sizes of gangs, read from the objects that make their pods: what each answer of the server costs, and whom."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dradriver.controller.owners import owner_kinds, owner_reader
from dradriver.controller.steps.deadlines import GATHER_S
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import PODS, Resource
from tests.fakes.apistore import Object
from tests.fakes.control_plane.jobs import JOBS, JOBSETS
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import working
from tests.kept import entries

UID = "6f2d4d2e-0000-0000-0000-000000000000"
GROUPS = {
    v: Resource("scheduling.k8s.io", v, "podgroups", "PodGroup", namespaced=True) for v in ("v1alpha2", "v1beta1")
}


def cluster_of(*nodes: str) -> GpuCluster:
    cluster = GpuCluster()
    for node in nodes:
        cluster.node(node)
    return cluster


def pods(cluster: GpuCluster, kind: str, count: int, *, first: int = 0, name: str = "train", **more: Any) -> list[str]:
    """Create pods of an owner whose author wrote ``gang: auto``, or of a PodGroup, without a word."""
    made = []
    for i in range(first, first + count):
        wishes = {} if kind == "PodGroup" else {"gang": "auto"}
        pod = cluster.admitted(f"{name}-{i}", 8, wishes=wishes, **more)
        if kind == "PodGroup":
            pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        else:
            owner = {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": UID, "controller": True}
            pod["metadata"]["ownerReferences"] = [owner]
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(i)
        cluster.put(PODS, pod)
        made.append(f"{name}-{i}")
    return made


def job(cluster: GpuCluster, parallelism: Any, *, name: str = "train", uid: str = UID, **more: Any) -> None:
    spec = {"parallelism": parallelism, "completions": parallelism, "completionMode": "Indexed"}
    cluster.put(JOBS, {"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec} | more)


def reads_of(cluster: GpuCluster, resource: Resource) -> list[str]:
    """Return the names of the objects of a kind that the controller reads from now on."""
    reads, get = list[str](), cluster.client.get

    async def reading(asked: Resource, name: str, **more: Any) -> Any:
        if asked == resource:
            reads.append(name)
        return await get(asked, name, **more)

    cluster.client.get = reading  # type: ignore[assignment, method-assign]
    return reads


def lifted(cluster: GpuCluster, *names: str) -> list[str]:
    return [name for name in names if not cluster.get_pod(name)["spec"].get("schedulingGates")]


async def test_a_job_says_how_many_its_pods_are() -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 2)
    first = pods(cluster, "Job", 1)
    await cluster.settle()
    assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 1 of 2 pods exist."
    both = first + pods(cluster, "Job", 1, first=1)
    await cluster.settle()
    assert lifted(cluster, *both) == both


async def test_a_job_starts_without_an_index_that_has_failed_for_good() -> None:
    cluster = cluster_of("a", "b", "c")
    job(cluster, 4, status={"failed": 2, "failedIndexes": "3"})
    three = pods(cluster, "Job", 3)
    await cluster.settle()
    assert lifted(cluster, *three) == three


def of_jobset(cluster: GpuCluster, index: int, *, failures: int = 0, attempt: int = 0, failed: bool = False) -> str:
    """Create a pod of a JobSet's only Job, which retries each index by itself."""
    key, name = "jobset.sigs.k8s.io/", f"train-w-0-{index}-{attempt}"
    pod = cluster.admitted(name, 8, wishes={"gang": "auto"})
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train-w-0", "uid": "job", "controller": True}
    ]
    texts = {"batch.kubernetes.io/job-completion-index": str(index), key + "jobset-name": "train",
             key + "jobset-uid": UID, key + "replicatedjob-name": "w", key + "job-index": "0"}  # fmt: skip
    pod["metadata"]["labels"] |= texts
    pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] = str(failures)
    pod["status"]["phase"] = "Failed" if failed else "Pending"
    cluster.put(PODS, pod)
    return name


@pytest.mark.parametrize(("limit", "starts"), [(0, True), (1, True), (2, False), (None, False)])
async def test_a_jobset_starts_without_an_index_that_has_failed_for_good(limit: int | None, starts: bool) -> None:
    cluster = cluster_of("a", "b", "c")
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    spec |= {} if limit is None else {"backoffLimitPerIndex": limit}
    roles = [{"name": "w", "replicas": 1, "template": {"spec": spec}}]
    cluster.put(JOBSETS, {"metadata": {"name": "train", "namespace": "default", "uid": UID},
                          "spec": {"replicatedJobs": roles}})  # fmt: skip
    for tried in range(2):  # what failed first says less, and counts once
        of_jobset(cluster, 3, failures=tried, attempt=tried, failed=True)
    three = [of_jobset(cluster, index) for index in range(3)]
    await cluster.settle()
    assert lifted(cluster, *three) == (three if starts else [])
    if not starts:
        assert cluster.note(three[0], "reason") == "Waiting for more pods of the gang: 3 of 4 pods exist."


@pytest.mark.parametrize(("failures", "starts"), [(0, False), (1, True)])
async def test_a_size_that_the_author_wrote_is_less_an_index_that_has_failed_for_good(
    failures: int, starts: bool
) -> None:
    cluster = cluster_of("a", "b")
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}
    cluster.put(JOBS, {"metadata": {"name": "train", "namespace": "default", "uid": UID}, "spec": spec})
    for index in range(2):
        pod = cluster.admitted(f"train-{index}", 8, wishes={"gang": "auto", "gang-size": "2"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID, "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] = str(failures * index)
        pod["status"]["phase"] = "Failed" if index else "Pending"
        cluster.put(PODS, pod)
    await cluster.settle()
    assert lifted(cluster, "train-0") == (["train-0"] if starts else [])


async def test_a_number_that_changes_while_the_gang_waits_is_read_again() -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 3)
    both = pods(cluster, "Job", 2)
    await cluster.settle()
    assert lifted(cluster, *both) == []
    job(cluster, 2)
    await cluster.settle()
    assert lifted(cluster, *both) == both
    reads = reads_of(cluster, JOBS)
    await cluster.settle()
    assert set(reads) == {"train"}
    cluster.schedule()
    await cluster.settle()
    reads.clear()
    await cluster.settle()
    assert reads == [], "nobody waits for it"


async def test_nothing_is_kept_of_a_gang_that_is_gone() -> None:
    cluster, kept = cluster_of("a"), []
    async with working(cluster, see_s=1.0):
        for name in ("first", "second"):
            job(cluster, 3, name=name)
            for pod in pods(cluster, "Job", 2, name=name):
                await asyncio.sleep(5)
                assert cluster.note(pod, "reason")
                cluster.remove(PODS, pod, "default")
            await asyncio.sleep(60)
            kept.append(entries(cluster.worker))
    assert kept[0] == kept[1]


@pytest.mark.slow
async def test_it_reads_again_by_itself() -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 3)
    both = pods(cluster, "Job", 2)
    async with working(cluster, see_s=0.5):
        await asyncio.sleep(5)
        assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist."
        job(cluster, 2)
        await asyncio.sleep(owner_reader.AGAIN_S + 5)
        assert lifted(cluster, *both) == both


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
async def test_a_pod_group_is_read_in_the_version_that_the_server_has(version: str) -> None:
    cluster = cluster_of("a", "b")
    both = pods(cluster, "PodGroup", 2)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    cluster.put(GROUPS[version], {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
    await cluster.settle()
    assert lifted(cluster, *both) == [], "it says how few there may be, and more may come"
    await asyncio.sleep(GATHER_S)
    await cluster.settle()
    assert lifted(cluster, *both) == both


async def test_pods_of_a_pod_group_that_have_no_gpus_are_counted_and_not_waited_for() -> None:
    def launcher(**more: Any) -> None:
        spec = {"schedulingGroup": {"podGroupName": "train"}, "containers": [{"name": "main"}]} | more
        cluster.put(PODS, {"metadata": {"name": "launcher", "namespace": "default"}, "spec": spec})

    cluster = cluster_of("a", "b")
    both = pods(cluster, "PodGroup", 2)
    spec = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    cluster.put(GROUPS["v1beta1"], {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
    launcher()
    await cluster.settle()
    assert (
        cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist, and 1 need no GPUs."
    )
    cluster.remove(PODS, "launcher", "default")
    await cluster.settle()
    assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 2 of 4 pods exist."
    launcher(nodeName="a")
    cluster.put(GROUPS["v1beta1"], {"metadata": {"name": "train", "namespace": "default"},
                                    "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})  # fmt: skip
    await cluster.settle()
    await asyncio.sleep(GATHER_S)
    await cluster.settle()
    assert lifted(cluster, *both) == both


async def test_the_end_of_a_pod_of_a_pod_group_that_has_no_gpus_is_no_loss() -> None:
    cluster = GpuCluster(promise_s=30.0)
    for node in "ab":
        cluster.node(node)
    job(cluster, 3)
    group = {"metadata": {"name": "train", "namespace": "default"}}
    cluster.put(GROUPS["v1beta1"], group | {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
    spec = {"schedulingGroup": {"podGroupName": "train"}, "containers": [{"name": "main"}], "nodeName": "a"}
    launcher = {"metadata": {"name": "launcher", "namespace": "default"}, "spec": spec}
    cluster.put(PODS, launcher)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID, "controller": True}

    def create(count: int, *, first: int = 0) -> None:
        for name in pods(cluster, "PodGroup", count, first=first):
            cluster.store.edit(PODS, ("default", name), lambda pod: pod["metadata"].update(ownerReferences=[owner]))

    create(2)
    for _ in range(3):
        await cluster.settle()
        await asyncio.sleep(GATHER_S)
        cluster.schedule()
    create(1, first=2)  # there is no room for it
    cluster.put(PODS, launcher | {"status": {"phase": "Succeeded"}})
    for _ in range(2):
        await cluster.settle()
        await asyncio.sleep(60.0)
    cluster.remove(PODS, "launcher", "default")
    for _ in range(2):
        await cluster.settle()
        await asyncio.sleep(60.0)
    assert len(lifted(cluster, "train-0", "train-1", "train-2")) == 2
    assert not any(event.new["spec"].get("suspend") for event in cluster.store.of(JOBS).log if event.new is not None)


@pytest.mark.parametrize("there", [True, False])
async def test_without_a_pod_group_its_pods_wait_and_are_told(there: bool) -> None:
    cluster = cluster_of("a", "b")
    both = pods(cluster, "PodGroup", 2)
    if there:
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        cluster.put(GROUPS["v1beta1"], {"metadata": {"name": "other", "namespace": "default"}, "spec": spec})
    await cluster.settle()
    assert lifted(cluster, *both) == []
    assert cluster.note("train-0", "reason") == (
        "'PodGroup train' does not exist. Create it."
        if there
        else "The cluster has no PodGroups, so 'PodGroup train' does not exist. Enable the feature gate "
        "GenericWorkload of Kubernetes and its API, or remove schedulingGroup and write the size of the gang as "
        "gpu.topology/gang-size."
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ApiError(403, "Forbidden", "no"),
            "has no right to read 'Job train'. Write the size of the gang as gpu.topology/",
        ),
        (ApiError(404, "NotFound", "no"), "'Job train' does not exist. Create it, or write the size"),
        (
            ApiError(500, "", "etcdserver: no leader"),
            "'Job train' cannot be read now. The controller tries again. Or write",
        ),
        (Unreachable("no"), "'Job train' cannot be read now. The controller tries again. Or write"),
    ],
)
async def test_what_the_server_says_costs_only_that_gang_and_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 1)
    job(cluster, 1, name="good")
    get = cluster.client.get

    async def refusing(resource: Resource, name: str, **more: Any) -> Any:
        if (resource, name) == (JOBS, "train"):
            raise error
        return await get(resource, name, **more)

    monkeypatch.setattr(cluster.client, "get", refusing)
    pods(cluster, "Job", 1)
    good = pods(cluster, "Job", 1, name="good")
    await cluster.settle()
    assert told in (cluster.note("train-0", "reason") or "")
    assert lifted(cluster, *good) == good
    monkeypatch.undo()
    await cluster.settle()
    assert lifted(cluster, "train-0") == ["train-0"]


async def test_what_was_read_stands_while_the_server_is_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 2)
    pods(cluster, "Job", 1)
    await cluster.settle()

    async def broken(*_: Any, **__: Any) -> Any:
        raise Unreachable("no")

    monkeypatch.setattr(cluster.client, "get", broken)
    await cluster.settle()
    assert cluster.note("train-0", "reason") == "Waiting for more pods of the gang: 1 of 2 pods exist."


@pytest.mark.parametrize(
    "odd",
    [
        {"spec": None},
        {"spec": "x"},
        {"spec": {"parallelism": "2"}},
        {"spec": {"parallelism": 1 << 90}},
        {"spec": {"parallelism": 2, "x": "y" * (1 << 20)}},
        {"spec": {"parallelism": 1.5}},
        {"metadata": {"name": "train", "namespace": "default", "uid": "another"}},
    ],
    ids=lambda odd: str(odd)[:60],
)
async def test_one_odd_object_costs_only_its_gang(odd: Object) -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 1, name="good")
    pods(cluster, "Job", 1)
    good = pods(cluster, "Job", 1, name="good")
    job(cluster, 1, **odd)
    await cluster.settle()
    assert lifted(cluster, *good) == good
    told = cluster.note("train-0", "reason")
    assert told
    assert told.isprintable()
    assert len(told) < 400


METADATA = f'"metadata": {{"name": "train", "uid": "{UID}"}}'


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (f'{{{METADATA}, "spec": {{"parallelism": 1, "x": {"[" * 9000}{"]" * 9000}}}}}', 1),
        (f'{{{METADATA}, "spec": {{"parallelism": 1, "x": {"[" * 30_000}{"]" * 30_000}}}}}', None),
        (f'{{{METADATA}, "spec": {{"parallelism": 1, "x": "\\ud800"}}}}', 1),
        (f'{{{METADATA}, "spec": {{"parallelism": 1, "x": {"9" * 5000}}}}}', None),
        (f'{{{METADATA}, "spec": {{"parallelism": 1, "parallelism": 1, "completions": null}}}}', 1),
        ("[]", None),
        ("", None),
    ],
    ids=["deep", "deeper than JSON", "half a letter", "long", "twice", "a list", "nothing"],
)
async def test_any_json_of_an_object_costs_only_its_gang(
    monkeypatch: pytest.MonkeyPatch, answer: str, size: int | None
) -> None:
    cluster = cluster_of("a", "b")
    job(cluster, 1)
    job(cluster, 1, name="good")
    get = cluster.client.get

    async def odd(resource: Resource, name: str, **more: Any) -> Any:
        if (resource, name) == (JOBS, "train"):
            return msgspec.Raw(answer.encode())
        return await get(resource, name, **more)

    monkeypatch.setattr(cluster.client, "get", odd)
    pods(cluster, "Job", 1)
    good = pods(cluster, "Job", 1, name="good")
    await cluster.settle()
    assert lifted(cluster, *good) == good
    assert bool(lifted(cluster, "train-0")) is (size is not None)
    told = cluster.note("train-0", "reason")
    assert told is None if size is not None else told and told.isprintable() and len(told) < 400


async def test_an_owner_with_the_name_of_a_path_is_never_asked_for() -> None:
    cluster = cluster_of("a")
    job(cluster, 1)
    for name in ("../../nodes", "a/b", ".."):
        pod = cluster.admitted(f"p{len(name)}", 8, wishes={"gang": "auto"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": UID, "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        cluster.put(PODS, pod)
    await cluster.settle()
    assert all("no object's name" in (cluster.note(f"p{n}", "reason") or "") for n in (11, 3, 2))


async def test_a_leader_without_gpus_is_not_waited_for() -> None:
    cluster = cluster_of("a", "b")
    key = "leaderworkerset.sigs.k8s.io/"
    lws = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", namespaced=True)
    for i in (1, 2):
        pod = cluster.admitted(f"serve-0-{i}", 8, wishes={"gang": "auto"})
        pod["metadata"]["labels"] |= {key + "name": "serve", key + "group-index": "0", key + "worker-index": str(i)}
        pod["metadata"]["annotations"][key + "size"] = "3"
        cluster.put(PODS, pod)
    await cluster.settle()
    assert cluster.note("serve-0-1", "reason") == "Waiting for more pods of the gang: 2 of 3 pods exist.", (
        "what the pods say, for the rest"
    )
    leader = {"spec": {"containers": [{"name": "main"}]}}
    worker = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    spec = {"leaderWorkerTemplate": {"size": 3, "leaderTemplate": leader, "workerTemplate": worker}}
    cluster.put(lws, {"metadata": {"name": "serve", "namespace": "default"}, "spec": spec})
    await asyncio.sleep(owner_kinds.UNKNOWN_S)  # it was installed: that is asked again now and then
    await cluster.settle()
    assert len(lifted(cluster, "serve-0-1", "serve-0-2")) == 2


async def test_a_kind_that_the_server_lacks_is_asked_for_again_after_a_while() -> None:
    cluster = cluster_of("a")
    kinds = owner_kinds.OwnerKinds(cluster.client)  # type: ignore[arg-type]
    assert await kinds.resource("Job") is None
    job(cluster, 1)
    assert await kinds.resource("Job") is None, "that was asked just now"
    assert await kinds.resource("PodGroup") is None
    cluster.put(GROUPS["v1alpha2"], {"metadata": {"name": "train", "namespace": "default"}})
    await asyncio.sleep(owner_kinds.UNKNOWN_S)
    assert await kinds.resource("Job") is not None
    found = await kinds.resource("PodGroup")
    assert found is not None
    assert found.version == "v1alpha2"


@pytest.mark.parametrize("said", ["scheduling.k8s.io/v1beta7", "scheduling.k8s.io/../v1", "x/v1", "", "v1"])
async def test_a_version_that_a_pod_names_is_tried_if_it_is_one(said: str) -> None:
    cluster = GpuCluster()
    newer = Resource("scheduling.k8s.io", "v1beta7", "podgroups", "PodGroup", namespaced=True)
    cluster.put(newer, {"metadata": {"name": "train", "namespace": "default"}})
    found = await owner_kinds.OwnerKinds(cluster.client).resource("PodGroup", said)  # type: ignore[arg-type]
    assert found == (newer if said.endswith("v1beta7") else None)
