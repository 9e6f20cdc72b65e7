"""What the controller's metrics say of a cluster is what the API server shows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dradriver.allocator.request import Amount
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.gpu_prices import Price, Prices
from dradriver.api.slices import resource_slices
from dradriver.controller import metrics
from dradriver.controller.loop.cluster_gauges import Figures
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.gpucluster import GpuCluster

V100 = "Tesla V100-SXM2-32GB"


def values(name: str) -> dict[tuple[str, ...], float]:
    """Return a metric's samples by their labels' values."""
    found = (sample for family in REGISTRY.collect() for sample in family.samples if sample.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in found}


def grown(name: str, before: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Return by how much a metric's samples have grown, those that have."""
    more = {key: value - before.get(key, 0.0) for key, value in values(name).items()}
    return {key: value for key, value in more.items() if value}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for gauge in (
        metrics.GPUS,
        metrics.PART_GPUS,
        metrics.PART_USED,
        metrics.HELD,
        metrics.FREE_SETS,
        metrics.FRAGMENTED,
        metrics.FREE_WHOLE,
        metrics.AGENT_GONE,
    ):
        gauge.set({})
    metrics.LARGEST_GANG.set({})
    metrics.PRICES.set({})


async def counted(cluster: GpuCluster) -> None:
    await Figures(cluster.worker.picture, cluster.worker.reasons).count()


def gpus() -> dict[str, float]:
    """Return how many GPUs there are in each state that any is in."""
    found: dict[str, float] = {}
    for (_, state), number in values("gpu_topology_gpus").items():
        if number:
            found[state] = found.get(state, 0.0) + number
    return found


async def test_gpus_by_what_becomes_of_them() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.node("b")
    cluster.node("c", unschedulable=True)
    cluster.pod("held", 2)
    await cluster.settle()
    cluster.schedule()
    cluster.pod("promised", 1)
    await cluster.settle()
    await counted(cluster)
    assert gpus() == {"allocated": 2, "tentative": 1, "unavailable": 8, "free": 13}
    assert values("gpu_topology_gpus")[V100, "unhealthy"] == 0, "a state that no GPU is in is 0, not missing"
    assert values("gpu_topology_gpus_allocated") == {("default", V100, "whole"): 2}


async def test_unhealthy_gpus_and_those_whose_mode_changes_are_told_apart() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    taints = {0: "gpu.topology/xid", 1: "gpu.topology/held", 2: "gpu.topology/mode-changes"}
    (piece,) = cluster.all(RESOURCE_SLICES)
    for number, key in taints.items():
        piece["spec"]["devices"][number]["taints"] = [{"key": key, "value": "79", "effect": "NoSchedule"}]
    cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    await counted(cluster)
    assert gpus() == {"unhealthy": 2, "blocked": 1, "free": 5}


async def test_parts_and_what_of_them_is_used() -> None:
    cluster = GpuCluster()
    cluster.node("a", mode=Mode(shared="time-slicing"))
    cluster.pod("p", Amount(cores=25))
    cluster.pod("q", Amount(cores=50))
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    await counted(cluster)
    assert values("gpu_topology_gpus_in_fractions") == {(V100, "share"): 1}
    assert values("gpu_topology_gpus_in_fractions_used") == {(V100, "share"): pytest.approx(0.75)}


async def test_what_gpus_cost() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    await cluster.settle()
    figures = Figures(cluster.worker.picture, cluster.worker.reasons)
    figures.prices = Prices(currency="EUR", gpus=(Price(products=("H*",), per_hour=4.0), Price(per_hour=1.5)))
    await figures.count()
    assert values("gpu_topology_gpu_price_per_hour") == {(V100, "EUR"): 1.5}


async def test_free_sets_and_the_largest_gang() -> None:
    cluster = GpuCluster()
    for name in "abc":
        cluster.node(name)
    cluster.rival("one", "a", [0])
    await cluster.settle()
    await counted(cluster)
    sets = values("gpu_topology_free_sets")
    assert sum(number for (_, size, _), number in sets.items() if size == "8") == 2
    assert sum(number for (_, size, _), number in sets.items() if size == "1") == 23
    assert values("gpu_topology_largest_gang_pods") == {("cluster", "8"): 2}


