"""Which gang a pod is of: pods as running programs made them, and as others write them by their source."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_annotations, gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Facts, Member
from dradriver.api.vocabulary.annotation_words import Values
from tests import manifests
from tests.captured import captured
from tests.fakes import owners
from tests.fakes.admission import admit
from tests.fakes.owners import STORIES, Story
from tests.paths import SHARED_DATA

Object = dict[str, Any]
ASKED = Gang(name="auto")
VERSIONS = {name.partition("-")[2]: found for name, found in captured().items() if name.startswith("kubernetes-")}


def facts(pod: Object) -> Facts:
    return gang_of_pod.facts(msgspec.convert(pod, Pod))


def member(pod: Object, gang: Gang | None = ASKED) -> Member:
    found = gang_of_pod.find(facts(pod), gang)
    assert isinstance(found, Member), found
    return found


def alone(pod: Object, gang: Gang | None = None) -> Alone:
    found = gang_of_pod.find(facts(pod), gang)
    assert isinstance(found, Alone), found
    return found


def made(version: str, name: str) -> tuple[list[Object], Object]:
    pods = [p for p in VERSIONS[version]["pods"] if p["metadata"]["name"].startswith(f"{name}-")]
    return pods, next(o for o in VERSIONS[version]["owners"] if o["metadata"]["name"] == name)


def test_pods_of_every_tested_kubernetes_were_captured() -> None:
    assert {version.rpartition(".")[0] for version in VERSIONS} == {"1.34", "1.35", "1.36", "1.37"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_indexed_job_is_a_gang_if_asked(version: str) -> None:
    pods, job = made(version, "indexed")
    found = [member(pod) for pod in pods]
    assert len({one.identity for one in found}) == 1
    assert [one.rank for one in found] == [(0,), (1,)]
    assert found[0].size is None
    read = found[0].read
    assert read is not None
    assert (read.kind, read.name, read.uid) == ("Job", "indexed", job["metadata"]["uid"])
    assert gang_size_of_owner.size_from(read, job) == (2, 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "size"), [("waves", 2), ("plain", 2), ("one", 1)])
def test_any_other_job_has_as_many_pods_as_run_at_once(version: str, name: str, size: int) -> None:
    pods, job = made(version, name)
    found = [member(pod, Gang(max_nodes=2)) for pod in pods]
    assert len({one.identity for one in found}) == 1
    assert name == "waves" or found[0].rank is None, "nothing says in which order they are"
    assert found[0].read is not None
    assert gang_size_of_owner.size_from(found[0].read, job) == (size, size)


@pytest.mark.parametrize("version", VERSIONS)
def test_unasked_no_job_and_no_set_is_a_gang(version: str) -> None:
    """Jobs of an array must never wait for each other."""
    unasked = [pod for pod in VERSIONS[version]["pods"] if "schedulingGroup" not in pod["spec"]]
    assert len(unasked) > 5
    assert {alone(pod) for pod in unasked} == {Alone()}


@pytest.mark.parametrize("name", STORIES)
def test_unasked_no_maker_of_pods_makes_a_gang(name: str) -> None:
    story = STORIES[name]()
    assert {alone(pod) for pod in (*story.pods, *story.others)} == {Alone()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stateful_set_is_one_unless_its_pods_are_made_one_by_one(version: str) -> None:
    pods, owner = made(version, "parallel")
    found = [member(pod) for pod in pods]
    assert [one.rank for one in found] == [(0,), (1,)]
    assert found[0].read is not None
    assert gang_size_of_owner.size_from(found[0].read, owner) == (2, 2)
    pods, owner = made(version, "ordered")
    read = member(pods[0]).read
    assert read is not None
    refused = gang_size_of_owner.size_from(read, owner)
    assert isinstance(refused, Alone)
    assert refused.never
    assert "Write Parallel" in refused.why


@pytest.mark.parametrize("version", [v for v in VERSIONS if v.startswith(("1.36", "1.37"))])
def test_a_pod_of_a_pod_group_is_one_of_its_gang(version: str) -> None:
    (pod, *_), group = made(version, "train")
    found = member(pod, None)
    assert found == member(pod)
    assert found.made_by == "PodGroup"
    assert found.read is not None
    assert (found.read.kind, found.read.name) == ("PodGroup", "train")
    assert gang_size_of_owner.size_from(found.read, group) == (2, 9999), "minCount is the least"
    basic = group | {"spec": {"schedulingPolicy": {"basic": {}}}}
    assert "basic" in gang_size_of_owner.size_from(found.read, basic).why  # type: ignore[union-attr]


@pytest.mark.parametrize("name", STORIES)
def test_what_an_owner_makes_together_is_one_gang(name: str) -> None:
    story = STORIES[name]()
    found = [member(pod) for pod in story.pods]
    assert len({one.identity for one in found}) == 1
    kind = name.partition(" whose")[0].partition(" that")[0]
    assert found[0].made_by == (kind if kind != "TrainJob" else "JobSet")  # nothing on its pods tells of it
    ranks = [one.rank for one in found]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or ())
    assert len(set(ranks)) == len(ranks)
    for other in story.others:
        one = gang_of_pod.find(facts(other))
        assert isinstance(one, Alone) or one.identity != found[0].identity
    if story.owner is None:
        assert found[0].size == story.size
        assert found[0].read is None
    else:
        assert found[0].read is not None
        assert found[0].read.name == story.owner["metadata"]["name"]
        assert gang_size_of_owner.size_from(found[0].read, story.owner) == story.size


def test_what_the_pod_says_of_the_size_is_told_next_to_a_better_source() -> None:
    found = member(STORIES["LeaderWorkerSet whose leader has no GPUs"]().pods[0])
    assert found.size == (3, 3)
    assert found.read is not None
    assert all(member(STORIES[name]().pods[0]).size is None for name in ("JobSet", "TrainJob", "PyTorchJob", "MPIJob"))


@pytest.mark.parametrize("name", ["NUM_PROCESSES", "PET_NNODES", "JAX_NUM_PROCESSES", "PADDLE_NNODES"])
def test_variables_of_programs_count_no_pods(name: str) -> None:
    """``NUM_PROCESSES`` is what accelerate and others call the processes of one pod, too."""
    pod = owners.kubeflow("pytorchjob", (3, 3)).pods[0]
    said = member(pod)
    pod["spec"]["containers"][0].setdefault("env", []).append({"name": name, "value": "64"})
    assert member(pod) == said


def test_who_launches_is_placed_by_itself_against_its_authors_request() -> None:
    """Words reach a launcher with GPUs from above, and it may be what its workers wait for."""
    (launcher,) = owners.mpi_job().others
    for gang in (ASKED, Gang(name="train", pods=3), Gang(pods=3)):
        found = alone(launcher, gang)
        assert "placed by itself" in found.why
        assert not gang_of_pod.must_wait(gang, found)
        assert gang_of_pod.must_wait(gang, alone(owners.pod("p"), ASKED))


def test_a_launcher_that_works_is_of_the_gang_of_its_workers_and_first() -> None:
    """Its owner is a Job: nothing on it tells the MPIJob's uid."""
    story = owners.mpi_job_with_working_launcher()
    launcher, *workers = map(member, story.pods)
    assert {worker.identity for worker in workers} == {launcher.identity}
    assert [each.rank for each in (launcher, *workers)] == [(0,), (1,), (2,)]
    assert launcher.read is not None
    assert gang_size_of_owner.size_from(launcher.read, made_without_gpus(story)) == (2, 2)
    assert launcher.identity != member(owners.mpi_job().pods[0]).identity, "as it was before, by the uid of the MPIJob"


