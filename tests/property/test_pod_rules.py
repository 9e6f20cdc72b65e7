"""Rules about other pods leave the nodes that the scheduler's own filters leave, on small clusters of any shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, Node, NodeStatus
from dradriver.api.base.pods import Pod
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.host_ports import ALL_ADDRESSES
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.neighbours import Neighbours
from dradriver.cluster.pods.pod_rules import NAMESPACE_NAME, rules_of
from dradriver.cluster.records import pod_records
from dradriver.cluster.records.pod_records import Foreign
from tests.effort import examples

KEYS = ("host", "zone")
APPS = ("x", "y")
SPACES = ("a", "b")
Object = dict[str, Any]


class Other(NamedTuple):
    """A pod that is there: whether it is ours, its namespace, its labels, its node and its host ports."""

    ours: bool
    namespace: str
    labels: Mapping[str, str]
    node: str
    ports: tuple[Object, ...]


def expression(key: str, operator: str, values: list[str]) -> Object:
    return {"key": key, "operator": operator} | ({"values": values} if operator in ("In", "NotIn") else {})


def selector(pairs: Object, expressions: list[Object]) -> Object:
    return {"matchLabels": pairs, "matchExpressions": expressions}


def term(key: str, selector: Object | None, where: Object) -> Object:
    return {"topologyKey": key, "labelSelector": selector} | where


def port(number: int, protocol: str, address: str) -> Object:
    return {"hostPort": number, "protocol": protocol, "hostIP": address}


keys, spaces = st.sampled_from(["app", "tier"]), st.sampled_from(SPACES)
labels = st.dictionaries(keys, st.sampled_from(APPS))
operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])
expressions = st.builds(expression, keys, operators, st.lists(st.sampled_from(APPS), min_size=1, max_size=2))
selectors = st.one_of(st.none(), st.builds(selector, labels, st.lists(expressions, max_size=1)))
namespaces = st.one_of(
    st.just({}),
    st.builds(lambda chosen: {"namespaces": sorted(chosen)}, st.sets(spaces, min_size=1)),
    st.just({"namespaceSelector": {}}),
    st.builds(lambda name: {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}}, spaces),
)
terms = st.builds(term, st.sampled_from(KEYS), selectors, namespaces)
addresses = st.sampled_from(["", ALL_ADDRESSES, "10.0.0.1", "10.0.0.2"])
ports = st.builds(port, st.sampled_from([80, 81]), st.sampled_from(["TCP", "UDP"]), addresses)
places = {"zone": st.sampled_from(["p", "q"]), "host": st.sampled_from(["h0", "h1", "h2"])}
nodes = st.lists(st.fixed_dictionaries({}, optional=places), min_size=1, max_size=4)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[dict[str, str]], list[Other], Object]:
    """Return the labels of nodes, the pods that are there, and the spec and labels of one that comes."""
    cluster = draw(nodes)
    others = draw(
        st.lists(
            st.builds(
                Other, st.booleans(), st.sampled_from(SPACES), labels,
                st.sampled_from([f"n{number}" for number in range(len(cluster))]),
                st.lists(ports, max_size=1).map(tuple),
            ),
            max_size=5,
        )
    )  # fmt: skip
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = {
        "affinity": {
            "podAffinity": {required: draw(st.lists(terms, max_size=2))},
            "podAntiAffinity": {required: draw(st.lists(terms, max_size=2))},
        },
        "containers": [{"name": "c", "ports": draw(st.lists(ports, max_size=2))}],
    }
    return cluster, others, {"labels": draw(labels), "spec": spec}


@given(clusters())
@settings(max_examples=examples(300), deadline=None)
def test_the_nodes_that_are_left_are_the_schedulers(made: tuple[list[dict[str, str]], list[Other], Object]) -> None:
    cluster, others, comes = made
    table = NodeTable()
    for number, of in enumerate(cluster):
        ready = NodeStatus(allocatable={}, conditions=[Condition(type="Ready", status="True")])
        table.set_node(f"n{number}", Node(metadata=Metadata(name=f"n{number}", labels=of), status=ready))
        table.offer(f"n{number}", True)
    pods: dict[tuple[str, str], Pod] = {}
    neighbours = Neighbours(table, pods, lambda key: pods[key].spec.node_name or None)
    for number, other in enumerate(others):
        record = read(other, f"other-{number}")
        if isinstance(record, Foreign):
            neighbours.foreign_changed(None, record)
        else:
            pods[other.namespace, f"other-{number}"] = record
            neighbours.pod_changed((other.namespace, f"other-{number}"), record)
    pod = ours("comes", "a", comes["labels"], comes["spec"])
    pods["a", "comes"] = pod
    neighbours.pod_changed(("a", "comes"), pod)

    rules = rules_of(pod)
    everywhere = table.named(table.names())
    left = everywhere if rules is None else neighbours.allowed(("a", "comes"), rules, everywhere)
    expected = {f"n{number}" for number in range(len(cluster)) if feasible(comes, others, cluster, number)}
    assert {table.name(int(row)) for row in left.nonzero()[0]} == expected
    if rules is not None:
        assert bool(neighbours.causes(("a", "comes"), rules, everywhere)) == (len(expected) < len(cluster))

    # All pods go: nothing is left of them.
    for number, other in enumerate(others):
        record = read(other, f"other-{number}")
        if isinstance(record, Foreign):
            neighbours.foreign_changed(record, None)
        else:
            neighbours.pod_changed((other.namespace, f"other-{number}"), None)
            del pods[other.namespace, f"other-{number}"]
    assert neighbours.foreign.is_equal(Neighbours(table, {}, lambda _: None).foreign)
    empty = everywhere if rules is None else neighbours.allowed(("a", "comes"), rules, everywhere)
    expected = {f"n{number}" for number in range(len(cluster)) if feasible(comes, [], cluster, number)}
    assert {table.name(int(row)) for row in empty.nonzero()[0]} == expected


def ours(name: str, namespace: str, labels: Mapping[str, str], spec: Object) -> Pod:
    read = as_read(name, namespace, {**labels, names.LABEL: names.LABEL_PLACED}, spec)
    assert isinstance(read, Pod)
    return read


def read(other: Other, name: str) -> Pod | Foreign:
    spec = {"nodeName": other.node, "containers": [{"name": "c", "ports": other.ports}]}
    if other.ours:
        return ours(name, other.namespace, other.labels, spec)
    foreign = as_read(name, other.namespace, other.labels, spec)
    assert isinstance(foreign, Foreign)
    return foreign


def as_read(name: str, namespace: str, labels: Mapping[str, str], spec: Object) -> Pod | Foreign | None:
    sent = {"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels}, "spec": spec}
    return pod_records.read(msgspec.Raw(json.dumps(sent).encode()))


def feasible(comes: Object, others: list[Other], cluster: list[dict[str, str]], number: int) -> bool:
    """Return what the filters of NodePorts and InterPodAffinity (Kubernetes 1.35) say of a node."""
    at = dict(enumerate(cluster))
    here, affinity = at[number], comes["spec"]["affinity"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near, far = affinity["podAffinity"][required], affinity["podAntiAffinity"][required]

    # fitsPorts
    used = [port for other in others if other.node == f"n{number}" for port in other.ports]
    for port in comes["spec"]["containers"][0]["ports"]:
        for taken in used:
            addresses = [each["hostIP"] or "0.0.0.0" for each in (port, taken)]
            same = port["hostPort"] == taken["hostPort"] and port["protocol"] == taken["protocol"]
            if same and (addresses[0] == addresses[1] or "0.0.0.0" in addresses):
                return False

    # satisfyPodAntiAffinity
    for term in far:
        for other in others:
            place = at[int(other.node[1:])].get(term["topologyKey"])
            is_same = place is not None and here.get(term["topologyKey"]) == place
            if is_same and matches(term, other.namespace, other.labels):
                return False

    # satisfyPodAffinity
    counts = {
        (term["topologyKey"], at[int(other.node[1:])][term["topologyKey"]])
        for other in others
        if all(matches(each, other.namespace, other.labels) for each in near)
        for term in near
        if term["topologyKey"] in at[int(other.node[1:])]
    }
    if any(term["topologyKey"] not in here for term in near):
        return False
    if all((term["topologyKey"], here[term["topologyKey"]]) in counts for term in near):
        return True
    return not counts and all(matches(term, "a", comes["labels"]) for term in near)


def matches(term: Object, namespace: str, labels: Mapping[str, str]) -> bool:
    """Return what ``AffinityTerm.Matches`` says, with the namespaces that the selector selects merged in."""
    spaces = set(term.get("namespaces", ()))
    if (selector := term.get("namespaceSelector")) is not None:
        wanted = selector.get("matchLabels", {}).get(NAMESPACE_NAME)
        spaces |= {wanted} if wanted else set(SPACES)
    elif not spaces:
        spaces = {"a"}
    selector = term["labelSelector"]
    if namespace not in spaces or selector is None:
        return False
    pairs = all(labels.get(key) == value for key, value in selector["matchLabels"].items())
    return pairs and all(
        holds(labels.get(each["key"]), each["operator"], each.get("values", ()))
        for each in selector["matchExpressions"]
    )
