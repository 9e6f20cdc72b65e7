"""``gputopo defrag``: only moves of which everybody has a place in the end, and nothing is moved."""

from __future__ import annotations

import datetime
import itertools
import random
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.effort import sampled
from tests.fakes.apistore import Object, Store
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster, claim_of

H100 = "dgx-h100"


@pytest.fixture
def cluster() -> GpuCluster:
    """Return a cluster in which all pods are placed at one time: a later start may cost more than one GPU less."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    made = GpuCluster()
    made.store = Store(lambda: now)
    made.restart()
    return made


async def place(cluster: GpuCluster, name: str, gpus: int, node: str, **changes: Any) -> None:
    """Have a pod run on a node."""
    selector = {"kubernetes.io/hostname": node}
    cluster.pod(name, gpus, nodeSelector=selector, **changes)
    await run_all(cluster)
    assert cluster.get_pod(name)["spec"].get("nodeName") == node
    cluster.store.edit(PODS, ("default", name), lambda pod: pod["spec"].pop("nodeSelector"))


async def planned(shell: CommandLine, *options: str) -> dict[str, Any]:
    before = shell_state(shell)
    found: dict[str, Any] = await shell.data("defrag", *options)
    assert shell_state(shell) == before, "nothing is written"
    return found


def shell_state(shell: CommandLine) -> int:
    return shell.api.store.version


def moves(found: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return each node that has a free set then, with the pods that moved and where they are."""
    return [
        (one["node"], {pod: to for workload in one["moved"] for pod, to in workload["pods"].items()})
        for one in found["freed"]
    ]


async def test_one_small_pod_in_the_way_goes_where_there_is_room(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        cluster.node(node, H100)
    await place(cluster, "small", 1, "n1")
    await place(cluster, "large", 4, "n2")
    found = await planned(shell)
    assert moves(found) == [("n1", {"small": "n2"})]
    assert found["freed"][0]["gpus"] == list(range(8))
    eights = next(one for one in found["sets"] if one["size"] == 8)
    assert (eights["now"], eights["after"]) == (0, 1)
    said = (await shell.run("defrag")).stdout
    assert "n1: a free set of 8 GPUs (0, 1, 2, 3, 4, 5, 6, 7) if default/small (1 GPU, " in said
    assert "moved to n2" in said


async def test_the_option_of_before_changes_nothing(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", H100)
    assert (await shell.run("defrag", "--dry-run")).stdout == (await shell.run("defrag")).stdout


async def test_without_a_place_in_the_end_there_is_no_move(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        cluster.node(node, H100)
    await place(cluster, "a", 5, "n1")
    await place(cluster, "b", 4, "n2")
    assert moves(await planned(shell)) == []
    assert "no moves free a set of 8 GPUs. 2 pods and gangs can move" in (await shell.run("defrag")).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "why",
    [
        {"allocatable": {"cpu": "1"}},
        {"allocatable": {"pods": "0"}},
        {"taints": [{"key": "x", "effect": "NoSchedule"}]},
        {"ready": "False"},
        {"unschedulable": True},
    ],
    ids=str,
)
async def test_a_place_is_more_than_gpus(cluster: GpuCluster, shell: CommandLine, why: dict[str, Any]) -> None:
    cluster.node("n1", H100)
    cluster.node("n2", H100)
    await place(cluster, "small", 1, "n1", requests={"cpu": "2"})
    cluster.rival("large", "n2", range(4))
    cluster.node("n2", None, **why)
    assert moves(await planned(shell)) == []


async def test_others_pods_take_their_cpu(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1", H100)
    cluster.node("n2", H100)
    await place(cluster, "small", 1, "n1", requests={"cpu": "2"})
    cluster.rival("large", "n2", range(4))
    hungry = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "63"}}}
    spec = {"nodeName": "n2", "containers": [hungry]}
    cluster.put(PODS, {"metadata": {"name": "hungry", "namespace": "other"}, "spec": spec})
    assert moves(await planned(shell)) == []


async def test_a_pod_goes_only_where_its_author_lets_it(cluster: GpuCluster, shell: CommandLine) -> None:
    """By the affinity that its author wrote, not by that of its present place."""
    for node in ("n1", "n2", "n3"):
        cluster.node(node, H100)
    wanted = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n3"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": wanted}]}}
    await place(cluster, "small", 1, "n1", affinity={"nodeAffinity": required})
    cluster.rival("large", "n2", range(4))
    cluster.rival("more", "n3", range(6))
    assert moves(await planned(shell, "--sets", "1")) == [("n1", {"small": "n3"})]


