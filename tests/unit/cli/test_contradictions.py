"""All tools say the same of one cluster: controller, Events, metrics, ``gputopo`` and the page, in 32 situations."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.cluster.derived.gpu_states import STATES
from dradriver.reason import Cause
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.answers import NAMESPACES, PLANNED, Answers, Data, Key, ask
from tests.fakes.situations import ADD_ON, SITUATIONS, Site

# Two clusters are asked once, in the first test: seconds of CPU.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> list[Answers]:
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "addon")]
    addon = ask(folders[1], ADD_ON, kind=AddOnCluster, ledger=NVIDIA)
    return [asyncio.run(ask(folders[0])), asyncio.run(addon)]


@pytest.fixture
def answers(request: pytest.FixtureRequest, clusters: list[Answers]) -> Answers:
    """What the tools say of the cluster that has the test's situation, or of that with most situations."""
    name = request.node.callspec.params["site"] if hasattr(request.node, "callspec") else None
    return next(one for one in clusters if name is None or name in one.sites)


@pytest.fixture
def site(request: pytest.FixtureRequest, answers: Answers) -> Site:
    found: Site = answers.sites[request.param]
    return found


EACH = pytest.mark.parametrize("site", [*SITUATIONS, *ADD_ON], indirect=True)


def figures(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def of(answers: Answers, metric: str, *labels: str) -> float:
    """Return the sum of a metric's samples that have these labels' values."""
    return sum(value for key, value in answers.metrics.get(metric, {}).items() if set(labels) <= set(key))


def _row_of(answers: Answers, key: Key) -> Data | None:
    """Return the row of ``gputopo queue`` that a pod is in: its own, or that of its gang."""
    gang = answers.explained[key]["gang"]
    if gang is None:
        return answers.queue.get("/".join(key))
    return next((row for name, row in answers.queue.items() if row["pods"] > 1 and gang["name"] in name), None)


# Why pods wait.


@EACH
def test_every_tool_says_why_a_pod_waits_as_the_controller_says_it(site: Site, answers: Answers) -> None:
    for key, expected in site.waits.items():
        said, now = answers.reasons[key], answers.explained[key]
        turn = now["queue"] or {"reserved": ""}
        assert expected.says in said
        assert answers.events[key] == said
        assert answers.listed[key]["recorded_reason"] == now["recorded_reason"] == said
        assert answers.page[f"pod/{'/'.join(key)}"]["why"] == said
        # Explain tells apart why there is no place, and what is reserved.
        assert expected.says in f"{now['reason']}; {turn['reserved']}"
        assert figures(said) <= figures(f"{now['reason']} {turn['reserved']}")
        assert said.startswith(now["reason"])


@EACH
def test_a_pod_that_waits_has_no_place_for_anybody(site: Site, answers: Answers) -> None:
    for key, expected in site.waits.items():
        now, shown = answers.explained[key], answers.page[f"pod/{'/'.join(key)}"]
        assert now["state"] == answers.listed[key]["state"] == shown["state"] == "waits"
        assert "there is a place" not in now["reason"]
        assert now["place"] is None or expected.cause is Cause.ENDING
        if now["nearest"] == "no node is eligible":
            assert now["free"]["eligible"] == 0
        for option in now["would_help"]:
            assert option["owners"] or option["causes"], "nothing is in the way of a set that the controller refuses"


@EACH
def test_a_pod_has_one_position_in_the_queue(site: Site, answers: Answers) -> None:
    for key in site.waits:
        turn, row = answers.explained[key]["queue"], _row_of(answers, key)
        shown = answers.page[f"pod/{'/'.join(key)}"]
        has_position = row is not None and row["state"] == "waiting"
        assert has_position == (turn is not None) == (shown["position"] is not None)
        if row is not None:
            assert row["reason"] == answers.reasons[key]
        if has_position:
            assert row is not None
            assert row["position"] == turn["position"] == shown["position"]
            assert bool(row["reserved"]) == bool(turn["reserved"])
            assert turn["waiting"] == sum(one["state"] == "waiting" for one in answers.queue.values())
            if (request := answers.explained[key]["request"]) and "gpus" in request:
                assert row["gpus"] == request["gpus"] * row["pods"]


def test_the_metric_has_the_cause_of_each_pod(answers: Answers) -> None:
    expected = Counter(waits.cause for site in answers.sites.values() for waits in site.waits.values())
    counted = {cause: of(answers, "gpu_topology_waiting_pods_by_cause", cause.value) for cause in Cause}
    assert counted == {cause: expected[cause] for cause in Cause}


def test_no_pod_waits_without_a_reason(answers: Answers) -> None:
    expected = {key for site in answers.sites.values() for key in site.waits}
    promised = {key for key, one in answers.listed.items() if one["state"] == "tentative"}
    assert answers.listed.keys() - promised == expected
    assert {("default", "other-scheduler-p")} == promised
    assert answers.page["summary"]["waiting"] == len(answers.listed)


# What is free.


@EACH
def test_a_gpu_has_one_state(site: Site, answers: Answers) -> None:
    for name, expected in site.nodes.items():
        node, letters = answers.topo[name], answers.page[f"node/{name}"]["gpus"]
        states = Counter(gpu["state"] for gpu in node["gpus"])
        of_metric = Counter(expected.states)
        assert states == of_metric
        assert len(node["free"]) == of_metric["free"]
        assert sum(map(letters.count, "as")) == of_metric["allocated"]
        assert letters.count("u") == of_metric["unhealthy"]
        assert letters.count("b") == of_metric["blocked"] + of_metric["fractions"]
        assert [letters.count(letter) for letter in "pcrf"] == [
            of_metric["tentative"], of_metric["unavailable"], of_metric["reserved"], of_metric["free"],
        ]  # fmt: skip


def test_the_metric_counts_the_states_of_all_nodes(answers: Answers) -> None:
    # Of a machine on which nothing is placed the metric counts nothing.
    nodes = (node for name, node in answers.topo.items() if "agent" not in node and name != "too-large-a-machine-1")
    states = Counter(gpu["state"] for node in nodes for gpu in node["gpus"])
    assert {state: of(answers, "gpu_topology_gpus", state) for state in STATES} == {
        state: states[state] for state in STATES
    }


def test_free_is_one_number(answers: Answers) -> None:
    shown = sum(len(node["free"]) for node in answers.topo.values())
    assert of(answers, "gpu_topology_gpus", "free") == of(answers, "gpu_topology_gpus_free_whole") == shown
    for namespace in NAMESPACES:
        free = answers.free[namespace]
        assert free["free"] + free.get("for_others", 0) == shown
        assert free["tentative"] == of(answers, "gpu_topology_gpus", "tentative")
    assert answers.page["shown/free"].startswith(f"<p>{shown} of ")
    assert sum(states.get("f", 0) for _, states in answers.page["summary"]["products"]) == shown


def test_a_machine_on_which_nothing_is_placed_counts_nowhere(answers: Answers) -> None:
    node = answers.topo["too-large-a-machine-1"]
    assert {gpu["state"] for gpu in node["gpus"]} == {"blocked"}
    assert all("never placed: the machine has 72 GPUs" in gpu["blocked"] for gpu in node["gpus"])
    assert set(answers.page["node/too-large-a-machine-1"]["gpus"]).isdisjoint("fu")
    for command in ("free", "queue", "explain"):
        (warning,) = answers.warnings[command]
        assert "has 72 GPUs, and at most 16 are supported" in warning
    assert not of(answers, "gpu_topology_gpus", "NVIDIA GB200")


def test_a_plan_finds_what_is_free(answers: Answers) -> None:
    for namespace in PLANNED:
        largest = max(one["size"] for one in answers.free[namespace]["sets"])
        assert answers.plans[namespace, largest]
        assert not answers.plans[namespace, 2 * largest]


# What is broken.


def test_every_tool_names_what_is_broken(answers: Answers) -> None:
    findings = {
        check: [one["message"] for one in answers.findings if one["check"] == check]
        for check in ("agents", "taints", "lost-gpus")
    }
    gone = [node["node"] for node in answers.topo.values() if node.get("agent") == "gone"]
    assert gone == answers.free["default"]["agents_gone"] == ["agent-gone-1"]
    assert [said.split(":")[0] for said in findings["agents"]] == gone
    assert of(answers, "gpu_topology_agent_gone_devices", *gone) == len(answers.topo[gone[0]]["gpus"])
    assert answers.page["summary"]["gone"] == len(gone)

    unhealthy = [gpu for node in answers.topo.values() for gpu in node["gpus"] if gpu["state"] == "unhealthy"]
    assert findings["taints"] == [
        "unaccounted-1: 1 device has the taint gpu.topology/held=1",
        "unhealthy-1: 5 devices have the taint gpu.topology/xid=79",
    ]
    assert of(answers, "gpu_topology_gpus", "unhealthy") == len(unhealthy) == 6
    lost = [gpu for node in answers.topo.values() for gpu in node.get("lost", ())]
    assert len(findings["lost-gpus"]) == len(lost) == 2
    assert answers.page["summary"]["unhealthy"] == len(unhealthy) + len(lost)
