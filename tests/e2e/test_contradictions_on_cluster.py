"""Eight situations on a real cluster: annotation, Events, commands and metrics do not contradict each other.

The table in tests/unit/cli/test_contradictions.py has more situations, on a cluster in memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from dradriver.api.base import names
from dradriver.cli.main import main
from dradriver.cluster.derived.gpu_states import STATES
from tests import deploy
from tests.cluster import Cluster
from tests.cluster.settings import minor_of
from tests.e2e.gangs import job, members
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.parts import leader, no_agent
from tests.e2e.test_node_health import gputopo as simulate

CAPPED: Final = "t-told-capped"
ANY: Final = {names.POLICY: "best-effort"}
_STATE: Final = re.compile(r'^gpu_topology_gpus\{.*state="(\w+)".*\} (\S+)$', re.MULTILINE)
pytestmark = pytest.mark.chart(
    f"policies.tenants.capped.namespaces[0]={CAPPED}",
    "policies.tenants.capped.cap[0].gpus=4",
)


@pytest.fixture
def capped(driver: Cluster) -> Iterator[Namespace]:
    """The namespace of the tenant with a cap."""
    driver.kubectl("create", "namespace", CAPPED)
    yield Namespace(driver, CAPPED)
    driver.kubectl("delete", "namespace", CAPPED, "--timeout=120s")


@pytest.fixture
def reserves_soon(driver: Cluster) -> Iterator[None]:
    """Reserve GPUs after three seconds; ``helm --set`` can only write whole minutes."""
    name = f"{deploy.RELEASE}-policies"
    text = driver.api.object("configmap", name, namespace=deploy.NAMESPACE)["data"]["policies.yaml"]

    def become(text: str) -> None:
        patch = json.dumps({"data": {"policies.yaml": text}})
        driver.kubectl("-n", deploy.NAMESPACE, "patch", "configmap", name, "--type=merge", f"--patch={patch}")

    policies = yaml.safe_load(text)
    policies.setdefault("queue", {}).setdefault("reservation", {})["afterMinutes"] = 0.05
    become(yaml.safe_dump(policies))
    yield
    become(text)


def data(cluster: Cluster, *commands: str) -> list[Any]:
    """Return what commands print as JSON. They run in this process, which is faster."""
    found = []
    for command in commands:
        line = [*command.split(), "-o", "json", "--kubeconfig", str(cluster.kubeconfig)]
        done = CliRunner().invoke(main, line)
        assert done.stdout, done.stderr
        found.append(json.loads(done.stdout))
    return found


def metric(cluster: Cluster) -> Counter[str]:
    """Return the number of GPUs in each state, by the metrics of the leading controller."""
    path = f"/api/v1/namespaces/{deploy.NAMESPACE}/pods/{leader(cluster)}:8082/proxy/metrics"
    counted: Counter[str] = Counter()
    for state, value in _STATE.findall(cluster.kubectl("get", "--raw", path).stdout):
        counted[state] += int(float(value))
    return +counted


def contradictions(waiting: dict[tuple[Namespace, str], str]) -> list[str]:
    """Return how the tools contradict each other about pods that wait, each for a reason with this text."""
    cluster = next(iter(waiting))[0].cluster
    listed, queue = data(cluster, "explain -A", "queue")
    explained = data(cluster, *(f"explain {name} -n {namespace.name}" for namespace, name in waiting))
    listed_of = {(one["namespace"], one["pod"]): one for one in listed}
    queued = {one["name"]: one for one in queue}
    found: list[str] = []
    for ((namespace, name), text), now in zip(waiting.items(), explained, strict=True):
        annotation = namespace.annotation(name, names.REASON) or ""
        events = [one["message"] for one in namespace.list("events") if one["involvedObject"]["name"] == name]
        turn = now["queue"] or {"reserved": ""}
        row = listed_of.get((namespace.name, name), {})
        said = {
            "annotation": annotation,
            "Events": annotation if annotation in events else str(events),
            "explain": f"{now['reason']} {turn['reserved']}",
            "explain, recorded": str(now["recorded_reason"]),
            "explain -A": str(row.get("recorded_reason")),
        }
        if (key := f"{namespace.name}/{name}") in queued:
            said["queue"] = str(queued[key]["reason"])
        found += [f"{name}: {tool} does not say {text!r}: {words}" for tool, words in said.items() if text not in words]
        if {now["state"], row.get("state")} != {"waits"}:
            found.append(f"{name}: its state is {now['state']}, and {row.get('state')} in the list")
    return found


def states(cluster: Cluster, **expected: dict[str, int]) -> list[str]:
    """Return how topo, free and the metrics contradict each other about GPUs, and about those that are expected."""
    topo, free = data(cluster, "topo --cluster", "free")
    counted = metric(cluster)
    of_node = {node["node"]: Counter(gpu["state"] for gpu in node["gpus"]) for node in topo if "agent" not in node}
    total = sum(of_node.values(), Counter[str]())
    found = [
        f"{name}: {of_node.get(name)}, and not {few}"
        for name, few in expected.items()
        if {state: of_node.get(name, Counter[str]())[state] for state in few} != few
    ]
    if {state: total[state] for state in STATES} != {state: counted[state] for state in STATES}:
        found.append(f"topo: {total}, metrics: {counted}")
    if free["free"] + free.get("for_others", 0) != total["free"] or free.get("tentative", 0) != total["tentative"]:
        found.append(f"topo: {total}, free: {free}")
    return found


@pytest.mark.usefixtures("reserves_soon")
def test_no_tool_contradicts_another(driver: Cluster, namespace: Namespace, capped: Namespace) -> None:
    if minor_of(driver.version) < "1.36":
        pytest.skip("the API server keeps taints of devices from Kubernetes 1.36 on")
    # 1. Pods that run: the users of GPUs that others wait for.
    namespace.apply(
        pod("short", gpus=4, words=ANY | {names.MAX_DURATION: "600s"}, node="node-a"),
        pod("worker", gpus=1, words=ANY, node="node-b"),
    )
    namespace.wait_running("short", "worker")

    # 2. Reserved GPUs, a cap, a gang that never fits, an unhealthy GPU, a suspended owner, another scheduler.
    used = namespace.annotation("worker", names.ALLOCATED)
    (node,) = [one for one in data(driver, "topo --cluster")[0] if one["node"] == "node-b"]
    faulty = next(gpu["index"] for gpu in node["gpus"] if gpu["uuid"] != used)
    simulate(driver.nodes["node-b"], "fail", f"gpu-{faulty}", "--nvlink", "0")
    try:
        namespace.apply(pod("patient", gpus=8, words=ANY, node="node-a"))
        capped.apply(pod("beyond", gpus=5, words=ANY, node="node-a"))
        namespace.apply(*members("wide", pods=3, gpus=8), job("paused", pods=1, gpus=8, words=ANY))
        waiting = {
            (namespace, "patient"): "are reserved for this workload",
            (capped, "beyond"): 'tenant "capped" may use 4 GPUs, this pod requests 5',
            (namespace, "wide-0"): "Waiting for 3 pods with 8 GPUs each: this cluster has no place for all of them",
        }
        eventually("GPUs are reserved", lambda: "reserved" in (namespace.annotation("patient", names.REASON) or ""))
        eventually("the GPU is unhealthy", lambda: metric(driver)["unhealthy"])
        other = pod("elsewhere", gpus=1, words=ANY, node="node-b")
        other["spec"]["schedulerName"] = "example-scheduler"
        namespace.apply(
            pod("hasty", gpus=1, words=ANY, node="node-a"), pod("broken", gpus=8, words=ANY, node="node-b"), other
        )
        namespace.kubectl("patch", "job", "paused", "--patch", '{"spec": {"suspend": true}}')
        waiting |= {
            (namespace, "hasty"): "reserved for a workload that has waited longer",
            (namespace, "broken"): "Unhealthy GPUs are left out",
        }
        eventually("all tools say the same", lambda: not contradictions(waiting), why=lambda: contradictions(waiting))
        b_states = {"allocated": 1, "tentative": 1, "unhealthy": 1}
        expected = {"node-a": {"allocated": 4, "reserved": 4}, "node-b": b_states}
        eventually("so they do of GPUs", lambda: not states(driver, **expected), why=lambda: states(driver, **expected))
        (listed,) = data(driver, "explain -A")
        pods = [row["pod"] for row in listed if row["namespace"] == namespace.name]
        assert not [name for name in pods if name.startswith("paused")], "the pod of a suspended Job is deleted"
    finally:
        simulate(driver.nodes["node-b"], "heal")

    # 3. A node that is drained.
    driver.kubectl("cordon", "node-b")
    try:
        namespace.apply(pod("drained", gpus=1, words=ANY, node="node-b"))
        waiting = {(namespace, "drained"): "cordoned"}
        eventually("all say that it is", lambda: not contradictions(waiting), why=lambda: contradictions(waiting))
        unavailable = {"node-b": {"allocated": 1, "free": 0}}
        eventually("none is free", lambda: not states(driver, **unavailable), why=lambda: states(driver, **unavailable))
    finally:
        driver.kubectl("uncordon", "node-b")

    # 4. A node whose agent is gone while a pod uses its GPUs.
    with no_agent(driver, "node-b"):
        driver.kubectl("delete", "resourceslices", "--field-selector=spec.nodeName=node-b")
        namespace.apply(pod("orphan", gpus=1, words=ANY, node="node-b"))
        waiting = {(namespace, "orphan"): "No node with GPUs can run this pod"}
        eventually("all say that it is", lambda: not contradictions(waiting), why=lambda: contradictions(waiting))
        topo, free, findings, health = data(driver, "topo --cluster", "free", "verify", "health")
        assert [node["node"] for node in topo if node.get("agent") == "gone"] == free["agents_gone"] == ["node-b"]
        assert [one["message"].split(":")[0] for one in findings["findings"] if one["check"] == "agents"] == ["node-b"]
        assert "node-b" in [one["node"] for one in health["agents"]]
        assert not health["healthy"]