async def test_waiting_pods_by_cause() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    cluster.pod("p")
    cluster.pod("q", wishes={"product": "H*"})
    await cluster.settle()
    await counted(cluster)
    waiting = {cause: number for (cause,), number in values("gpu_topology_waiting_pods_by_cause").items() if number}
    assert waiting == {"gpus": 1, "never": 1}


async def test_the_oldest_wait_is_that_of_the_pod_that_waits_longest() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.rival("rival", "a", range(8))
    for name, created in (("p", "2020-01-02T00:00:00Z"), ("q", "2020-01-01T00:00:00Z")):
        pod = cluster.admitted(name)
        pod["metadata"]["creationTimestamp"] = created
        cluster.store.put(PODS, pod)
    await cluster.settle()
    await counted(cluster)
    name = "gpu_topology_oldest_waiting_pod_timestamp_seconds"
    of_both = values(name)[()]
    cluster.remove(PODS, "q", "default")
    await cluster.settle()
    await counted(cluster)
    assert (of_both, values(name)[()] - of_both) == (1_577_836_800, 86_400)
    cluster.remove(PODS, "p", "default")
    await cluster.settle()
    await counted(cluster)
    assert values(name)[()] == 0


async def test_a_replica_that_stands_by_tells_nothing() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    await cluster.settle()
    task = asyncio.create_task(Figures(cluster.worker.picture, cluster.worker.reasons).run())
    await asyncio.sleep(1)
    assert gpus() == {"free": 8}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gpus() == {}


async def test_an_error_in_one_figure_costs_that_figure_alone(caplog: pytest.LogCaptureFixture) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    await cluster.settle()
    cluster.worker.picture.gpu_time.claims = lambda: 1 // 0  # type: ignore[assignment, return-value]
    await counted(cluster)
    assert gpus() == {"free": 8}
    assert values("gpu_topology_free_sets")
    assert "the metrics of _held are not updated" in caplog.text


@pytest.mark.parametrize(
    ("profile", "held", "said"),
    [
        ("dgx1-v100", [], (8, 0)),
        ("dgx1-v100", [0], (7, 7)),
        ("gb200-nvl72-tray", [], (4, 0)),
        ("gb200-nvl72-tray", [1], (3, 3)),
        ("dgx2-v100", [0, 1, 2], (13, 5)),
    ],
)
async def test_what_is_fragmented_is_measured_by_the_machine(
    profile: str, held: list[int], said: tuple[float, float]
) -> None:
    cluster = GpuCluster()
    cluster.node("a", profile)
    cluster.rival("rival", "a", held)
    await cluster.settle()
    await counted(cluster)
    found = values("gpu_topology_gpus_free_whole"), values("gpu_topology_gpus_fragmented")
    assert tuple(sum(each.values()) for each in found) == said


