"""Whether the scheduler would take a node for a pod: our arrays say so, and the model that they are held against."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base.objects import Condition, Metadata, Node, NodeSpec, NodeStatus, Taint
from dradriver.api.base.pods import (
    Affinity,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Toleration,
)
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.node_table import NOT_READY, NodeTable
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.cluster.nodes.selector_classes import CORDONED, TAINTED, UNSELECTED
from tests.fakes.control_plane import fit

READY = NodeStatus(conditions=[Condition(type="Ready", status="True")])
TAINT = Taint(key="k", value="v", effect="NoSchedule")


def node(*, taints: list[Taint] | None = None, unschedulable: bool = False, status: NodeStatus = READY) -> Node:
    metadata = Metadata(name="n", labels={"zone": "a", "slots": "8"})
    return Node(metadata=metadata, spec=NodeSpec(unschedulable=unschedulable, taints=taints or []), status=status)


def pod(
    *tolerations: Toleration, terms: list[NodeSelectorTerm] | None = None, selector: dict[str, str] | None = None
) -> Pod:
    affinity = None
    if terms is not None:
        required = NodeSelector(node_selector_terms=terms)
        affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    spec = PodSpec(tolerations=list(tolerations), affinity=affinity, node_selector=selector or {})
    return Pod(metadata=Metadata(name="p"), spec=spec)


def why_not(node: Node, pod: Pod) -> str | None:
    """Return why a pod cannot run on a node, which the table says as the model does."""
    table = NodeTable()
    table.set_node("n", node)
    table.offer("n", True)
    told = fit.why_not(msgspec.to_builtins(pod), msgspec.to_builtins(node))
    ask = msgspec.structs.replace(ask_of(pod), amounts=())
    assert table.causes(ask) == (() if told is None else (told,))
    return told


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", operator="", value="v"), True),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="k", value="w"), False),
        (Toleration(key="j", value="v"), False),
        (Toleration(key="k", value="v", effect="NoExecute"), False),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(key="k", operator="Gt", value="v"), False),
    ],
)
def test_a_toleration_covers_a_taint_by_key_value_and_effect(toleration: Toleration, covers: bool) -> None:
    assert (why_not(node(taints=[TAINT]), pod(toleration)) is None) is covers


@pytest.mark.parametrize(
    ("effect", "cause"), [("NoSchedule", TAINTED), ("NoExecute", TAINTED), ("PreferNoSchedule", None)]
)
def test_only_hard_taints_keep_pods_off(effect: str, cause: str | None) -> None:
    assert why_not(node(taints=[Taint(key="k", effect=effect)]), pod()) == cause


def test_every_taint_must_be_tolerated() -> None:
    taints = [TAINT, Taint(key="other", effect="NoExecute")]
    assert why_not(node(taints=taints), pod(Toleration(key="k", operator="Exists"))) == TAINTED


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    assert why_not(node(unschedulable=True), pod()) == CORDONED
    daemon = pod(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule"))
    assert why_not(node(unschedulable=True), daemon) is None


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_left_out(status: str) -> None:
    broken = NodeStatus(conditions=[Condition(type="Ready", status=status)])
    assert why_not(node(status=broken), pod()) == NOT_READY
    assert why_not(node(status=NodeStatus()), pod()) == NOT_READY


def test_a_node_selector_holds_when_all_its_labels_do() -> None:
    assert why_not(node(), pod(selector={"zone": "a", "slots": "8"})) is None
    assert why_not(node(), pod(selector={"zone": "a", "slots": "9"})) == UNSELECTED
    assert why_not(node(), pod(selector={"disk": ""})) == UNSELECTED


@pytest.mark.parametrize(
    ("key", "operator", "values", "held"),
    [
        ("zone", "In", ["b", "a"], True),
        ("zone", "In", ["b"], False),
        ("disk", "In", ["ssd"], False),
        ("zone", "NotIn", ["a"], False),
        ("zone", "NotIn", ["b"], True),
        ("disk", "NotIn", ["ssd"], True),
        ("zone", "Exists", [], True),
        ("disk", "Exists", [], False),
        ("zone", "DoesNotExist", [], False),
        ("disk", "DoesNotExist", [], True),
        ("slots", "Gt", ["7"], True),
        ("slots", "Gt", ["8"], False),
        ("slots", "Lt", ["9"], True),
        ("slots", "Lt", ["8"], False),
        ("slots", "Gt", ["-1"], True),
        ("zone", "Gt", ["1"], False),
        ("disk", "Lt", ["1"], False),
        ("slots", "Lt", ["many"], False),
        ("slots", "Lt", ["9223372036854775808"], False),
        ("slots", "Gt", ["1_0", "2"], False),
        ("slots", "Gt", ["1_0"], False),
        ("slots", "Gt", ["+7"], True),
        ("slots", "Gt", ["+-7"], False),
        ("slots", "Gt", ["-9223372036854775808"], True),
        ("slots", "Gt", ["-9223372036854775809"], False),
        ("slots", "Gt", ["0" * 5000 + "7"], True),
        ("slots", "Lt", ["9" * 5000], False),
        ("slots", "Lt", [""], False),
        ("zone", "Like", ["a"], False),
    ],
)
def test_an_expression_holds_as_the_api_defines_it(key: str, operator: str, values: list[str], held: bool) -> None:
    expression = NodeRequirement(key=key, operator=operator, values=values)
    assert holds(node().metadata.labels.get(key), operator, values) is held
    assert (why_not(node(), pod(terms=[NodeSelectorTerm(match_expressions=[expression])])) is None) is held


def test_expressions_and_fields_are_anded_terms_are_ored_and_an_empty_term_matches_nothing() -> None:
    zone = NodeRequirement(key="zone", operator="In", values=["a"])
    disk = NodeRequirement(key="disk", operator="Exists")
    name = NodeRequirement(key="metadata.name", operator="In", values=["n"])
    other = NodeRequirement(key="metadata.name", operator="NotIn", values=["n"])
    assert why_not(node(), pod(terms=[NodeSelectorTerm(match_expressions=[zone, disk])])) == UNSELECTED
    assert why_not(node(), pod(terms=[NodeSelectorTerm(match_expressions=[zone], match_fields=[other])])) == UNSELECTED
    assert why_not(node(), pod(terms=[NodeSelectorTerm(match_expressions=[zone], match_fields=[name])])) is None
    assert (
        why_not(node(), pod(terms=[NodeSelectorTerm(match_expressions=[disk]), NodeSelectorTerm(match_fields=[name])]))
        is None
    )
    assert why_not(node(), pod(terms=[NodeSelectorTerm()])) == UNSELECTED
