"""Whatever nodes and pods there are: the arrays say of every node what the plain rules say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from dradriver.api.base.objects import Condition, Metadata, Node, NodeSpec, NodeStatus, Taint
from dradriver.api.base.pods import (
    Affinity,
    Container,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    ResourceRequirements,
    Toleration,
)
from dradriver.cluster.nodes import labels, node_table, selector_classes
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import Ask, ask_of
from dradriver.cluster.nodes.pod_resources import Amounts, amounts, request_of
from tests.effort import examples
from tests.fakes.control_plane import fit

NAMES = ("a", "b", "c", "d", "7")
CORDON = "node.kubernetes.io/unschedulable"
KEYS = ("zone", "zone", "zone", "slots", "")
VALUES = ("x", "x", "y", "z", "w", "7", "+8", "-3", "007", "9223372036854775808", "")
RESOURCES = ("cpu", "memory", "pods", "rdma/hca", "example.com/fpga")
AMOUNTS = ("0", "1", "2", "3", "500m", "1e30", "many", "-1")

READY = [Condition(type="Ready", status="True")]

keys, values = st.sampled_from(KEYS), st.sampled_from(VALUES)
effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))
taints = st.builds(
    Taint, key=st.sampled_from(("k", "j", CORDON)), value=st.sampled_from(("v", "w", "")), effect=effects
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(("k", "j", CORDON, "", "other")),
    operator=st.sampled_from(("Exists", "Exists", "Equal", "", "Gt")),
    value=st.sampled_from(("v", "w", "")),
    effect=st.sampled_from(("", "", "NoSchedule", "NoExecute", "PreferNoSchedule")),
)
operators = st.sampled_from(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"))
expressions = st.builds(NodeRequirement, key=keys, operator=operators, values=st.lists(values, max_size=5))
fields = st.builds(
    NodeRequirement,
    key=st.sampled_from(("metadata.name", "metadata.name", "metadata.uid")),
    operator=operators,
    values=st.lists(st.sampled_from(NAMES), max_size=2),
)
terms = st.builds(
    NodeSelectorTerm, match_expressions=st.lists(expressions, max_size=2), match_fields=st.lists(fields, max_size=1)
)
quantities = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(AMOUNTS), max_size=3)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A node that is mostly fit for use."""
    conditions = [Condition(type="Ready", status=draw(st.sampled_from(("True", "True", "True", "False"))))]
    given = {"cpu": "3", "memory": "3", "pods": "3"} | draw(quantities)
    return Node(
        metadata=Metadata(name="", labels=draw(st.dictionaries(keys, values, max_size=3))),
        spec=NodeSpec(
            taints=draw(st.lists(taints, max_size=2)), unschedulable=draw(st.sampled_from((False, False, True)))
        ),
        status=NodeStatus(
            allocatable={key: text for key, text in given.items() if draw(st.integers(0, 5))}, conditions=conditions
        ),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod with some of everything that keeps it off nodes."""
    required = NodeSelector(node_selector_terms=draw(st.lists(terms, max_size=2)))
    affinity = NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    resources = ResourceRequirements(requests=draw(quantities))
    return Pod(
        metadata=Metadata(name="p"),
        spec=PodSpec(
            node_selector=draw(st.sampled_from(({}, {}, {draw(keys): draw(values)}))),
            affinity=draw(st.sampled_from((None, Affinity(node_affinity=affinity)))),
            tolerations=draw(st.lists(tolerations, max_size=3)),
            containers=[Container(name="main", resources=resources)],
        ),
    )


class Plain:
    """The same picture as objects, asked one by one."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.offered: set[str] = set()
        self.pods: list[tuple[str, Amounts]] = []
        self.claimable: frozenset[str] = frozenset()

    def causes(self, pod: Pod, besides: tuple[str, Amounts] | None = None) -> dict[str, str | None]:
        return {name: self._cause(name, pod, besides) for name in sorted(self.offered)}

    def fit(self, pod: Pod) -> set[str]:
        return {name for name, cause in self.causes(pod).items() if cause is None}

    def _cause(self, name: str, pod: Pod, besides: tuple[str, Amounts] | None) -> str | None:
        node = self.nodes.get(name)
        if node is None:
            return node_table.GONE
        return fit.why_not(to_builtins(pod), to_builtins(node)) or self._lacking(node, pod, besides)

    def _lacking(self, node: Node, pod: Pod, besides: tuple[str, Amounts] | None) -> str | None:
        name, has = node.metadata.name, amounts(node.status.allocatable)
        for resource, amount in sorted(request_of(pod).items()):
            left = has.get(resource, 0) - sum(taken.get(resource, 0) for where, taken in self.pods if where == name)
            if besides is not None and besides[0] == name:
                left += besides[1].get(resource, 0)
            delegated = resource in self.claimable and not has.get(resource, 0)
            if amount > left and amount > 0 and not delegated:
                return f"too little {resource}"
        return None


class Both:
    """The table and the plain picture, changed together."""

    def __init__(self, probes: list[Pod]) -> None:
        self.table = NodeTable()
        self.plain = Plain()
        self.probes = probes

    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        match data.draw(st.sampled_from(("node", "node", "node", "gone", "offer", "take", "give", "claimable"))):
            case "node":
                self.set_node(name, data.draw(nodes()))
            case "gone":
                self.plain.nodes.pop(name, None)
                with self.watched():
                    assert not self.table.set_node(name, None)
            case "offer":
                offers = data.draw(st.sampled_from((True, True, False)))
                with self.watched():
                    self.table.offer(name, offers)
                    (self.plain.offered.add if offers else self.plain.offered.discard)(name)
            case "take":
                request = amounts(data.draw(quantities))
                self.plain.pods.append((name, request))
                self.table.take(name, request)
            case "give" if self.plain.pods:
                with self.watched():
                    place = data.draw(st.integers(0, len(self.plain.pods) - 1))
                    self.table.give(*self.plain.pods.pop(place))
            case "claimable":
                with self.watched():
                    self.plain.claimable = data.draw(st.frozensets(st.sampled_from(RESOURCES[3:])))
                    self.table.claimable = self.plain.claimable

    def set_node(self, name: str, node: Node) -> None:
        node = Node(metadata=Metadata(name=name, labels=node.metadata.labels), spec=node.spec, status=node.status)
        clock = self.table.clock
        with self.watched():
            self.plain.nodes[name] = node
            assert self.table.set_node(name, node) == (self.table.clock > clock)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hold the clock against whether a pod fits on a node where it did not before."""
        clock, before = self.table.clock, [self.plain.fit(pod) for pod in self.probes]
        yield
        stamped = {self.table.name(int(row)) for row in (self.table.freed > clock).nonzero()[0]}
        assert (self.table.clock > clock) == bool(stamped)
        assert stamped <= self.plain.offered & self.plain.nodes.keys()
        for pod, fitted in zip(self.probes, before, strict=True):
            assert self.plain.fit(pod) - fitted <= stamped

    def agree(self, pod: Pod, besides: tuple[str, Amounts] | None) -> None:
        ask, causes = ask_of(pod), self.plain.causes(pod, besides)
        freed = {} if besides is None else dict([besides])
        found = self.table.eligible(ask, freed)
        assert found.shape == self.table.freed.shape == (self.table.rows,)
        names = [self.table.name(int(row)) for row in found.nonzero()[0]]
        assert sorted(names) == [name for name, cause in causes.items() if cause is None]
        assert all(self.table.row(name) == row for name, row in zip(names, found.nonzero()[0], strict=True))
        assert self.table.causes(ask, freed) == tuple(sorted({c for c in causes.values() if c is not None}))


@settings(max_examples=examples(60))
@given(st.data())
def test_the_arrays_say_what_the_rules_say(data: st.DataObject) -> None:
    with (
        patch.object(selector_classes, "_MOST_MASKS", 3),
        patch.object(labels, "_MOST_COLUMNS", 2),
        patch.object(node_table, "_MIN_ROWS", 2),
    ):
        probes = data.draw(st.lists(pods(), min_size=4, max_size=4))
        both = Both(probes)
        for name in NAMES[:3]:
            both.table.offer(name, True)
            both.plain.offered.add(name)
            both.set_node(name, data.draw(nodes()))
        for _ in range(data.draw(st.integers(4, 12))):
            both.step(data)
            for pod in probes:
                both.agree(pod, data.draw(st.sampled_from([None, *both.plain.pods])))


@settings(max_examples=examples(60))
@given(st.data())
def test_labels_are_selected_as_the_rules_say_and_stay_so_when_they_change(data: st.DataObject) -> None:
    names = [f"n{number}" for number in range(8)]
    some = st.lists(expressions, min_size=1, max_size=2)
    wishes = [_wishing(data.draw(some)) for _ in range(8)]
    nodes_ = NodeTable()
    for _ in range(3):
        for name in names:
            given = data.draw(st.dictionaries(keys, values, max_size=3))
            node = Node(metadata=Metadata(name=name, labels=given), status=NodeStatus(conditions=READY))
            nodes_.set_node(name, node)
            nodes_.offer(name, True)
            for pod in wishes:
                ask = Ask((), ask_of(pod).key)
                eligible = bool(nodes_.eligible(ask)[nodes_.row(name)])
                assert eligible == fit.selected(to_builtins(pod), to_builtins(node)), node


def _wishing(wanted: list[NodeRequirement]) -> Pod:
    required = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=wanted)])
    affinity = NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    return Pod(metadata=Metadata(name="p"), spec=PodSpec(affinity=Affinity(node_affinity=affinity)))
