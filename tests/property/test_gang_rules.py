"""Gangs whose pods have rules about each other, held against every way to place them, on small clusters."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dradriver.allocator.request import NoPlaceError
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.plan import plan
from dradriver.kube.resources import NODES, PODS
from tests.effort import examples
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.preempting import waiting
from tests.fakes.rules_judge import HOSTNAME, REQUIRED, On, keeps_even, refusal, spreads, terms

Object = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
APPS = st.sampled_from(["x", "y"])
KEYS = st.sampled_from([ZONE, HOSTNAME])
POLICIES = st.sampled_from(
    [{}, {}, {"nodeAffinityPolicy": "Ignore"}, {"nodeTaintsPolicy": "Honor"}, {"nodeTaintsPolicy": "Ignore"}]
)


class Scene(NamedTuple):
    """A small cluster and a gang.

    Attributes:
        nodes: For each node its zone, None for a node without the label, and what it is: ``gpu`` with eight GPUs,
            ``tainted`` with eight GPUs that nobody may use, ``other`` with eight GPUs and another label, or ``cpu``.
        running: Foreign pods that run, and take no GPU: node and label.
        kinds: The kinds of the gang's pods: how many, GPUs, label, and rules as fields of a pod's spec.
    """

    nodes: list[tuple[str | None, str]]
    running: list[tuple[int, str]]
    kinds: list[tuple[int, int, str, Object]]


@st.composite
def rules(draw: st.DrawFn) -> Object:
    """Return required rules of one kind of pods."""
    spec: Object = {}
    affinity: Object = {}

    def rule() -> Object:
        return {"topologyKey": draw(KEYS), "labelSelector": {"matchLabels": {"app": draw(APPS)}}}

    for kind in draw(st.sampled_from([(), ("podAntiAffinity",), ("podAffinity",), ("podAntiAffinity", "podAffinity")])):
        affinity[kind] = {REQUIRED: [rule() for _ in range(draw(st.integers(1, 2)))]}
    if affinity:
        spec["affinity"] = affinity
    if draw(st.booleans()):
        constraint = (
            rule() | {"maxSkew": draw(st.integers(1, 2)), "whenUnsatisfiable": "DoNotSchedule"} | draw(POLICIES)
        )
        spec["topologySpreadConstraints"] = [constraint]
    if draw(st.sampled_from([False, False, True])):
        spec["nodeSelector"] = {"kind": "gpu"}
    if draw(st.sampled_from([False, False, True])):
        spec["ports"] = [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    return spec


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Return a cluster of at most four nodes with GPUs, and a gang of at most four pods."""
    zone = st.sampled_from(["a", "b", "c", None])
    nodes = draw(st.lists(st.tuples(zone, st.just("gpu")), min_size=2, max_size=3))
    nodes += draw(st.lists(st.tuples(zone, st.sampled_from(["gpu", "tainted", "other", "cpu"])), max_size=1))
    running = draw(st.lists(st.tuples(st.integers(0, len(nodes) - 1), APPS), max_size=2))
    kind = st.tuples(st.integers(1, 3), st.sampled_from([4, 8]), APPS, rules())
    kinds = draw(st.lists(kind, min_size=1, max_size=2).filter(lambda kinds: 2 <= sum(k[0] for k in kinds) <= 4))
    return Scene(nodes, running, kinds)


async def cluster_of(scene: Scene) -> tuple[GpuCluster, list[str]]:
    """Return the cluster, and the names of the gang's pods."""
    cluster = GpuCluster()
    for number, (zone, kind) in enumerate(scene.nodes):
        labels = {"kind": "gpu" if kind == "tainted" else kind} | ({} if zone is None else {ZONE: zone})
        taints = [{"key": "k", "effect": "NoSchedule"}] if kind == "tainted" else []
        cluster.node(f"node-{number}", None if kind == "cpu" else "dgx1-v100", labels=labels, taints=taints)
    for number, (node, app) in enumerate(scene.running):
        metadata = {"name": f"running-{number}", "namespace": "default", "labels": {"app": app}}
        spec = {"nodeName": f"node-{node}", "containers": [{"name": "c"}]}
        cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    pods = []
    size = sum(count for count, *_ in scene.kinds)
    for number, (count, gpus, app, spec) in enumerate(scene.kinds):
        for index in range(count):
            name = f"train-{number}-{index}"
            fields = {key: value for key, value in spec.items() if key != "ports"}
            pod = cluster.admitted(name, gpus, wishes={"gang": "train", "gang-size": str(size)}, **fields)
            pod["spec"]["containers"][0]["ports"] = spec.get("ports", [])
            pod["metadata"]["labels"]["app"] = app
            cluster.store.put(PODS, pod)
            pods.append(name)
    cluster.deliver()
    cluster.worker.picture.fleets.catch_up(lambda: False)
    return cluster, pods