async def test_a_gpu_whose_slices_are_all_unhealthy_is_unhealthy() -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx-a100", mode=Mode(mig="placements"))
    pieces = cluster.all(RESOURCE_SLICES)
    uuid = cluster.machines["a"].gpus[0].uuid.lower()
    for piece in pieces:
        for device in piece["spec"].get("devices", ()):
            if device["name"].startswith(uuid):
                device["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
        cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    await counted(cluster)
    assert gpus() == {"unhealthy": 1, "fractions": 7}


async def test_what_a_pod_got() -> None:
    names = {
        "placements": "gpu_topology_placements_total", "got": "gpu_topology_placement_preferences_total",
        "scores": "gpu_topology_placement_score_percent_sum", "across": "gpu_topology_placements_across_numa_total",
        "kept": "gpu_topology_tentative_placements_kept_total",
        "waited": "gpu_topology_pod_wait_duration_seconds_count",
    }  # fmt: skip
    before = {key: values(name) for key, name in names.items()}
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8, wishes={"preferred": "same-numa,nvlink"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    values("")  # what is new is 0 at first
    more: dict[str, Any] = {key: grown(name, before[key]) for key, name in names.items()}
    assert more == {
        "placements": {("nvlink", "8"): 1}, "got": {("next",): 1}, "scores": {("8",): 100}, "across": {("8",): 1},
        "kept": {(): 1}, "waited": {("default", "8"): 1},
    }  # fmt: skip


async def test_an_event_says_what_a_pod_got() -> None:
    told: list[tuple[str, str]] = []

    async def record(pod: Any, text: str) -> None:
        told.append((pod.metadata.name, text))

    cluster = GpuCluster()
    cluster.record_placed = record
    cluster.restart()
    cluster.node("a")
    cluster.pod("p", 2, wishes={"policy": "nvlink"})
    await cluster.settle()
    task = asyncio.create_task(cluster.worker.placed.run())
    await asyncio.sleep(5)
    cluster.pod("gone", 2, wishes={"policy": "nvlink"})
    await cluster.settle()
    cluster.remove(PODS, "gone", "default")
    cluster.deliver()
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    _, gpus = cluster.gpus("p")
    assert told == [
        (
            "p",
            f"The pod gets GPUs {gpus[0]}, {gpus[1]} of node a (level nvlink, predicted all-reduce 40 GB/s, "
            f"score 100).",
        )
    ]


async def test_an_event_that_was_not_written_when_the_leader_stopped_is_never_written() -> None:
    told: list[str] = []

    async def record(pod: Any, _: str) -> None:
        told.append(pod.metadata.name)

    cluster = GpuCluster()
    cluster.record_placed = record
    cluster.restart()
    cluster.node("a")
    for pod in ("first", "second"):
        cluster.pod(pod, 1)
    await cluster.settle()
    for _ in range(2):
        task = asyncio.create_task(cluster.worker.placed.run())
        await asyncio.sleep(0.05)  # the second Event waits a moment for its turn
        assert told == ["first"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_nodes_whose_agent_is_gone_are_counted_while_claims_hold_their_gpus() -> None:
    """Not a node that is idle, one that was removed, or one whose agent is back."""
    cluster = GpuCluster()
    for name in ("gone", "back", "idle", "removed", "well"):
        cluster.node(name)
        if name != "idle":
            cluster.rival(f"held-{name}", name, [0, 1])
    await cluster.settle()
    for name in ("gone", "back", "idle", "removed"):
        cluster.remove(RESOURCE_SLICES, resource_slices.slice_name(0, name))
    cluster.remove(NODES, "removed")
    await cluster.settle()
    await counted(cluster)
    assert values("gpu_topology_agent_gone_devices") == {("gone",): 2, ("back",): 2}
    cluster.publish("back", cluster.machines["back"])
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "held-gone", "namespace": "default"}, "status": {}})
    await cluster.settle()
    await counted(cluster)
    assert values("gpu_topology_agent_gone_devices") == {}


@pytest.mark.usefixtures("addon")
async def test_next_to_nvidias_driver_only_claims_that_we_chose_tell_that_our_agent_is_gone() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.node("b", None)
    cluster.offer("b", [])
    cluster.foreign("theirs", "b", "gpu-0")
    cluster.pod("ours", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    cluster.remove(RESOURCE_SLICES, resource_slices.slice_name(0, "a"))
    await cluster.settle()
    await counted(cluster)
    assert values("gpu_topology_agent_gone_devices") == {("a",): 2}


async def test_what_is_free_is_what_can_be_had_whole() -> None:
    cluster = GpuCluster()
    cluster.node("whole")
    cluster.node("sliced", "dgx-a100", mode=Mode(mig="placements"))
    cluster.node("goes", annotations={"gpu.topology/maintenance": "2030-01-01T00:00:00Z"})
    cluster.node("rack", "gb200-nvl72-rack")  # more GPUs than a machine of which some are placed may have
    await cluster.settle()
    await counted(cluster)
    assert gpus() == {"free": 8, "fractions": 8, "unavailable": 8}
    assert sum(values("gpu_topology_gpus_free_whole").values()) == 8