async def test_who_loses_least_goes(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.node(node, H100)
    await place(cluster, "old", 1, "n1")
    await place(cluster, "new", 1, "n2")
    cluster.rival("rest", "n3", range(6))
    for pod, began in (("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-09T00:00:00Z")):

        def change(claim: Object, began: str = began) -> None:
            claim["status"]["allocation"]["allocationTimestamp"] = began

        cluster.store.edit(RESOURCE_CLAIMS, ("default", claim_of(pod)), change)
    assert moves(await planned(shell, "--sets", "1")) == [("n2", {"new": "n1"})]
    assert next(node for node, _ in moves(await planned(shell))) == "n2"


async def test_what_was_freed_is_kept_free_for_the_next_ones(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.node(node, H100)
    for number in (1, 2, 3):
        await place(cluster, f"p{number}", 3, f"n{number}")
    found = moves(await planned(shell))
    assert len(found) == 1, "nine GPUs in use leave room for one free node of three"
    ((_, to),) = found
    assert len(set(to)) == 1


async def test_a_gang_moves_as_a_whole_or_not_at_all(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.node(node, H100)
    for name, node in (("g0", "n1"), ("g1", "n2")):
        cluster.pod(name, 4, wishes={"gang": "g", "gang-size": "2"}, nodeSelector={"kubernetes.io/hostname": node})
    await run_all(cluster)
    for name in ("g0", "g1"):
        cluster.store.edit(PODS, ("default", name), lambda pod: pod["spec"].pop("nodeSelector"))
    cluster.rival("half", "n3", range(4))
    cluster.node("n2", None, unschedulable=True)
    assert moves(await planned(shell)) == [], "one alone would have a place on n3, and the other none"
    cluster.node("n4", H100)
    cluster.rival("other", "n4", range(4))
    found = await planned(shell)
    ((node, to),) = moves(found)
    assert node == "n1"
    assert set(to) == {"g0", "g1"}
    assert set(to.values()) == {"n3", "n4"}
    assert found["freed"][0]["moved"][0]["gang"] is True


async def test_who_cannot_move_stays(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        cluster.node(node, H100)
    await place(cluster, "a", 1, "n1", wishes={"shared-claim": "set"})
    cluster.rival("by-hand", "n1", [5])
    await place(cluster, "b", 1, "n1")
    cluster.store.edit(
        PODS, ("default", "b"), lambda pod: pod["metadata"].update(annotations={names.REQUEST: "damaged"})
    )
    found = await planned(shell)
    assert (found["freed"], found["movable"]) == ([], 0)


@pytest.mark.parametrize("seed", sampled(range(12)))
async def test_small_clusters_by_brute_force(cluster: GpuCluster, shell: CommandLine, seed: int) -> None:
    """Whatever is proposed can be done, and of single GPUs on switched machines whatever can be done is proposed."""
    chance = random.Random(seed)
    held: dict[str, tuple[str, int]] = {}
    for number in range(chance.randint(2, 4)):
        node = f"n{number}"
        cluster.node(node, H100)
        room = 8
        while room and chance.random() < 0.75:
            size = chance.choice([1, 1, 2, 4])
            if size <= room:
                name = f"p{len(held)}"
                await place(cluster, name, size, node)
                held[name] = node, size
                room -= size
    used = {node: sum(size for at, size in held.values() if at == node) for node in cluster.machines}
    found = moves(await planned(shell, "--sets", "1"))
    assert bool(found) == _possible(held, used)
    for freed, to in found:
        after = dict(used)
        for pod, node in to.items():
            after[held[pod][0]] -= held[pod][1]
            after[node] += held[pod][1]
        assert after[freed] == 0, "it was to be all free"
        assert max(after.values()) <= 8


def _possible(held: dict[str, tuple[str, int]], used: dict[str, int]) -> bool:
    """Return whether any node that is not free can be made so, with all its pods elsewhere."""
    for node in (node for node, count in used.items() if count):
        sizes = [size for at, size in held.values() if at == node]
        others = [other for other in used if other != node]
        for way in itertools.product(others, repeat=len(sizes)):
            after = dict(used)
            for to, size in zip(way, sizes, strict=True):
                after[to] += size
            if all(after[other] <= 8 for other in others):
                return True
    return False


async def test_the_sets_say_what_is_free_then(cluster: GpuCluster, shell: CommandLine) -> None:
    for node in ("n1", "n2"):
        cluster.node(node)
    await place(cluster, "a", 2, "n1")
    await place(cluster, "b", 2, "n2")
    found = await planned(shell, "--gpus", "8")
    counts = {one["size"]: (one["now"], one["after"]) for one in found["sets"]}
    assert counts[8] == (0, 1)
    assert counts[4][1] >= 2
    assert msgspec.json.encode(found)
