"""Pods of Jobs to which the Job controller gives a PodGroup (WorkloadWithJob): of which gang they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.api.base.objects import OwnerReference
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Member, is_of_job
from tests.fakes import owners

Object = dict[str, Any]
GROUP = owners.JOB_GROUP
BASIC = {"metadata": {"name": GROUP, "uid": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}}
GANG = {"metadata": {"name": GROUP, "uid": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}


def pod(index: int = 0, *, stored: bool = False) -> Object:
    """Return a pod as the Job controller makes it, with ``spec.schedulingGroup`` only if that is ``stored``."""
    return owners.job_pod(index, stored=stored)


def member_of(made: Object, gang: Gang | None = None) -> Member | Alone:
    return gang_of_pod.find(gang_of_pod.facts(msgspec.convert(made, Pod)), gang)


@pytest.mark.parametrize("stored", [True, False])
def test_the_group_of_a_job_is_found_though_its_pods_have_left_it(stored: bool) -> None:
    member = member_of(pod(stored=stored))
    assert isinstance(member, Member)
    assert member == member_of(pod(stored=not stored))
    assert member.made_by == "PodGroup"
    assert member.read is not None
    assert (member.read.kind, member.read.name, member.read.by_job) == ("PodGroup", GROUP, True)
    assert gang_size_of_owner.size_from(member.read, GANG) == (4, 9999)
    assert isinstance(gang_size_of_owner.size_from(member.read, BASIC), Alone), "its pods are placed one by one"


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("gang", [Gang(name="auto"), Gang(pods=4), Gang(name="auto", max_nodes=2)])
def test_what_the_author_of_a_job_writes_stands_above_the_group_of_the_job_controller(stored: bool, gang: Gang) -> None:
    member = member_of(pod(stored=stored), gang)
    assert isinstance(member, Member)
    assert member == member_of(owners.job_pod(0, group=""), gang), "as without a PodGroup"
    assert member.made_by == "Job"
    assert member.read is not None
    assert (member.read.kind, member.read.name) == ("Job", "train")


def test_limits_of_a_gang_alone_ask_for_none() -> None:
    member = member_of(pod(), Gang(max_nodes=2))
    assert isinstance(member, Member)
    assert member.made_by == "PodGroup", "which says whether there is one"


def test_a_group_that_an_author_wrote_stands_above_what_makes_the_pods() -> None:
    made = pod()
    made["spec"]["schedulingGroup"] = {"podGroupName": "all"}
    member = member_of(made, Gang(name="auto"))
    assert isinstance(member, Member)
    assert member.read is not None
    assert (member.read.kind, member.read.name, member.read.by_job) == ("PodGroup", "all", False)


JOB = OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="j", controller=True)
LONG = "a-b.c-" * 10 + "pgt-0"


@pytest.mark.parametrize(
    ("group", "references", "is_of_it"),
    [
        (GROUP, [JOB], True),
        (GROUP, [OwnerReference(kind="Team", name="t"), JOB], True),
        (f"{LONG}-2x8k4-{LONG}-pgt-0-9zq4c", [msgspec.structs.replace(JOB, name=LONG)], True),
        ("train-b-train-pgt-12-2222222222", [JOB], True),
        (GROUP, [], False),
        (GROUP, [msgspec.structs.replace(JOB, controller=None)], False),
        (GROUP, [msgspec.structs.replace(JOB, kind="ReplicaSet", api_version="apps/v1")], False),
        (GROUP, [msgspec.structs.replace(JOB, api_version="example.com/v1")], False),
        (GROUP, [msgspec.structs.replace(JOB, name="other")], False),
        (GROUP, [msgspec.structs.replace(JOB, name="trai")], False),
        (GROUP, [msgspec.structs.replace(JOB, name="")], False),
        ("train", [JOB], False),
        ("train-2x8k4", [JOB], False),
        ("train-2x8k4-train-pgt-0", [JOB], False),
        ("train-2x8k4-train-pgt-9zq4c", [JOB], False),
        ("train-2x8k4-other-pgt-0-9zq4c", [JOB], False),
        ("train-train-pgt-0-9zq4c", [JOB], False),
        ("train-team-2x8k4-train-pgt-0-9zq4c", [JOB], False),
    ],
)
def test_only_what_the_job_controller_made_is_its_group(
    group: str, references: list[OwnerReference], is_of_it: bool
) -> None:
    assert is_of_job(group, references) == is_of_it
