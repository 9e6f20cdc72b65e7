"""docs/gangs.md: its table of states is the one that the controller goes by, and what explain says."""

from __future__ import annotations

import inspect
import re

from dradriver.api.claims import plans
from dradriver.api.vocabulary import values
from dradriver.cli.explainer import gangs
from dradriver.cluster.pods import kept_places
from dradriver.controller.placing import gang_plan
from dradriver.controller.steps import gang_step, next_step
from dradriver.queue import backoffs
from tests.paths import REPO

PAGE = (REPO / "docs" / "gangs.md").read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def states(table: str, form: str) -> list[str]:
    return re.findall(form, table)


def test_the_states_are_the_controllers() -> None:
    told = states(section("How a gang starts"), r"(?m)^\| (?!state |---)([a-z ]+?) \|")
    assert gang_step.__doc__ is not None
    steps = states(gang_step.__doc__, r"(?m)^(\w+(?: back)?) {2,}(?!record)\S")
    assert told == ["started" if state == "go" else state for state in steps if state != "state"]
    shown = set(re.findall(r'"([a-z ]+)"', inspect.getsource(gangs._whole)))
    assert set(told) <= shown


def test_the_figures_are_the_codes() -> None:
    starts = section("How a gang starts")
    assert (next_step.PROMISE_S, gang_step.MEMBER_S, gang_step.LONGEST_S) == (30, 0.1, 300)
    assert "30 s plus 0.1 s for each pod, at most five minutes" in starts
    assert (next_step.UNSCHEDULABLE_S, next_step.SCHEDULER_PAUSE_S) == (5, 10)
    assert "only 5 s more. It waits 15 s" in starts
    assert (gang_step.GATHER_S, gang_plan.MOST_ALTERNATES, backoffs.LONGEST_BACKOFF_S) == (2, 8, 120)
    assert "starts 2 s after the last pod arrived, with at least four pods" in starts
    assert "the same number of others, at most eight others" in starts
    assert kept_places.KEPT_S == 120
    assert "for two minutes" in section("A lost member")
    assert f"above {plans.MOST_NODES} nodes" in section("What is written back")
    assert f"{values.MOST_PODS:,} pods" in section("Limits")
