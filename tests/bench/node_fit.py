"""What it costs to know which nodes a pod fits on: ``python -m tests.bench.node_fit``.

Beside it, in the same run, the plain loop over all nodes with the same answer.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import msgspec

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
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import ask_of
from dradriver.cluster.nodes.pod_resources import request_of
from tests.fakes.control_plane.fit import why_not

_SIZES = (200, 1_000, 5_000)
_TIMES = 200
_ZONES = 12
_ALLOCATABLE = {"cpu": "127", "memory": "2113929216Ki", "ephemeral-storage": "3Ti", "pods": "250", "rdma/hca": "8"}
_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def main() -> int:
    """Print microseconds (median) by number of nodes, as JSON."""
    print(json.dumps({str(size): _measure(size) for size in _SIZES}, indent=2))
    return 0


def _measure(size: int) -> dict[str, float]:
    nodes = [_node(number) for number in range(size)]
    table = NodeTable()
    start = time.perf_counter()
    for node in nodes:
        table.set_node(node.metadata.name, node)
        table.offer(node.metadata.name, True)
    filling = (time.perf_counter() - start) / size * 1e6

    pods = [_pod(number, size) for number in range(_TIMES)]
    asks = [ask_of(pod) for pod in pods]
    requests = [request_of(pod) for pod in pods]
    table.eligible(asks[0])  # makes the columns of the labels that all ask for
    first = _each(lambda i: table.eligible(asks[i]))
    again = _each(lambda i: table.eligible(asks[i]))
    raw = [msgspec.to_builtins(node) for node in nodes], [msgspec.to_builtins(pod) for pod in pods]
    loop = _each(lambda i: [why_not(raw[1][i], node) for node in raw[0]], times=5)
    for i in range(5):
        fit = {table.name(int(row)) for row in table.eligible(asks[i]).nonzero()[0]}
        assert fit == {node["metadata"]["name"] for node in raw[0] if why_not(raw[1][i], node) is None}
        assert fit
    beats = [_node(i * size // _TIMES) for i in range(_TIMES)]
    changes = [_node(i * size // _TIMES, slots=i) for i in range(_TIMES)]
    names = [node.metadata.name for node in beats]
    found = {
        "set_node_new": filling,
        "set_node_heartbeat": _each(lambda i: table.set_node(names[i], beats[i])),
        "set_node_change": _each(lambda i: table.set_node(names[i], changes[i])),
        "take": _each(lambda i: table.take(names[i], requests[i])),
        "give": _each(lambda i: table.give(names[i], requests[i])),
        "ask_of": _each(lambda i: ask_of(pods[i])),
        "eligible_new_class": first,
        "eligible_known_class": again,
        "causes": _each(lambda i: table.causes(asks[i])),
        "loop": loop,
        "loop_to_new_class": loop / first,
        "loop_to_known_class": loop / again,
    }
    return {name: round(value, 1) for name, value in found.items()}


def _each(work: Callable[[int], object], times: int = _TIMES) -> float:
    found = []
    for i in range(times):
        start = time.perf_counter()
        work(i)
        found.append(time.perf_counter() - start)
    return statistics.median(found) * 1e6


def _node(number: int, slots: int = 8) -> Node:
    name = f"gpu-{number:05}"
    labels = {f"feature.node.example.com/cpu-{i}": "true" for i in range(30)} | {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{number % _ZONES}",
        "example.com/slots": str(slots),
    }
    taints = [Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")]
    if number % 10 == 0:
        taints.append(Taint(key="dedicated", value=f"team-{number % 7}", effect="NoSchedule"))
    ready = [Condition(type=kind, status="False") for kind in _CONDITIONS] + [Condition(type="Ready", status="True")]
    # Decoded, as from the API server: no text is one object in two nodes.
    node = Node(
        metadata=Metadata(name=name, labels=labels),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(allocatable=_ALLOCATABLE, conditions=ready),
    )
    return msgspec.json.decode(msgspec.json.encode(node), type=Node)


def _pod(number: int, size: int) -> Pod:
    """Return a pod like no other in selectors and in amounts."""
    terms = [
        NodeSelectorTerm(
            match_expressions=[
                NodeRequirement(
                    key="topology.kubernetes.io/zone", operator="In", values=[f"zone-{z}" for z in range(9)]
                ),
                NodeRequirement(
                    key="kubernetes.io/hostname", operator="NotIn", values=[f"gpu-{number * size // _TIMES:05}"]
                ),
                NodeRequirement(key="example.com/slots", operator="Gt", values=["4"]),
            ]
        )
    ]
    affinity = NodeAffinity(required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=terms))
    tolerations = [
        Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),
        Toleration(key="dedicated", value=f"team-{number % 7}"),
        Toleration(key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute"),
        Toleration(key="node.kubernetes.io/unreachable", operator="Exists", effect="NoExecute"),
    ]
    amounts = {"cpu": f"{8000 + number}m", "memory": "64Gi", "ephemeral-storage": "10Gi", "rdma/hca": "1"}
    return Pod(
        metadata=Metadata(name=f"train-{number}"),
        spec=PodSpec(
            node_selector={"feature.node.example.com/cpu-1": "true"},
            affinity=Affinity(node_affinity=affinity),
            tolerations=tolerations,
            containers=[Container(name="main", resources=ResourceRequirements(requests=amounts))],
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
