"""MIG instances that exist: slots that are there or not, chosen among those that are made for pods."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.control_plane.devices import result
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.instances import in_mig_mode
from tests.unit.controller.test_parts import bound, end, nodes_of, step

STATIC = Mode(mig="static")
SEVEN = [("1g.10gb", start) for start in range(7)]
MIXED = [("3g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)]


def static(cluster: GpuCluster, node: str, *gpus: list[tuple[str, int]], mode: Mode = STATIC) -> None:
    """Add a node whose first GPUs are in MIG mode with these instances; the others are whole."""
    cluster.node(node, "hgx-h100", mode=mode)
    cluster.machines[node] = in_mig_mode(cluster.machines[node], dict(enumerate(gpus)))
    cluster.publish(node, cluster.machines[node])


def device(cluster: GpuCluster, node: str, gpu: int, profile: str, start: int) -> str:
    one = cluster.machines[node].gpus[gpu]
    return resource_slices.part_name(one.uuid, next(p.id for p in one.profiles if p.name == profile), start)


def given(cluster: GpuCluster, pod: str) -> list[str]:
    claim = cluster.claim(pod)
    assert claim is not None
    return [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]


def others(cluster: GpuCluster, *held: str) -> None:
    """Let somebody else's claim have these devices of node ``a``."""
    status = {"allocation": {"devices": {"results": [result("a", one, f"r{n}") for n, one in enumerate(held)]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "x", "namespace": "default"}, "status": status})


async def test_a_pod_gets_exactly_the_instance_that_it_was_promised() -> None:
    cluster = GpuCluster()
    static(cluster, "a", MIXED)
    cluster.pod("p", {"x": ("2g.20gb", "1g.10gb")})
    await step(cluster)
    assert bound(cluster, "p") == [True]
    assert given(cluster, "p") == [device(cluster, "a", 0, "2g.20gb", 4), device(cluster, "a", 0, "1g.10gb", 6)]
    assert cluster.note("p", "part") == "2g.20gb@4,1g.10gb@6"
    claim = cluster.claim("p")
    assert claim is not None
    assert [one["exactly"]["capacity"]["requests"] for one in claim["spec"]["devices"]["requests"]] == [
        {"memorySlices": "2", "computeSlices": "2"},
        {"memorySlices": "1", "computeSlices": "1"},
    ]
    assert "mig" not in claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]


async def test_instances_are_there_or_not_and_none_is_made_of_what_is_free() -> None:
    cluster = GpuCluster()
    static(cluster, "a", [("1g.10gb", 0), ("1g.10gb", 3)])
    for number in range(3):
        cluster.pod(f"p{number}", ("1g.10gb",))
    cluster.pod("large", ("3g.40gb",))
    cluster.pod("rest", 7)
    cluster.pod("whole", 1)
    await step(cluster)
    assert bound(cluster, "p0", "p1", "p2", "large", "rest", "whole") == [True, True, False, False, True, False]
    assert "no eligible node has room" in (cluster.note("p2", "reason") or "")
    assert "The GPUs have the MIG profiles 1g.10gb" in (cluster.note("large", "reason") or "")
    await end(cluster, "p0")
    await step(cluster)
    assert bound(cluster, "p2") == [True]


@pytest.mark.slow
async def test_a_slice_is_served_by_anything_that_has_it_and_by_an_exact_one_first() -> None:
    cluster = GpuCluster()
    cluster.node("dynamic", "hgx-h100", mode=Mode(mig="dynamic"))
    cluster.node("placements", "hgx-h100", mode=Mode(mig="placements"))
    static(cluster, "static", MIXED)
    names_of = [f"p{number}" for number in range(2 + 7 * 16)]
    for name in names_of:
        cluster.pod(name, ("1g.10gb",))
        await step(cluster)
    assert bound(cluster, *names_of) == [True] * (1 + 7 * 16) + [False]
    assert [cluster.gpus(name)[0] for name in names_of[:2]] == ["static", "dynamic"]
    assert {cluster.gpus(name)[0] for name in names_of[:-1]} == {"dynamic", "placements", "static"}
    cluster.pod("three", ("3g.40gb",))
    await step(cluster)
    assert cluster.gpus("three")[0] == "static"