def made_without_gpus(story: Story) -> Any:
    """Return the MPIJob of a story with a launcher that has no GPUs."""
    assert story.owner is not None
    replicas = story.owner["spec"]["mpiReplicaSpecs"]
    spec = story.owner["spec"] | {"mpiReplicaSpecs": replicas | {"Launcher": {"template": owners.template(0)}}}
    return story.owner | {"spec": spec}


def test_what_prepares_a_train_job_is_of_no_gang_of_its_trainers() -> None:
    story = owners.train_job()
    (initializer,) = story.others
    assert member(initializer).identity not in {member(pod).identity for pod in story.pods}


def identities(*stories: Story) -> list[str]:
    return [member(story.pods[0]).identity for story in stories]


def test_runs_revisions_groups_and_namespaces_are_gangs_of_their_own() -> None:
    lws = owners.leader_worker_set
    assert len(set(identities(owners.jobset(), owners.jobset(attempt=1)))) == 2
    assert len(set(identities(lws(), lws(group=1), lws(revision="77aa")))) == 3
    for gang in (ASKED, Gang(name="train", pods=2)):
        one, other = owners.kueue_group().pods
        assert member(one, gang).identity == member(other, gang).identity
        other["metadata"]["namespace"] = "elsewhere"
        assert member(one, gang).identity != member(other, gang).identity


