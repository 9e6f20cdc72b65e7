"""Pods that running programs made from one object each: which gangs they are, how large, and in which order."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
import pytest

from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Member
from tests.captured import captured
from tests.fakes.owners import STORIES

Object = dict[str, Any]


class Expected(NamedTuple):
    """What a program's pods with GPUs are.

    Attributes:
        made_by: What their gangs are all of; also the story that was written after the program's source.
        gangs: How many gangs.
        size: How many pods each has.
        read: The kind that tells so.
        bare: How many pods without GPUs it made.
    """

    made_by: str
    gangs: int
    size: int
    read: str
    bare: int


EXPECTED = {
    "jobset-0.11.1": Expected("JobSet", 1, 4, "JobSet", 1),
    "lws-0.8.0": Expected("LeaderWorkerSet", 2, 3, "LeaderWorkerSet", 0),
    "mpi-operator-0.8.0": Expected("MPIJob", 1, 4, "MPIJob", 1),
    "trainer-2.2.0": Expected("JobSet", 1, 4, "JobSet", 1),
}


def has_gpus(pod: Object) -> bool:
    return any(one.get("resources", {}).get("limits") for one in pod["spec"]["containers"])


def found(pod: Object) -> Member | Alone:
    return gang_of_pod.find(gang_of_pod.facts(msgspec.convert(pod, Pod)), Gang(name="auto"))


@pytest.mark.parametrize("program", EXPECTED)
def test_what_a_program_makes_are_whole_gangs(program: str) -> None:
    expected, made = EXPECTED[program], captured()[program]
    gangs: dict[str, list[Member]] = defaultdict(list)
    for pod in filter(has_gpus, made["pods"]):
        member = found(pod)
        assert isinstance(member, Member), member
        gangs[member.identity].append(member)
    assert len(gangs) == expected.gangs
    assert len(made["pods"]) == expected.gangs * expected.size + expected.bare
    for members in gangs.values():
        ranks = [one.rank for one in members]
        assert None not in ranks
        assert len(set(ranks)) == len(members) == expected.size
        read = members[0].read
        assert read is not None
        assert (members[0].made_by, read.kind) == (expected.made_by, expected.read)
        (owner,) = (one for one in made["owners"] if one["kind"] == expected.read)
        assert gang_size_of_owner.size_from(read, owner) == (expected.size, expected.size)


@pytest.mark.parametrize("program", EXPECTED)
def test_what_is_told_of_it_by_its_source_is_what_it_does(program: str) -> None:
    """The stories' pods have no label or annotation of such a program that its own have not."""
    story = STORIES[EXPECTED[program].made_by]()
    told = ("labels", "annotations")
    has = {key for pod in captured()[program]["pods"] for part in told for key in pod["metadata"].get(part, {})}
    says = {key for pod in story.pods for part in told for key in pod["metadata"].get(part, {})}
    assert says <= has