async def test_a_gpu_with_instances_taken_goes_before_one_with_none() -> None:
    cluster = GpuCluster()
    static(cluster, "a", SEVEN, SEVEN)
    others(cluster, device(cluster, "a", 1, "1g.10gb", 3))
    cluster.pod("p", ("1g.10gb",))
    await step(cluster)
    assert cluster.gpus("p") == ("a", [1])


async def test_what_claims_of_templates_hold_is_taken() -> None:
    cluster = GpuCluster()
    static(cluster, "a", MIXED)
    others(cluster, device(cluster, "a", 0, "1g.10gb", 6))
    cluster.pod("p", ("1g.10gb",))
    cluster.pod("q", ("2g.20gb",))
    await step(cluster)
    assert bound(cluster, "p", "q") == [False, True]


async def test_pods_of_instances_have_next_best_nodes_and_those_of_placements_none() -> None:
    cluster = GpuCluster()
    static(cluster, "a", SEVEN)
    static(cluster, "b", SEVEN)
    cluster.node("c", "hgx-h100", mode=Mode(mig="placements"))
    cluster.pod("p", ("1g.10gb",))
    await step(cluster)
    assert nodes_of(cluster, "p") == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["static", "placements"])
async def test_a_gpu_of_one_namespace_only_takes_no_slices_of_another(mode: str) -> None:
    cluster = GpuCluster()
    exclusive = Mode(mig=mode, exclusive_to="namespace")  # type: ignore[arg-type]
    static(cluster, "a", SEVEN, SEVEN, mode=exclusive)
    if mode == "placements":
        cluster.pod("rest", 6)
    for number in range(8):
        cluster.pod(f"p{number}", ("1g.10gb",))
        await step(cluster)
    await end(cluster, "p0")
    cluster.pod("foreign", ("1g.10gb",), namespace="other")
    cluster.pod("own", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, "own") == [True]
    every = {one["metadata"]["name"]: one for one in cluster.all(RESOURCE_CLAIMS)}
    assert "gpus-foreign" not in every
    assert cluster.gpus("p7")[1] != cluster.gpus("p1")[1]


async def test_a_promise_of_an_instance_that_is_lost_ends_at_once_and_another_is_made() -> None:
    cluster = GpuCluster()
    static(cluster, "a", [("1g.10gb", 0), ("1g.10gb", 3)])
    cluster.pod("p", ("1g.10gb",))
    await cluster.settle()
    promised = cluster.note("p", "part")
    left = 3 if promised == "1g.10gb@0" else 0
    cluster.publish("a", in_mig_mode(cluster.machines["a"], {0: [("1g.10gb", left)]}))
    await step(cluster)
    await step(cluster)
    assert bound(cluster, "p") == [True]
    assert cluster.note("p", "part") == f"1g.10gb@{left}"


async def test_one_that_is_tainted_is_given_to_no_pod_and_stays_its_holders() -> None:
    cluster = GpuCluster()
    static(cluster, "a", [("1g.10gb", 0), ("1g.10gb", 3)])
    cluster.pod("p", ("1g.10gb",))
    await step(cluster)
    held = given(cluster, "p")
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "a"))
    assert piece is not None
    for one in piece["spec"]["devices"]:
        if one["name"] in held:
            one["taints"] = [{"key": f"{names.PREFIX}gone", "effect": "NoSchedule"}]
    cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("q", ("1g.10gb",))
    cluster.pod("r", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, "q", "r") == [True, False]
    await end(cluster, "p")
    await step(cluster)
    assert bound(cluster, "r") == [False]


async def test_where_the_server_can_count_nothing_instances_are_placed_as_ever() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100")
    machine = in_mig_mode(cluster.machines["a"], {0: MIXED})
    modes = {gpu.uuid: Mode(mig="dynamic") for gpu in machine.gpus}
    able = SliceFeatures(shares=False, counters=False, taints=False)
    (piece,) = resource_slices.build(machine, node="a", node_uid="n", modes=modes, features=able)
    piece["spec"]["pool"]["generation"] = 2
    cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("p", ("3g.40gb",))
    cluster.pod("q", ("3g.40gb",))
    cluster.pod("whole", 7)
    await step(cluster)
    assert bound(cluster, "p", "q", "whole") == [True, False, True]
    assert given(cluster, "p") == [device(cluster, "a", 0, "3g.40gb", 0)]
