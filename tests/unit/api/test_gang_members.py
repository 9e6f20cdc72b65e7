"""Which gang a pod is of: pods as running programs made them, and as others write them by their source."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.api import gang_members, gang_sizes, names
from dradriver.api.gang_owners import Alone, Facts, Member
from dradriver.api.gangs import Gang
from dradriver.api.pods import Pod
from tests import manifests
from tests.captured import captured
from tests.fakes import owners
from tests.fakes.owners import STORIES, Story
from tests.paths import SHARED_DATA

Object = dict[str, Any]
ASKED = Gang(name="auto")
VERSIONS = {name.partition("-")[2]: found for name, found in captured().items() if name.startswith("kubernetes-")}


def facts(pod: Object, *, env: bool = False) -> Facts:
    found = gang_members.facts(msgspec.convert(pod, Pod))
    values = {e["name"]: e.get("value", "") for c in pod["spec"]["containers"] for e in c.get("env", [])}
    return msgspec.structs.replace(found, env=values) if env else found


def member(pod: Object, gang: Gang | None = None, *, env: bool = False) -> Member:
    found = gang_members.find(facts(pod, env=env), gang)
    assert isinstance(found, Member), found
    return found


def alone(pod: Object, gang: Gang | None = None) -> Alone:
    found = gang_members.find(facts(pod), gang)
    assert isinstance(found, Alone), found
    return found


def made(version: str, name: str) -> tuple[list[Object], Object]:
    pods = [p for p in VERSIONS[version]["pods"] if p["metadata"]["name"].startswith(f"{name}-")]
    return pods, next(o for o in VERSIONS[version]["owners"] if o["metadata"]["name"] == name)


def test_pods_of_every_tested_kubernetes_were_captured() -> None:
    assert {version.rpartition(".")[0] for version in VERSIONS} == {"1.34", "1.35", "1.36", "1.37"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_indexed_job_is_a_gang_by_itself(version: str) -> None:
    pods, job = made(version, "indexed")
    found = [member(pod) for pod in pods]
    assert len({one.identity for one in found}) == 1
    assert [one.rank for one in found] == [(0,), (1,)]
    assert found[0].size is None
    read = found[0].read
    assert read is not None
    assert (read.kind, read.name, read.uid) == ("Job", "indexed", job["metadata"]["uid"])
    assert gang_sizes.size_from(read, job) == (2, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_runs_in_waves_is_one_only_if_asked(version: str) -> None:
    pods, job = made(version, "waves")
    by_itself, asked = member(pods[0]).read, member(pods[0], ASKED).read
    assert by_itself is not None
    assert asked is not None
    assert "may be an array" in gang_sizes.size_from(by_itself, job).why  # type: ignore[union-attr]
    assert gang_sizes.size_from(asked, job) == (2, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_without_indices_is_one_only_if_asked(version: str) -> None:
    pods, job = made(version, "plain")
    assert alone(pods[0]).why == ""
    found = [member(pod, ASKED) for pod in pods]
    assert len({one.identity for one in found}) == 1
    assert found[0].rank is None
    assert found[0].read is not None
    assert gang_sizes.size_from(found[0].read, job) == (2, 2)
    one, single = made(version, "one")
    read = member(one[0], ASKED).read
    assert read is not None
    assert gang_sizes.size_from(read, single) == (1, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stateful_set_is_one_only_if_asked_and_not_one_by_one(version: str) -> None:
    pods, owner = made(version, "parallel")
    assert alone(pods[0]).why == ""
    found = [member(pod, ASKED) for pod in pods]
    assert [one.rank for one in found] == [(0,), (1,)]
    assert found[0].read is not None
    assert gang_sizes.size_from(found[0].read, owner) == (2, 2)
    pods, owner = made(version, "ordered")
    read = member(pods[0], ASKED).read
    assert read is not None
    refused = gang_sizes.size_from(read, owner)
    assert isinstance(refused, Alone)
    assert refused.never
    assert "write Parallel" in refused.why


@pytest.mark.parametrize("version", [v for v in VERSIONS if v.startswith(("1.36", "1.37"))])
def test_a_pod_of_a_pod_group_is_one_of_its_gang(version: str) -> None:
    (pod, *_), group = made(version, "train")
    found = member(pod)
    assert found.made_by == "PodGroup"
    assert found.read is not None
    assert (found.read.kind, found.read.name) == ("PodGroup", "train")
    assert gang_sizes.size_from(found.read, group) == (2, 2)
    basic = group | {"spec": {"schedulingPolicy": {"basic": {}}}}
    assert "basic" in gang_sizes.size_from(found.read, basic).why  # type: ignore[union-attr]


@pytest.mark.parametrize("name", STORIES)
def test_what_an_owner_makes_together_is_one_gang(name: str) -> None:
    story = STORIES[name]()
    found = [member(pod, env=True) for pod in story.pods]
    assert len({one.identity for one in found}) == 1
    assert found[0].made_by == name.partition(" whose")[0].partition(" that")[0]
    ranks = [one.rank for one in found]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or ())
    assert len(set(ranks)) == len(ranks)
    for other in story.others:
        one = gang_members.find(facts(other))
        assert isinstance(one, Alone) or one.identity != found[0].identity
    if story.owner is None:
        assert found[0].size == story.size
        assert found[0].read is None
    else:
        assert found[0].read is not None
        assert found[0].read.name == story.owner["metadata"]["name"]
        assert gang_sizes.size_from(found[0].read, story.owner) == story.size


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("TrainJob", (3, 3)), ("LeaderWorkerSet", (3, 3)), ("PyTorchJob", (3, 3)), ("JAXJob", (2, 2)),
        ("PyTorchJob that may shrink", (2, 4)), ("PaddleJob", (2, 2)), ("JobSet", None), ("TFJob", None),
        ("XGBoostJob", None), ("MPIJob", None),
    ],
)  # fmt: skip
def test_what_the_pod_says_of_the_size_is_told_beside_who_knows_it_better(
    name: str, size: tuple[int, int] | None
) -> None:
    found = member(STORIES[name]().pods[0], env=True)
    assert found.size == size
    assert found.read is not None


def test_the_launcher_of_an_mpi_job_is_no_member() -> None:
    (launcher,) = owners.mpi_job().others
    assert "placed by itself" in alone(launcher).why
    assert "before its trainers" in alone(owners.train_job().others[0]).why


def identities(*stories: Story) -> list[str]:
    return [member(story.pods[0]).identity for story in stories]


def test_runs_revisions_groups_and_namespaces_are_gangs_of_their_own() -> None:
    lws = owners.leader_worker_set
    assert len(set(identities(owners.jobset(), owners.jobset(attempt=1)))) == 2
    assert len(set(identities(lws(), lws(group=1), lws(revision="77aa")))) == 3
    one, other = owners.kueue_group().pods
    other["metadata"]["namespace"] = "elsewhere"
    assert member(one).identity != member(other).identity


def test_an_identity_is_stable_and_fits_a_label() -> None:
    found = [member(build().pods[0]).identity for build in STORIES.values()]
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one) for one in found)
    assert member(owners.jobset().pods[0]).identity == "train-a281ecdf821d3e8e64762b579abe8593"


def test_a_name_that_the_author_wrote_joins_roles_and_keeps_runs_apart() -> None:
    story = owners.jobset()
    named = Gang(name="all", pods=(3, 5))
    found = [member(pod, named) for pod in (*story.pods, *story.others)]
    assert {(one.made_by, one.size, one.read) for one in found} == {("gang", (3, 5), None)}
    assert len({one.identity for one in found}) == 1
    assert found[0].rank == (0, 0)
    again = member(owners.jobset(attempt=1).pods[0], named)
    assert again.identity != found[0].identity
    assert gang_members.unknown_size(member(story.pods[0], Gang(name="all"))).startswith(names.GANG_SIZE)


def test_a_size_that_the_author_wrote_stands_above_all_others() -> None:
    for build in STORIES.values():
        found = member(build().pods[0], Gang(name="auto", pods=7), env=True)
        assert (found.size, found.read) == ((7, 7), None)
    found = member(owners.jobset().pods[0], Gang(max_nodes=2))
    assert found.read is not None
    assert "JobSet train" in gang_members.unknown_size(found)


def test_who_asks_for_a_gang_and_is_in_none_is_told_what_to_write() -> None:
    bare = owners.pod("p")
    assert alone(bare).why == ""
    assert f"write a name as {names.GANG}" in alone(bare, ASKED).why
    assert gang_members.must_wait(ASKED)
    assert not gang_members.must_wait(Gang(max_nodes=2))
    assert not gang_members.must_wait(None)
    assert alone(owners.pod("p", owners=owners.owned("batch.volcano.sh/v1alpha1", "Job", "v"))).why == ""


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "size"), [("distributed-job", (2, 2)), ("ddp-rdma-job", (1, 1))])
def test_the_fields_manifests_are_read_as_they_stand(name: str, size: tuple[int, int]) -> None:
    """Neither has indices; the first has words about gangs, the second asks for one pod of eight GPUs."""
    job = yaml.safe_load((SHARED_DATA / "manifests" / f"{name}.yaml").read_text())
    pod = manifests.pod_of(job)
    assert pod is not None
    pod["spec"]["containers"] = [owners.container()]
    pod["metadata"]["ownerReferences"] = owners.owned("batch/v1", "Job", job["metadata"]["name"])
    assert alone(pod).why == ""
    found = member(pod, Gang(max_nodes=2, min_gpus_per_node=4)).read
    assert found is not None
    job["metadata"]["uid"] = owners.UID
    assert gang_sizes.size_from(found, job) == size
