"""Nodes that go for maintenance take only pods that are gone by then; and which nodes are spot nodes."""

from __future__ import annotations

import datetime
import time

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.node_maintenance import AT_ONCE, SPOT_LABELS, STAYS, goes_at
from dradriver.api.base.objects import Condition, Metadata, Node, NodeSpec, NodeStatus, Taint
from dradriver.api.base.pods import Pod
from dradriver.cluster.nodes.node_table import GOING, NodeTable
from dradriver.cluster.nodes.pod_demands import BEGINS_S, FREED_S, Ask, Constraints, ask_of, longest
from dradriver.cluster.nodes.selector_classes import CORDONED
from tests.unit.cluster.nodes import test_node_table
from tests.unit.cluster.nodes.test_node_table import table_of

NOW = 1_800_000_000.0
HOUR_S = 3600
PLANNED = "cloud.google.com/scheduled-maintenance-time"


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def text(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat().replace("+00:00", "Z")


def pod(deadline_s: int | None, grace_s: int | None = None) -> Pod:
    spec = {"activeDeadlineSeconds": deadline_s, "terminationGracePeriodSeconds": grace_s}
    made: Pod = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    return made


def node(
    name: str = "n",
    *,
    says: str | None = None,
    planned: str | None = None,
    taints: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
    cordoned: bool = False,
) -> Node:
    return Node(
        metadata=Metadata(
            name=name,
            annotations={} if says is None else {names.MAINTENANCE: says},
            labels=(labels or {}) | ({} if planned is None else {PLANNED: planned}),
        ),
        spec=NodeSpec(
            unschedulable=cordoned,
            taints=[Taint(key=names.MAINTENANCE, value=value, effect="PreferNoSchedule") for value in taints],
        ),
        status=NodeStatus(allocatable={"pods": "9"}, conditions=[Condition(type="Ready", status="True")]),
    )


def asking(lasts_s: int) -> Ask:
    return Ask((), Constraints(), lasts_s)


def fit(table: NodeTable, lasts_s: int) -> set[str]:
    return test_node_table.fit(table, asking(lasts_s))


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        ([pod(None)], 0),
        ([pod(60, 0)], 110),  # 105, of which two digits count
        ([pod(3600)], 3700),  # 3,675
        ([pod(60, 0), pod(3600)], 3700),
        ([pod(3600), pod(None)], 0),
        ([pod(1, 0)], 46),
        ([pod(60, -5)], 110),
        ([pod(60, (1 << 63) - 1)], 0),
        ([], 0),
    ],
)
def test_how_long_pods_last_is_the_longest_with_what_comes_before_and_after(pods: list[Pod], seconds: int) -> None:
    assert longest(ask_of(one).lasts_s for one in pods) == seconds
    if seconds:
        exact = max(BEGINS_S + (one.spec.active_deadline_seconds or 0) + FREED_S for one in pods)
        assert exact <= seconds, "it is never promised to be gone sooner than it is"


@pytest.mark.parametrize(
    ("said", "at"),
    [
        (node(), STAYS),
        (node(says=text(NOW)), NOW),
        (node(says="2027-01-15T09:00:00+01:00"), NOW),
        (node(says="20270115T080000Z"), NOW),
        (node(says="1800000000"), NOW),
        (node(taints=("20270115T080000Z",)), NOW),
        (node(taints=("1800000000", "1800000009")), NOW),
        (node(planned="1800000000"), NOW),
        (node(says="1800000005", planned="1800000000", taints=("1800000003",)), NOW),
        (node(says=""), AT_ONCE),
        (node(says="soon"), AT_ONCE),
        (node(says="2027-01-15T08:00:00"), AT_ONCE),  # of which zone?
        (node(says="9" * 400), AT_ONCE),
        (node(taints=("",)), AT_ONCE),
    ],
)
def test_the_first_time_counts_that_anything_says_and_what_is_no_time_is_at_once(said: Node, at: float) -> None:
    assert goes_at(said) == at


def test_only_pods_that_are_gone_before_may_go_to_a_node_that_goes() -> None:
    table = table_of(node("goes", says=text(NOW + HOUR_S)), node("stays"))
    assert fit(table, 0) == {"stays"}
    assert fit(table, HOUR_S) == {"goes", "stays"}
    assert fit(table, HOUR_S + 1) == {"stays"}
    assert table.causes(asking(0)) == (GOING,)
    assert table.causes(asking(HOUR_S)) == ()


def test_time_passes_and_fewer_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(node("goes", says=text(NOW + HOUR_S)))
    monkeypatch.setattr(time, "time", lambda: NOW + 1)
    assert fit(table, HOUR_S) == set()
    monkeypatch.setattr(time, "time", lambda: NOW + 2 * HOUR_S)
    assert fit(table, 46) == set(), "it may be back, and nobody has said so"


def test_a_node_that_stays_after_all_wakes_those_who_wait() -> None:
    table = table_of(node(says="now"))
    assert fit(table, 46) == set()
    assert table.set_node("n", node(says=text(NOW + HOUR_S))), "it goes later"
    assert fit(table, 46) == {"n"}
    assert not table.set_node("n", node(says=text(NOW + 60))), "that helps nobody"
    assert table.set_node("n", node())
    assert fit(table, 0) == {"n"}


def test_a_row_forgets_that_its_node_went() -> None:
    table = table_of(node("a", says="now"))
    table.offer("a", False)
    table.set_node("a", None)
    table.set_node("b", node("b"))
    table.offer("b", True)
    assert fit(table, 0) == {"b"}


def test_a_node_that_goes_is_one_cause_and_not_another_too() -> None:
    table = table_of(node("both", says="now", cordoned=True))
    assert table.causes(asking(0)) == (GOING,)
    table.set_node("other", node("other", cordoned=True))
    table.offer("other", True)
    assert table.causes(asking(0)) == tuple(sorted((CORDONED, GOING)))


def test_spot_nodes_are_those_that_their_providers_or_the_policies_file_call_so() -> None:
    own = {f"p{at}": {key: values[0]} for at, (key, values) in enumerate(SPOT_LABELS.items())}
    others = {"on-demand": {"karpenter.sh/capacity-type": "on-demand"}, "plain": {"zone": "a"}}
    table = table_of(*(node(name, labels=labels) for name, labels in (own | others).items()))
    assert {table.name(int(row)) for row in table.spot().nonzero()[0]} == own.keys()
    table.spot_labels = {"zone": "a", "example.com/spot": "yes"}
    assert {table.name(int(row)) for row in table.spot().nonzero()[0]} == {*own, "plain"}
