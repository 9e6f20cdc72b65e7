"""docs/tasks/gangs.md: its table of states is the one that the controller goes by, and what explain says."""

from __future__ import annotations

import re

import pytest

from dradriver.api.claims import gang_plan_note
from dradriver.api.vocabulary import values
from dradriver.cluster.pods import kept_places
from dradriver.controller.placing import gang_placements
from dradriver.controller.steps import deadlines, gang_step
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue import backoffs
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.paths import REPO
from tests.unit.cli.test_explain_gangs import gang, seat

PAGE = (REPO / "docs" / "tasks" / "gangs.md").read_text("utf-8")
ROW = r"(?m)^\| (?!state |---)([a-z ]+?) \|"


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def states(table: str, form: str) -> list[str]:
    return re.findall(form, table)


def test_the_states_are_the_controllers() -> None:
    told = states(section("How a gang starts"), ROW)
    assert gang_step.__doc__ is not None
    steps = states(gang_step.__doc__, r"(?m)^(\w+) {2,}(?!record)\S")
    assert told == ["started" if state == "go" else state for state in steps if state != "state"]


def begin_again(cluster: GpuCluster) -> None:
    """End a gang of two, and create its pods again."""
    for number in range(2):
        cluster.remove(PODS, f"train-{number}", "default")
    cluster.collect()
    gang(cluster, 2, there=2)


async def test_explain_shows_each_state(cluster: GpuCluster, shell: CommandLine) -> None:
    shown: list[str] = []

    async def look() -> None:
        shown.append((await shell.data("explain train-0"))["gang"]["state"])

    cluster.node("n0")
    for count in (1, 2):
        gang(cluster, 2, there=count)
        await cluster.settle()
        await look()
    cluster.node("n1")
    cluster.client.kill_at = -(len(cluster.client.writes) + 2)  # the claims are created, no gate is removed
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    await look()
    cluster.restart()
    await cluster.settle()
    await look()
    for number in range(2):
        seat(cluster, f"train-{number}")
    await look()
    begin_again(cluster)
    await run_all(cluster)
    await look()
    begin_again(cluster)
    await cluster.settle()
    claim = claim_of("train-1")
    cluster.store.edit(
        RESOURCE_CLAIMS, ("default", claim), lambda obj: obj["metadata"].update(finalizers=["example.com/slow"])
    )
    cluster.remove(RESOURCE_CLAIMS, claim, "default")
    await look()
    assert shown == states(section("How a gang starts"), ROW)


def test_the_figures_are_the_codes() -> None:
    starts = section("How a gang starts")
    assert (deadlines.PROMISE_S, deadlines.MEMBER_S, deadlines.LONGEST_S) == (30, 0.1, 300)
    assert "30 s plus 0.1 s for each pod, at most five minutes" in starts
    assert (deadlines.UNSCHEDULABLE_S, deadlines.SCHEDULER_PAUSE_S) == (5, 10)
    assert "only 5 s more. It waits 15 s" in starts
    assert (deadlines.GATHER_S, gang_placements.MOST_ALTERNATES, backoffs.LONGEST_BACKOFF_S) == (2, 8, 120)
    assert "starts 2 s after its last pod was created, with at least four pods" in starts
    assert "the planned nodes and to at most eight alternative nodes" in starts
    assert kept_places.KEPT_S == 120
    assert "for two minutes" in section("A lost member")
    assert f"above {gang_plan_note.MOST_NODES} nodes" in section("What is written back")
    assert f"{values.MOST_PODS:,} pods" in section("Limits")
