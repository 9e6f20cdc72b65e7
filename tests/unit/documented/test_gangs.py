"""docs/tasks/gangs.md: its manifests run, and its table is the one that admission goes by."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner, gang_support, impossible_gangs
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Member
from dradriver.api.pod import resolved
from tests import schema
from tests.fakes import owners
from tests.fakes.admission import admit, defaulted
from tests.manifests import MINORS
from tests.paths import REPO
from tests.snippets import snippets

PAGE = (REPO / "docs" / "tasks" / "gangs.md").read_text("utf-8")
JOB, JOBSET = (yaml.safe_load(snippet.text) for snippet in snippets(PAGE))


def row(one: gang_support.Row) -> str:
    written = f"`{one.written}`" if one.written.startswith(names.PREFIX) else one.written
    return f"| {one.name} | {written} | {'yes' if one.supported else 'refused'} | {one.why} |"


def test_the_table_of_the_page_is_that_of_admission() -> None:
    body = PAGE.partition("\n## Together with other features\n")[2].partition("\n## ")[0].strip().splitlines()
    assert body[2:] == [row(one) for one in gang_support.TABLE]


def test_each_way_to_find_a_gang_has_a_row_and_so_has_each_hindrance() -> None:
    found = PAGE.partition("\n## Which pods are a gang\n")[2].partition("\n## ")[0]
    table = found.partition("\n|---")[2].partition("\n")[2].partition("\n\n")[0]
    rows = [set(re.findall(r"pod group|\w+", line.split("|")[1])) for line in table.splitlines()]
    known = {*gang_size_of_owner.OBJECTS, *map(made_by, owners.STORIES)}
    assert all(row & known for row in rows), "each row is of a way"
    assert set().union(*rows) >= known
    assert [kind for kind in sorted(known) if sum(kind in row for row in rows) > 1] == ["Job"], (
        "with indices or without"
    )
    never = PAGE.partition("\n## Who cannot be in one\n")[2].partition("\n## ")[0]
    assert "OrderedReady" in never
    assert impossible_gangs.ORDERED_READY.startswith("with podManagementPolicy: OrderedReady")


def made_by(story: str) -> str:
    """Return what made the first pod of a story, as admission finds it."""
    pod = msgspec.convert(owners.STORIES[story]().pods[0], Pod)
    found = gang_of_pod.find(gang_of_pod.facts(pod), Gang(name="auto"))
    assert isinstance(found, Member)
    return found.made_by


def pods(workload: Any, template: Any) -> list[Any]:
    """Return the pod that a workload's template makes, admitted, with words as they come down from above."""
    made = admit(copy.deepcopy(workload), kind=workload["kind"], path="/mutate-workloads").admitted
    found = template(made)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **found.get("metadata", {})},
        "spec": found["spec"],
    }
    return [made, admit(defaulted(copy.deepcopy(pod))).admitted]


@pytest.mark.parametrize("minor", MINORS)
def test_the_job_runs(minor: str) -> None:
    made, pod = pods(JOB, lambda job: job["spec"]["template"])
    schema.check(made, minors=(minor,))
    noted = resolved.read(pod["metadata"]["annotations"])
    assert noted.gang is not msgspec.UNSET
    pod["metadata"]["ownerReferences"] = owners.owned("batch/v1", "Job", "train")
    found = gang_of_pod.find(gang_of_pod.facts(msgspec.convert(pod, Pod)), noted.gang)
    assert isinstance(found, Member)
    assert found.made_by == "Job"


def test_the_jobsets_workers_have_the_words_and_its_coordinator_has_none() -> None:
    made, pod = pods(JOBSET, lambda jobset: jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"])
    coordinator = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert "metadata" not in coordinator
    noted = resolved.read(pod["metadata"]["annotations"])
    assert noted.gang is not msgspec.UNSET
    assert noted.gang.on_member_loss == "restart"