def test_an_identity_is_stable_and_fits_a_label() -> None:
    found = [member(build().pods[0]).identity for build in STORIES.values()]
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one) for one in found)
    assert member(owners.jobset().pods[0]).identity == "train-a281ecdf821d3e8e64762b579abe8593"


def test_a_written_name_and_the_namespace_are_all_of_a_gangs_identity() -> None:
    named = Gang(name="all", pods=(3, 5))
    every = [pod for build in STORIES.values() for pod in build().pods] + owners.jobset(attempt=1).pods
    for pod in every:
        pod["metadata"]["namespace"] = "team"
    found = [member(pod, named) for pod in (*every, owners.pod("p"))]
    assert {(one.identity, one.made_by, one.size) for one in found} == {(found[0].identity, "gang", (3, 5))}
    assert gang_of_pod.unknown_size(member(every[0], Gang(name="all"))).startswith(names.GANG_SIZE)


def test_a_gang_of_several_objects_pods_has_each_ones_together_in_its_order() -> None:
    """All of them begin to count at 0."""
    story = owners.jobset()
    group = {"schedulingGroup": {"podGroupName": "train"}}
    for gang in (Gang(name="all", pods=5), None):
        found = [
            member(pod | {"spec": pod["spec"] | ({} if gang else group)}, gang) for pod in (*story.pods, *story.others)
        ]
        assert len({one.identity for one in found}) == 1
        ranks = [one.rank for one in found]
        assert None not in ranks
        assert len(set(ranks)) == len(ranks)
        by_rank = [ranks.index(rank) for rank in sorted(ranks, key=lambda rank: rank or ())]
        assert by_rank in ([0, 1, 2, 3, 4], [4, 0, 1, 2, 3])
    assert member(owners.pod("p"), Gang(name="all", pods=5)).rank is None


def test_a_rank_that_nothing_says_does_not_exist() -> None:
    pods = owners.kubeflow("tfjob", (3, 3)).pods
    for role, rank in (("ps", (3, 0)), ("evaluator", (4, 0)), ("Something", None)):
        pods[0]["metadata"]["labels"] |= {"training.kubeflow.org/replica-type": role}
        pods[0]["metadata"]["labels"] |= {"training.kubeflow.org/replica-index": "0"}
        assert member(pods[0]).rank == rank
    worker = owners.jobset().pods[3]
    for where in ("labels", "annotations"):
        del worker["metadata"][where]["batch.kubernetes.io/job-completion-index"]
    assert member(worker).rank == (1,), "which Job, and not which of its pods"


def test_a_stateful_sets_pod_stays_in_its_gang_when_kueue_writes_labels() -> None:
    """Kueue's statefulset_pod_reconciler.go writes them after the pod was made."""
    pods, _ = made(next(iter(VERSIONS)), "parallel")
    before = member(pods[0])
    pods[0]["metadata"]["labels"] |= {"kueue.x-k8s.io/pod-group-name": "statefulset-parallel-1a2b"}
    pods[0]["metadata"].setdefault("annotations", {})["kueue.x-k8s.io/pod-group-total-count"] = "2"
    assert member(pods[0]) == before
    assert before.made_by == "StatefulSet"


def test_a_size_that_the_author_wrote_stands_above_all_but_that_they_are_no_gang() -> None:
    asked, no = Gang(name="auto", pods=7), Alone(why="OrderedReady", never=True)
    refused = WordError("may not be read")
    for build in STORIES.values():
        story = build()
        found = member(story.pods[0], asked)
        assert found.size == (7, 7)
        assert (found.read is None) == (story.owner is None)
        if story.owner is None:
            assert gang_of_pod.size(found, asked, None) == (7, 7)
            continue
        assert gang_of_pod.size(found, asked, None) == "", "it is being read"
        assert gang_of_pod.size(found, asked, (3, 3)) == (7, 7)
        assert gang_of_pod.size(found, asked, refused) == (7, 7)
        assert gang_of_pod.size(found, asked, Alone(why="basic")) == (7, 7)
        assert gang_of_pod.size(found, asked, no) == no


