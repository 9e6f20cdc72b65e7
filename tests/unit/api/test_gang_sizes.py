"""How many pods a gang has, from objects that anybody may have written."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.api import gang_sizes
from dradriver.api.errors import WordError
from dradriver.api.gang_owners import Alone, Owner
from tests.fakes import owners
from tests.fakes.owners import STORIES, made_by

JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid=owners.UID, asked=True)
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
    assert gang_sizes.size_from(JOB, job(**spec)) == (size, size)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (job(parallelism=0), "has no number of pods with GPUs from 1 to 9999"),
        (job(parallelism=10_000), "has no number of pods"),
        (job(parallelism=-1), "has no number of pods"),
        (job(parallelism="2"), "is none: 'Expected `int | null`, got `str`"),
        (job(parallelism=True), "is none"),
        (job(parallelism=1 << 70), "has no number of pods"),
        ({"metadata": {"uid": owners.UID}}, "is none"),
        ({}, "is none"),
        (job() | {"metadata": {"uid": "another"}}, "is another one by now"),
        (job() | {"spec": None}, "is none"),
    ],
)
def test_what_is_no_such_job_is_refused_on_one_line(found: dict[str, Any], told: str) -> None:
    with pytest.raises(WordError, match=told) as refusal:
        gang_sizes.size_from(JOB, found)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 256


def test_a_kind_that_nobody_knows_has_no_size() -> None:
    with pytest.raises(WordError, match="is not known"):
        gang_sizes.size_from(Owner(api_version="x/v1", kind="Thing", name="t"), job())


def test_a_jobset_without_the_role_is_refused() -> None:
    story = STORIES["JobSet"]()
    assert story.owner is not None
    gone = Owner(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name="train", role="gone")
    with pytest.raises(WordError, match="has no replicatedJob 'gone'"):
        gang_sizes.size_from(gone, story.owner)


@pytest.mark.parametrize("gpus", [4, 0])
def test_workers_that_wait_for_a_leader_with_gpus_are_no_gang_with_it(gpus: int) -> None:
    owner = copy.deepcopy(owners.leader_worker_set(leader_gpus=gpus).owner)
    assert owner is not None
    owner["spec"]["startupPolicy"] = "LeaderReady"
    found = gang_sizes.size_from(LWS, owner)
    if gpus:
        assert isinstance(found, Alone)
        assert found.never
        assert "write LeaderCreated" in found.why
    else:
        assert found == (2, 2)


def test_a_role_has_gpus_by_a_limit_or_by_a_word() -> None:
    story = owners.kubeflow("pytorchjob", (2, 2), without="Master")
    assert story.owner is not None
    read = Owner(api_version="kubeflow.org/v1", kind="PyTorchJob", name="train")
    assert gang_sizes.size_from(read, story.owner) == (2, 2)
    master = story.owner["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    master["metadata"] = {"annotations": {"gpu.topology/gpus": "4"}}
    assert gang_sizes.size_from(read, story.owner) == (3, 3)


def test_every_object_that_a_pod_may_name_can_be_read() -> None:
    assert set(gang_sizes.OBJECTS) == set(gang_sizes._SIZES)
