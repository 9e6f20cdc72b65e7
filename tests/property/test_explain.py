"""``gputopo explain`` says what the controller says, and what it says would help is the least that does."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.allocator import Constraint, NoPlaceError, Whole, choose
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.topology.machine import Machine
from tests.effort import examples
from tests.fakes.commands import command_line
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.rules_judge import HOSTNAME, REQUIRED

NODES = {"a": "dgx1-v100", "b": "rtx4090-x8"}
ZONE = "topology.kubernetes.io/zone"
APPS = st.sampled_from(["x", "y"])
PORTS = st.sampled_from([[], [{"containerPort": 80, "hostPort": 80}]])
Object = dict[str, Any]


def places(machine: Machine, free: frozenset[int], request: Whole) -> bool:
    try:
        choose(machine, sorted(free), request)
    except NoPlaceError:
        return False
    return True


def fewest(machine: Machine, free: frozenset[int], request: Whole) -> int | None:
    """Return how many held GPUs must become free for a place, by trying all; None where none would do."""
    held = sorted({gpu.index for gpu in machine.gpus} - free)
    for count in range(len(held) + 1):
        if any(places(machine, free | set(some), request) for some in combinations(held, count)):
            return count
    return None


@st.composite
def holdings(draw: st.DrawFn) -> dict[str, list[frozenset[int]]]:
    """Claims of each node: disjoint sets of its GPUs."""
    found: dict[str, list[frozenset[int]]] = {}
    for node in NODES:
        owner = draw(st.lists(st.integers(0, 3), min_size=8, max_size=8))  # 0: free
        groups = (frozenset(i for i, one in enumerate(owner) if one == number) for number in (1, 2, 3))
        found[node] = [group for group in groups if group]
    return found


@given(
    holdings(),
    st.integers(1, 6),
    st.sampled_from([(), (Constraint.NVLINK,), (Constraint.SAME_NUMA,), (Constraint.SAME_PCIE_SWITCH,)]),
)
@settings(max_examples=examples(40), deadline=None)
def test_what_would_help_is_the_least_that_would(
    held: dict[str, list[frozenset[int]]], gpus: int, required: tuple[Constraint, ...]
) -> None:
    asyncio.run(_check(held, gpus, required))


async def _check(held: dict[str, list[frozenset[int]]], gpus: int, required: tuple[Constraint, ...]) -> None:
    cluster = GpuCluster()
    for node, profile in NODES.items():
        cluster.node(node, profile)
        for number, some in enumerate(held[node]):
            cluster.rival(f"{node}-{number}", node, sorted(some))
    wishes = {"required": ",".join(one.value for one in required)} if required else {}
    cluster.pod("p", gpus, wishes=wishes)
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            found = await shell.data("explain p")
    await cluster.settle()
    request = Whole(containers=(gpus,), required=required)
    least = {
        node: fewest(cluster.machines[node], frozenset(range(8)).difference(*held[node]), request) for node in NODES
    }
    possible = {node: count for node, count in least.items() if count is not None}
    if 0 in possible.values():
        assert cluster.gpus("p") == (found["place"]["node"], found["place"]["gpus"])
        assert found["would_help"] == []
        return
    assert found["reason"] == cluster.note("p", "reason")
    assert {one["node"]: sum(len(o["gpus"]) for o in one["owners"]) for one in found["would_help"]} == possible
    if found["would_help"]:
        for owner in found["would_help"][0]["owners"]:
            cluster.remove(RESOURCE_CLAIMS, owner["claim"], "default")
        await cluster.settle()
        assert cluster.gpus("p")[0] == found["would_help"][0]["node"]


TERMS = st.builds(
    lambda key, app: {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}},
    st.sampled_from([ZONE, HOSTNAME]),
    APPS,
)


@st.composite
def nodes(draw: st.DrawFn) -> list[tuple[Object, int]]:
    """Return nodes as keywords of ``GpuCluster.node``, each with the number of its GPUs that are held."""
    labels = st.sampled_from([{}, {ZONE: "a"}, {ZONE: "b"}])
    taints = st.sampled_from([[], [], [], [{"key": "k", "effect": "NoSchedule"}]])
    changes = st.fixed_dictionaries({"labels": labels, "taints": taints})
    return draw(st.lists(st.tuples(changes, st.sampled_from([0, 4, 8, 8])), min_size=2, max_size=4))


@st.composite
def rules(draw: st.DrawFn) -> Object:
    """Return the fields of a pod's spec with its rules about other pods."""
    affinity = {
        kind: {REQUIRED: [draw(TERMS)]} for kind in ("podAntiAffinity", "podAffinity") if draw(st.integers(0, 2)) == 0
    }
    spreads = [
        draw(TERMS) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"} for _ in range(draw(st.integers(0, 1)))
    ]
    return {"affinity": affinity, "topologySpreadConstraints": spreads}


FOREIGN = st.tuples(st.integers(0, 3), APPS, PORTS, st.sampled_from(["1", "40"]))
KINDS = st.tuples(st.sampled_from([2, 4, 8]), st.sampled_from(["1", "30"]), APPS, PORTS, rules())


@given(nodes(), st.lists(FOREIGN, max_size=5), st.lists(KINDS, min_size=1, max_size=2), st.integers(0, 2))
@settings(max_examples=examples(100), deadline=None)
def test_the_reason_is_the_controllers(
    machines: list[tuple[Object, int]], foreign: list[tuple[int, str, Object, str]], kinds: list[Any], more: int
) -> None:
    asyncio.run(_compare(machines, foreign, [*kinds, *kinds[-1:] * more]))


async def _compare(
    machines: list[tuple[Object, int]], foreign: list[tuple[int, str, Object, str]], kinds: list[Any]
) -> None:
    cluster = GpuCluster()
    for number, (changes, held) in enumerate(machines):
        cluster.node(f"n{number}", **changes)
        cluster.rival(f"r{number}", f"n{number}", range(held))
    for number, (node, app, ports, cpu) in enumerate(foreign):
        metadata = {"name": f"f{number}", "namespace": "default", "labels": {"app": app}}
        container = {"name": "c", "ports": ports, "resources": {"requests": {"cpu": cpu}}}
        spec = {"nodeName": f"n{node % len(machines)}", "containers": [container]}
        cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    wishes = {"gang": "g", "gang-size": str(len(kinds))} if len(kinds) > 1 else {}
    for number, (gpus, cpu, app, ports, spec) in enumerate(kinds):
        pod = cluster.admitted(f"p{number}", gpus, requests={"cpu": cpu}, wishes=wishes, **spec)
        pod["spec"]["containers"][0]["ports"] = ports
        pod["metadata"]["labels"]["app"] = app
        cluster.put(PODS, pod)
    await cluster.settle()
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            if (reason := cluster.note("p0", "reason")) is not None:
                assert (await shell.data("explain p0"))["reason"] == reason
