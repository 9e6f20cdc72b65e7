"""How many pods a gang has, from objects that anybody may have written."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Member, Owner
from tests.fakes import owners
from tests.fakes.owners import STORIES, made_by

JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid=owners.UID)
LWS = Owner(api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="serve")


def job(**spec: Any) -> dict[str, Any]:
    return made_by("batch/v1", "Job", "train", spec)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"parallelism": 2, "completions": 8}, 2),
        ({"completions": 8}, 1),
        ({"parallelism": 9999}, 9999),
    ],
)
def test_of_a_job_the_smaller_number_counts(spec: dict[str, Any], size: int) -> None:
    assert gang_size_of_owner.size_from(JOB, job(**spec)) == (size, size)


@pytest.mark.parametrize(
    ("failed", "completions", "succeeded", "size"),
    [
        (None, 4, 0, 4),
        ("", 4, 0, 4),
        ("2", 4, 0, 3),
        ("1,3", 4, 0, 2),
        ("0-2", 4, 0, 1),
        ("0-3", 4, 0, 1),  # nothing is left to run: it is over as soon as its controller has seen that
        ("1,3-5", 8, 1, 3),
        ("1", 8, 0, 4),  # there are others to run in its place
        ("0-2000000000", 4, 0, 1),
        ("0-99999999999999999999", 4, 0, 1),
        ("7", 4, 0, 4),  # of a larger number of completions, before that was lowered
        ("1-9", 4, 0, 1),
        ("1,1,1-1", 4, 0, 3),
        ("2-1", 4, 0, 4),
        ("-1", 4, 0, 4),
        ("x,2,3-y,", 4, 0, 3),
        ("\u0662", 4, 0, 4),
        ("9" * 100_000, 4, 0, 4),
    ],
)
def test_indexes_that_have_failed_for_good_are_no_pods_of_a_job(
    failed: str | None, completions: int, succeeded: int, size: int
) -> None:
    status = {"succeeded": succeeded} | ({} if failed is None else {"failedIndexes": failed})
    found = job(parallelism=4, completions=completions) | {"status": status}
    assert gang_size_of_owner.size_from(JOB, found) == (size, size)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (job(parallelism=0), "has no number of pods with GPUs from 1 to 9999"),
        (job(parallelism=10_000), "has no number of pods"),
        (job(parallelism=-1), "has no number of pods"),
        (job(parallelism="2"), "is none: 'Expected `int | null`, got `str`"),
        (job(parallelism=True), "has an unexpected form"),
        (job(parallelism=1 << 70), "has no number of pods"),
        ({"metadata": {"uid": owners.UID}}, "has an unexpected form"),
        ({}, "has an unexpected form"),
        (job() | {"metadata": {"uid": "another"}}, "was deleted and created again"),
        (job() | {"spec": None}, "has an unexpected form"),
    ],
)
def test_what_is_no_such_job_is_refused_on_one_line(found: dict[str, Any], told: str) -> None:
    with pytest.raises(WordError, match=told) as refusal:
        gang_size_of_owner.size_from(JOB, found)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 256


def test_an_unknown_kind_has_no_size() -> None:
    with pytest.raises(WordError, match="does not know the number of pods"):
        gang_size_of_owner.size_from(Owner(api_version="x/v1", kind="Thing", name="t"), job())


def test_a_jobset_without_the_role_is_refused() -> None:
    story = STORIES["JobSet"]()
    assert story.owner is not None
    gone = Owner(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name="train", role="gone")
    with pytest.raises(WordError, match="has no replicatedJob 'gone'"):
        gang_size_of_owner.size_from(gone, story.owner)


def leader_worker_set(leader: int | None, workers: int, **spec: Any) -> dict[str, Any]:
    """Return one of three pods a group; without a leader's template leaders are as workers."""
    owner = copy.deepcopy(owners.leader_worker_set().owner)
    assert owner is not None
    group = owner["spec"]["leaderWorkerTemplate"]
    group["workerTemplate"] = owners.template(workers)
    del group["leaderTemplate"]
    group |= {} if leader is None else {"leaderTemplate": owners.template(leader)}
    owner["spec"] |= spec
    return owner


@pytest.mark.parametrize(
    ("leader", "workers", "size"), [(4, 4, 3), (None, 4, 3), (0, 4, 2), (4, 0, 1), (None, 0, None), (0, 0, None)]
)
def test_of_a_leader_and_workers_those_count_that_have_gpus(leader: int | None, workers: int, size: int | None) -> None:
    found = leader_worker_set(leader, workers)
    if size is None:
        with pytest.raises(WordError, match="has no number of pods with GPUs"):
            gang_size_of_owner.size_from(LWS, found)
    else:
        assert gang_size_of_owner.size_from(LWS, found) == (size, size)