def planned(cluster: GpuCluster, pods: Sequence[str]) -> dict[str, Placement] | None:
    """Return the plan of the gang; None if it has none."""
    members = [waiting(cluster, name) for name in pods]
    try:
        places = plan(Snapshot(cluster.worker.picture, "default"), members, GangTerms(None, "train"))
    except NoPlaceError:
        return None
    return {member.key[1]: place for member, place in places.items()}


def runs(cluster: GpuCluster, nodes: Mapping[str, Object]) -> list[On]:
    """Return the pods that run."""
    return [On(pod, nodes[pod["spec"]["nodeName"]]) for pod in cluster.store.all(PODS) if pod["spec"].get("nodeName")]


def accepted(pods: Sequence[On], there: Sequence[On], nodes: Sequence[Object]) -> bool:
    """Return whether the scheduler takes these pods in some order: those without affinity first, then kind by kind."""
    free = [on for on in pods if not terms(on.pod, "podAffinity")]
    kinds: dict[str, list[On]] = {}
    for on in pods:
        if terms(on.pod, "podAffinity"):
            kinds.setdefault(on.pod["metadata"]["name"].rpartition("-")[0], []).append(on)
    for order in itertools.permutations(free):
        for others in itertools.permutations(kinds.values()):
            placed = list(there)
            for on in (*order, *itertools.chain(*others)):
                if refusal(on.pod, on.node, placed, nodes) not in ("", "spread"):
                    break
                placed.append(on)
            else:
                return all(keeps_even(on.pod, on.node, placed, nodes) for on in pods)
    return False


def every_way(pods: Sequence[Object], free: Mapping[str, int], gpus: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the nodes of the pods in each way that has enough GPUs."""
    for nodes in itertools.product(free, repeat=len(pods)):
        used = dict.fromkeys(free, 0)
        for node, count in zip(nodes, gpus, strict=True):
            used[node] += count
        if all(used[node] <= free[node] for node in free):
            yield nodes


@settings(max_examples=examples(60), deadline=None, phases=[Phase.generate, Phase.shrink])
@given(scenes(), st.randoms(use_true_random=False))
def test_a_gang_has_a_plan_if_any_keeps_its_rules(scene: Scene, rng: random.Random) -> None:
    asyncio.run(check(scene, rng))


async def check(scene: Scene, rng: random.Random) -> None:
    """Check the plan of a scene."""
    cluster, names = await cluster_of(scene)
    nodes = {node["metadata"]["name"]: node for node in cluster.store.all(NODES)}
    pods = {name: cluster.get_pod(name) for name in names}
    there, places = runs(cluster, nodes), planned(cluster, names)
    if places is not None:
        placed = [On(pods[name], nodes[place.node]) for name, place in places.items()]
        assert accepted(placed, there, list(nodes.values())), "the plan keeps all rules"
        for _ in range(6):
            order = list(places)
            rng.shuffle(order)
            order.sort(key=lambda name: bool(terms(pods[name], "podAffinity")))
            done = list(there)
            for name in order:
                usable = [nodes[node] for node in places[name].hostnames]
                answer = refusal(pods[name], nodes[places[name].node], done, list(nodes.values()), usable)
                # Pods wait for others of the plan: the first one with affinity is elsewhere, or, if the rule does not
                # compare the pod's own nodes alone, another domain has too few pods yet.
                waits = [rule for rule in spreads(pods[name]) if rule.get("nodeAffinityPolicy") == "Ignore"]
                assert answer in ("", "affinity", *(["spread"] if waits else [])), name
                done.append(On(pods[name], nodes[places[name].node]))
        return
    free = {f"node-{number}": 8 for number, (_, kind) in enumerate(scene.nodes) if kind in ("gpu", "other")}
    gpus = [each for count, each, *_ in scene.kinds for _ in range(count)]
    for way in every_way(list(pods.values()), free, gpus):
        placed = [On(pod, nodes[node]) for pod, node in zip(pods.values(), way, strict=True)]
        assert not accepted(placed, there, list(nodes.values())), way