def test_of_an_unwritten_size_the_object_knows_more_than_the_pod() -> None:
    pod = STORIES["LeaderWorkerSet"]().pods[0]
    found, refused = member(pod), WordError("may not be read")
    assert gang_of_pod.size(found, ASKED, (2, 2)) == (2, 2)
    assert gang_of_pod.size(found, ASKED, refused) == (3, 3)
    assert gang_of_pod.size(found, ASKED, Alone(why="x")) == Alone(why="x")
    other = member(owners.jobset().pods[0])
    assert gang_of_pod.size(other, ASKED, refused) == "may not be read"


def test_of_pods_that_a_name_joins_no_object_tells_the_size_but_that_they_are_no_gang() -> None:
    pod, named = owners.jobset().pods[0], Gang(name="all")
    found, no = member(pod, named), Alone(why="OrderedReady", never=True)
    assert found.read == member(pod).read
    assert str(gang_of_pod.size(found, named, (4, 4))).startswith(f"{names.GANG_SIZE} is missing")
    assert gang_of_pod.size(found, named, no) == no
    five = Gang(name="all", pods=5)
    assert gang_of_pod.size(member(pod, five), five, (4, 4)) == (5, 5)


def test_an_owners_name_is_told_bounded_and_in_quotes() -> None:
    forged = owners.pod("p", owners=owners.owned("batch/v1", "Job", "train\nnode n7: fine " + "x" * 200))
    told = gang_of_pod.unknown_size(member(forged))
    assert told.isprintable()
    assert len(told) < 300
    assert "'JobSet train'" in gang_of_pod.unknown_size(member(owners.jobset().pods[0]))


def test_who_asks_for_a_gang_and_is_in_none_is_told_what_to_write() -> None:
    bare = owners.pod("p")
    assert alone(bare).why == ""
    assert f"Write the same name as {names.GANG}" in alone(bare, ASKED).why
    assert gang_of_pod.must_wait(ASKED)
    assert gang_of_pod.must_wait(Gang(pods=4)), "half of them would be of no use"
    assert not gang_of_pod.must_wait(Gang(max_nodes=2))
    assert not gang_of_pod.must_wait(None)


LIMITS = Gang(max_nodes=2, min_gpus_per_node=4)


@pytest.mark.parametrize(
    ("labels", "made_by", "scheduler"),
    [
        ({}, None, ""),
        ({"app": "a"}, ("apps/v1", "ReplicaSet"), ""),
        ({"ray.io/cluster": "r"}, ("ray.io/v1", "RayCluster"), ""),
        ({"spark-role": "driver"}, None, ""),
        ({"spark-role": "executor"}, ("v1", "Pod"), ""),
        ({}, ("batch.volcano.sh/v1alpha1", "Job"), "volcano"),
        ({}, ("argoproj.io/v1alpha1", "Workflow"), ""),
    ],
)
def test_limits_alone_hold_no_pod_whose_maker_makes_no_gangs(
    labels: dict[str, str], made_by: tuple[str, str] | None, scheduler: str
) -> None:
    pod = owners.pod("p", labels, owners=owners.owned(*made_by, "o") if made_by else None)
    pod["spec"]["schedulerName"] = scheduler
    found = alone(pod, LIMITS)
    assert not gang_of_pod.must_wait(LIMITS, found)
    assert gang_of_pod.must_wait(ASKED, alone(pod, ASKED)), "who asks is not given half a gang"


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "size"), [("distributed-job", (2, 2)), ("ddp-rdma-job", (1, 1))])
def test_the_fields_manifests_are_read_as_they_stand(name: str, size: tuple[int, int]) -> None:
    """Neither has indices; the first has words about gangs and no name, the second asks for one pod of eight GPUs."""
    job = yaml.safe_load((SHARED_DATA / "manifests" / f"{name}.yaml").read_text())
    pod = manifests.pod_of(job)
    assert pod is not None
    above = admit(job, kind="Job", path="/mutate-workloads").admitted["spec"]["template"]["metadata"]
    pod["metadata"]["annotations"] = above.get("annotations") or {}
    pod["spec"]["containers"] = [owners.container()]
    pod["metadata"]["ownerReferences"] = owners.owned("batch/v1", "Job", job["metadata"]["name"])
    job["metadata"]["uid"] = owners.UID
    gang = gang_annotations.gang(Values(pod["metadata"].get("annotations") or {}))
    if size == (1, 1):
        assert gang is None
        assert alone(pod, gang) == Alone()
        return
    found = member(pod, gang).read
    assert found is not None
    assert gang_size_of_owner.size_from(found, job) == size