def test_a_group_of_an_old_revision_is_as_large_as_it_was_made() -> None:
    found = leader_worker_set(0, 4)
    found["spec"]["leaderWorkerTemplate"]["size"] = 9
    made = gang_of_pod.find(
        gang_of_pod.facts(msgspec.convert(owners.leader_worker_set().pods[0], Pod)), Gang(name="auto")
    )
    assert isinstance(made, Member)
    assert made.read is not None
    assert gang_size_of_owner.size_from(made.read, found) == (2, 2)
    assert gang_size_of_owner.size_from(LWS, found) == (8, 8)


@pytest.mark.parametrize(("leader", "workers", "never"), [(4, 4, True), (None, 4, True), (0, 4, False), (4, 0, False)])
def test_workers_that_wait_for_a_leader_with_gpus_are_no_gang_with_it(
    leader: int | None, workers: int, *, never: bool
) -> None:
    owner = leader_worker_set(leader, workers, startupPolicy="LeaderReady")
    found = gang_size_of_owner.size_from(LWS, owner)
    assert isinstance(found, Alone) == never
    assert ("Write LeaderCreated" in gang_size_of_owner.why_never("LeaderWorkerSet", owner["spec"])) == never


def test_a_leader_without_workers_waits_for_no_other() -> None:
    owner = leader_worker_set(4, 4, startupPolicy="LeaderReady")
    owner["spec"]["leaderWorkerTemplate"]["size"] = 1
    assert gang_size_of_owner.size_from(LWS, owner) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "spec", "told"),
    [
        ("StatefulSet", {}, "Write Parallel"),
        ("StatefulSet", {"replicas": 0}, "Write Parallel"),
        ("StatefulSet", {"podManagementPolicy": "Parallel"}, ""),
        ("StatefulSet", None, ""),
        ("StatefulSet", {"replicas": []}, ""),
        ("PyTorchJob", None, ""),
        ("PyTorchJob", [], ""),
        ("PodGroup", {"schedulingPolicy": {"basic": {}}}, ""),
        ("Job", {}, ""),
        ("Thing", {}, ""),
    ],
)
def test_what_shows_that_it_makes_no_gang_says_what_to_write(kind: str, spec: Any, told: str) -> None:
    found = gang_size_of_owner.why_never(kind, spec)
    assert told in found
    assert bool(told) == bool(found)


@pytest.mark.parametrize(
    ("count", "has"),
    [
        ("4", True), (4, True), (0.5, True), ("4k", True), ("0", False), (0, False), ("0.0", False), ("00", False),
        ("0m", False), ("0e3", False), ("four", False), (float("nan"), False), ("-1", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("words", [{}, {"gpu.topology/near": "leaf"}])
def test_a_limit_of_none_is_no_gpu_however_it_is_written(count: Any, words: dict[str, str], *, has: bool) -> None:
    owner = copy.deepcopy(owners.kubeflow("pytorchjob", (3, 3)).owner)
    assert owner is not None
    master = owner["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    master["metadata"] = {"annotations": words}
    master["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": count}
    read = Owner(api_version="kubeflow.org/v1", kind="PyTorchJob", name="train")
    assert gang_size_of_owner.size_from(read, owner) == ((3, 3) if has else (2, 2))


@pytest.mark.parametrize(("least", "size"), [(1, (1, 9999)), (9999, (9999, 9999)), (10_000, None), (0, None)])
def test_a_pod_group_tells_the_least(least: int, size: tuple[int, int] | None) -> None:
    read = Owner(api_version="scheduling.k8s.io", kind="PodGroup", name="g")
    found = made_by("x", "PodGroup", "g", {"schedulingPolicy": {"gang": {"minCount": least}}})
    if size is None:
        with pytest.raises(WordError, match="has no number of pods"):
            gang_size_of_owner.size_from(read, found)
    else:
        assert gang_size_of_owner.size_from(read, found) == size


def test_a_role_has_gpus_by_a_limit_or_by_a_word() -> None:
    story = owners.kubeflow("pytorchjob", (2, 2), without="Master")
    assert story.owner is not None
    read = Owner(api_version="kubeflow.org/v1", kind="PyTorchJob", name="train")
    assert gang_size_of_owner.size_from(read, story.owner) == (2, 2)
    master = story.owner["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    master["metadata"] = {"annotations": {"gpu.topology/gpus": "4"}}
    assert gang_size_of_owner.size_from(read, story.owner) == (3, 3)


@pytest.mark.parametrize("kind", gang_size_of_owner.OBJECTS)
def test_every_object_that_a_pod_may_name_can_be_read(kind: str) -> None:
    with pytest.raises(WordError, match="has an unexpected form: "):
        gang_size_of_owner.size_from(Owner(api_version="x", kind=kind, name="t"), {})


def test_every_kind_of_kubeflow_that_has_roles_is_an_object_that_a_pod_may_name() -> None:
    assert set(gang_size_of_owner.REPLICAS) <= set(gang_size_of_owner.OBJECTS)
