"""Rules about other pods leave the nodes that the scheduler's own filters leave, on small clusters of any shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, Node, NodeSpec, NodeStatus, Taint
from dradriver.api.base.pods import Pod
from dradriver.cluster.nodes.expressions import holds
from dradriver.cluster.nodes.host_ports import ALL_ADDRESSES
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.cluster.pods.neighbours import Neighbours
from dradriver.cluster.pods.pod_rules import NAMESPACE_NAME, rules_of
from dradriver.cluster.records import pod_records
from dradriver.cluster.records.pod_records import Foreign
from tests.effort import examples

KEYS = ("host", "zone")
TAINTED = "tainted"  # nodes with this label have a taint
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


def spread(
    key: str, selector: Object | None, skew: int, least: int | None, affinity: str | None, taints: str | None
) -> Object:
    return {
        "topologyKey": key, "labelSelector": selector, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule",
        "minDomains": least, "nodeAffinityPolicy": affinity, "nodeTaintsPolicy": taints,
    }  # fmt: skip


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
policies = st.sampled_from([None, "Honor", "Ignore"])
spreads = st.builds(
    spread, st.sampled_from(KEYS), selectors, st.integers(1, 2), st.sampled_from([None, 1, 2, 3]), policies, policies
)
addresses = st.sampled_from(["", ALL_ADDRESSES, "10.0.0.1", "10.0.0.2"])
ports = st.builds(port, st.sampled_from([80, 81]), st.sampled_from(["TCP", "UDP"]), addresses)
places = {"zone": st.sampled_from(["p", "q"]), "host": st.sampled_from(["h0", "h1", "h2"])}
more = {"pool": st.just("gpu"), TAINTED: st.just("yes")}
nodes = st.lists(st.fixed_dictionaries({}, optional=places | more), min_size=1, max_size=4)


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
        "topologySpreadConstraints": draw(st.lists(spreads, max_size=2)),
        "nodeSelector": draw(st.sampled_from([{}, {"pool": "gpu"}])),
        "tolerations": draw(st.sampled_from([[], [{"key": "k", "operator": "Exists"}]])),
    }
    return cluster, others, {"labels": draw(labels), "spec": spec}


@given(clusters())
@settings(max_examples=examples(300), deadline=None)
def test_the_nodes_that_are_left_are_the_schedulers(made: tuple[list[dict[str, str]], list[Other], Object]) -> None:
    cluster, others, comes = made
    table = NodeTable()
    for number, of in enumerate(cluster):
        ready = NodeStatus(allocatable={}, conditions=[Condition(type="Ready", status="True")])
        spec = NodeSpec(taints=[Taint(key="k", effect="NoSchedule")] if TAINTED in of else [])
        table.set_node(f"n{number}", Node(metadata=Metadata(name=f"n{number}", labels=of), spec=spec, status=ready))
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
    everywhere = table.open(ask_of(pod))
    left = everywhere if rules is None else neighbours.allowed(("a", "comes"), rules, everywhere)
    usable = [number for number, of in enumerate(cluster) if is_usable(comes, of)]
    expected = {f"n{number}" for number in usable if feasible(comes, others, cluster, number)}
    assert {table.name(int(row)) for row in left.nonzero()[0]} == expected
    if rules is not None:
        assert bool(neighbours.causes(("a", "comes"), rules, everywhere)) == (len(expected) < len(usable))

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
    expected = {f"n{number}" for number in usable if feasible(comes, [], cluster, number)}
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
    """Return what the filters of NodePorts, InterPodAffinity and PodTopologySpread (Kubernetes 1.35) say of a node."""
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

    # calPreFilterState, minMatchNum and Filter of PodTopologySpread
    constraints = comes["spec"]["topologySpreadConstraints"]
    for rule in constraints:
        if rule["labelSelector"] is None:
            continue
        if any(each["topologyKey"] not in here for each in known(constraints)):
            return False
        counts = domains(comes, others, cluster, rule)
        least = 0 if len(counts) < (rule["minDomains"] or 1) else min(counts.values())
        own = is_counted(rule, "a", comes["labels"])
        if counts[here[rule["topologyKey"]]] + own - least > rule["maxSkew"]:
            return False

    # satisfyPodAntiAffinity
    for term in far:
        for other in others:
            place = at[int(other.node[1:])].get(term["topologyKey"])
            is_same = place is not None and here.get(term["topologyKey"]) == place
            if is_same and matches(term, other.namespace, other.labels):
                return False

    # satisfyPodAffinity
    near_places = {
        (term["topologyKey"], at[int(other.node[1:])][term["topologyKey"]])
        for other in others
        if all(matches(each, other.namespace, other.labels) for each in near)
        for term in near
        if term["topologyKey"] in at[int(other.node[1:])]
    }
    if any(term["topologyKey"] not in here for term in near):
        return False
    if all((term["topologyKey"], here[term["topologyKey"]]) in near_places for term in near):
        return True
    return not near_places and all(matches(term, "a", comes["labels"]) for term in near)


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


def is_usable(comes: Object, of: Mapping[str, str]) -> bool:
    """Return whether a pod may run on a node with these labels, whichever pods there are."""
    return is_selected(comes, of) and is_tolerated(comes, of)


def is_selected(comes: Object, of: Mapping[str, str]) -> bool:
    return bool(comes["spec"]["nodeSelector"].items() <= of.items())


def is_tolerated(comes: Object, of: Mapping[str, str]) -> bool:
    return TAINTED not in of or bool(comes["spec"]["tolerations"])


def known(constraints: list[Object]) -> list[Object]:
    """Return the constraints that select pods, which the driver evaluates."""
    return [each for each in constraints if each["labelSelector"] is not None]


def domains(comes: Object, others: list[Other], cluster: list[dict[str, str]], rule: Object) -> dict[str, int]:
    """Return the domains that a spread constraint compares, with the pods that it counts (``calPreFilterState``)."""
    spec, counts = comes["spec"], dict[str, int]()
    for number, of in enumerate(cluster):
        if any(each["topologyKey"] not in of for each in known(spec["topologySpreadConstraints"])):
            continue
        if rule["nodeAffinityPolicy"] != "Ignore" and not is_selected(comes, of):
            continue
        if rule["nodeTaintsPolicy"] == "Honor" and not is_tolerated(comes, of):
            continue
        pods = [other for other in others if other.node == f"n{number}"]
        counts.setdefault(of[rule["topologyKey"]], 0)
        counts[of[rule["topologyKey"]]] += sum(is_counted(rule, other.namespace, other.labels) for other in pods)
    return counts


def is_counted(rule: Object, namespace: str, labels: Mapping[str, str]) -> bool:
    """Return whether a spread constraint counts a pod. An empty selector counts none, as the scheduler reads it."""
    selector = rule["labelSelector"]
    is_empty = not (selector["matchLabels"] or selector["matchExpressions"])
    return not is_empty and matches(rule | {"namespaces": ["a"]}, namespace, labels)
