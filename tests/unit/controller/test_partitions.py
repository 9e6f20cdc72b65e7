"""Partitions of tenants: where workloads are placed, whatever they are of, and where they are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount, Choice, PartChoice
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policies_reader import read
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.control_plane.devices import pinned
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.fakes.troubles import respell

OURS = "ours: {namespaces: [default], partition: {nodeSelector: {pool: red}}}"


def follow(cluster: GpuCluster, *tenants: str) -> None:
    """Put a policies file with these tenants into force."""
    cluster.worker.follow(read("\n  ".join(("tenants:", *tenants)).encode(), source="x"))


def cluster_of(*tenants: str, mode: Mode | None = None, profile: str = "hgx-h100", **pools: str) -> GpuCluster:
    """Return a cluster of nodes with the label ``pool``, by name."""
    cluster = GpuCluster()
    follow(cluster, *tenants)
    for node, pool in pools.items():
        cluster.node(node, profile, mode=mode, labels={"pool": pool})
    return cluster


def place(cluster: GpuCluster, pod: str, namespace: str) -> tuple[str, list[int]] | None:
    """Return the node and the GPUs that a pod's claim is pinned to; None where it has none."""
    claim = cluster.find(RESOURCE_CLAIMS, claim_of(pod), namespace)
    if claim is None:
        return None
    node = msgspec.json.decode(claim["metadata"]["annotations"][names.CHOICE], type=Choice | PartChoice).node
    return node, [gpu.index for gpu in cluster.machines[node].gpus if gpu.uuid in set(pinned(claim))]


def reason(cluster: GpuCluster, pod: str, namespace: str = "default") -> str:
    found = cluster.find(PODS, pod, namespace)
    assert found is not None
    return str(found["metadata"]["annotations"].get(names.REASON, ""))


async def step(cluster: GpuCluster) -> None:
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()


async def test_units_of_a_tenant_go_to_the_nodes_of_its_partition_alone() -> None:
    cluster = cluster_of(OURS, a="blue", b="red", c="blue")
    for pod in ("p", "q", "r"):
        cluster.pod(pod, 4)
    await step(cluster)
    for pod in ("p", "q", "r"):
        cluster.pod(pod, 4, namespace="team")
    await step(cluster)
    found = [place(cluster, pod, "default") for pod in ("p", "q", "r")]
    assert [each and each[0] for each in found] == ["b", "b", None]
    assert reason(cluster, "r") == (
        "Waiting for 4 GPUs: no eligible node has such a free set. "
        "Only GPUs in the partition of tenant ours can be used."
    )
    (term,) = cluster.get_pod("p")["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert "'a'" not in str(term), "nor are its next-best nodes elsewhere"
    others = [place(cluster, pod, "team") for pod in ("p", "q", "r")]
    assert all(others), "one that is not exclusive takes nothing from others, who found no place for want of it"


async def test_one_node_is_divided_by_numbers_and_no_other_has_an_exclusive_part() -> None:
    cluster = cluster_of(
        "left: {namespaces: [default], partition: {numbers: [0, 1, 2, 3]}, exclusive: true}",
        "right: {namespaces: [team], partition: {numbers: [4, 5]}, exclusive: true}",
        a="",
    )
    for namespace in ("team", "others", "default"):
        for pod in ("p", "q", "r"):
            cluster.pod(pod, 2, namespace=namespace)
    await step(cluster)
    assert sorted(number for pod in "pq" for number in (place(cluster, pod, "default") or ("", []))[1]) == [0, 1, 2, 3]
    assert place(cluster, "p", "team") == ("a", [4, 5])
    assert place(cluster, "p", "others") == ("a", [6, 7])
    assert [place(cluster, pod, space) for pod, space in (("r", "default"), ("q", "team"), ("q", "others"))] == [
        None
    ] * 3
    assert reason(cluster, "q", "others").endswith(" GPUs in the exclusive partition of another tenant are left out.")


async def test_what_one_tenant_found_no_place_for_another_may_find_one_for() -> None:
    cluster = cluster_of(OURS, a="red", b="blue")
    cluster.rival("x", "a", range(8))
    cluster.pod("first", 2)
    cluster.pod("second", 2, namespace="team")
    await step(cluster)
    assert place(cluster, "first", "default") is None
    assert place(cluster, "second", "team") is not None, "the same request, and the same demands on nodes"


@pytest.mark.parametrize(
    ("mode", "wish"), [(Mode(shared="mps"), Amount(cores=60)), (Mode(mig="dynamic"), ("3g.40gb",))]
)
async def test_parts_of_gpus_are_of_the_partition_too(mode: Mode, wish: Any) -> None:
    cluster = cluster_of("ours: {namespaces: [default], partition: {nodes: [b], numbers: [6]}}", mode=mode, a="", b="")
    pods = ["p", "q", "r"]
    for pod in pods:
        cluster.pod(pod, wish)
    await step(cluster)
    found = [place(cluster, pod, "default") for pod in pods]
    fit = 1 if isinstance(wish, Amount) else 2
    assert found == [("b", [6])] * fit + [None] * (3 - fit)


async def test_parts_of_others_keep_off_an_exclusive_partition() -> None:
    cluster = cluster_of(
        "ours: {namespaces: [default], partition: {numbers: [1, 2, 3, 4, 5, 6, 7]}, exclusive: true}",
        mode=Mode(shared="mps"), a="",
    )  # fmt: skip
    for pod in ("p", "q"):
        cluster.pod(pod, Amount(cores=60), namespace="team")
    await step(cluster)
    assert [place(cluster, pod, "team") for pod in ("p", "q")] == [("a", [0]), None]


async def test_a_gang_and_who_comes_late_to_it_are_within_the_partition() -> None:
    cluster = cluster_of(OURS, a="blue", b="red", c="red", d="red")
    pods = gang(cluster, 2)
    await step(cluster)
    await step(cluster)
    assert sorted((place(cluster, pod, "default") or ("",))[0] for pod in pods) in (["b", "c"], ["b", "d"], ["c", "d"])
    cluster.pod("train-2", 8, wishes={"gang": "train", "gang-size": "2"})
    cluster.pod("train-3", 8, wishes={"gang": "train", "gang-size": "2"})
    await step(cluster)
    assert {(place(cluster, pod, "default") or ("",))[0] for pod in (*pods, "train-2", "train-3")} == {*"bcd", ""}


async def test_a_gang_waits_where_its_partition_has_not_enough() -> None:
    cluster = cluster_of(OURS, a="blue", b="red")
    gang(cluster, 2)
    await step(cluster)
    assert "Only GPUs in the partition of tenant ours can be used" in reason(cluster, "train-0")


async def test_a_set_that_pods_share_is_chosen_within_the_partition_and_stays_where_it_is() -> None:
    cluster = cluster_of(OURS, a="blue", b="red")
    cluster.pod("one", {"main": 4}, wishes={"shared-claim": "duo"})
    await step(cluster)
    assert cluster.get_pod("one")["spec"]["nodeName"] == "b"
    follow(cluster, OURS.replace("red", "blue"))
    cluster.pod("two", {"main": 4}, wishes={"shared-claim": "duo"})
    await step(cluster)
    assert cluster.get_pod("two")["spec"]["nodeName"] == "b", "it joins a claim that is there"


@pytest.mark.parametrize("wish", [4, Amount(cores=25), ("1g.10gb",)])
async def test_a_promise_that_the_file_has_overtaken_is_kept_after_a_crash(wish: Any) -> None:
    mode = {int: Mode(), Amount: Mode(shared="mps"), tuple: Mode(mig="dynamic")}[type(wish)]
    cluster = cluster_of(OURS, mode=mode, a="blue", b="red")
    cluster.pod("p", wish)
    cluster.client.kill_at = -1  # the claim is made, and the gate is not lifted
    with pytest.raises(Killed):
        await cluster.settle()
    made = place(cluster, "p", "default")
    assert made is not None
    assert made[0] == "b"
    cluster.restart()
    follow(cluster, OURS.replace("red", "blue"))
    await step(cluster)
    assert place(cluster, "p", "default") == made
    assert cluster.get_pod("p")["spec"]["nodeName"] == "b"


async def test_who_waits_follows_the_file_and_the_labels_of_nodes() -> None:
    cluster = cluster_of(OURS, a="blue")
    for pod in ("p", "q"):
        cluster.pod(pod, 8)
    await cluster.settle()
    assert place(cluster, "p", "default") is None
    cluster.node("a", None, labels={"pool": "red"})
    await cluster.settle()
    assert place(cluster, "p", "default") is not None
    cluster.node("b", "hgx-h100", labels={"pool": "blue"})
    await cluster.settle()
    assert place(cluster, "q", "default") is None
    follow(cluster, OURS.replace("pool: red", "pool: blue"))
    await cluster.settle()
    assert place(cluster, "q", "default") == ("b", list(range(8)))


async def test_who_may_no_longer_have_a_node_gets_none_of_it_from_then_on() -> None:
    cluster = cluster_of(OURS, a="red")
    cluster.pod("p", 2)
    await step(cluster)
    cluster.node("a", None, labels={"pool": "blue"})
    cluster.pod("q", 2)
    await step(cluster)
    assert place(cluster, "p", "default") is not None
    assert place(cluster, "q", "default") is None


async def test_a_cap_and_a_partition_hold_together_and_kueue_lifts_the_cap_alone() -> None:
    capped = OURS.replace("{namespaces", "{cap: [{gpus: 6}], namespaces")
    cluster = cluster_of(capped, a="blue", b="red", c="red")
    for pod in ("p", "q"):
        cluster.pod(pod, 4)
    await step(cluster)
    assert (place(cluster, "p", "default") or "")[0] in {"b", "c"}
    assert place(cluster, "q", "default") is None
    assert reason(cluster, "q").startswith('Waiting for quota: tenant "ours" may use 6 GPUs')
    follow(cluster, capped.replace("{cap", "{admission: kueue, cap"))
    await step(cluster)
    assert (place(cluster, "q", "default") or "")[0] in {"b", "c"}


async def test_what_a_cap_leaves_of_a_node_is_within_the_partition() -> None:
    """Of a node with two products, the partition has some of each, and the cap one of them."""
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100")
    machine = cluster.machines["a"]
    gpus = tuple(msgspec.structs.replace(gpu, product="NVIDIA Odd") if gpu.index % 2 else gpu for gpu in machine.gpus)
    cluster.machines["a"] = msgspec.structs.replace(machine, gpus=gpus)
    cluster.publish("a", cluster.machines["a"])
    partition = "partition: {numbers: [2, 3, 4, 5]}"
    follow(cluster, f"ours: {{namespaces: [default], {partition}, cap: [{{gpus: 0, products: [NVIDIA Odd]}}]}}")
    for pod in ("p", "q", "r"):
        cluster.pod(pod, 1)
    await step(cluster)
    assert sorted((place(cluster, pod, "default") or ("", [0]))[1] for pod in "pqr") == [[0], [2], [4]]


HAND_OVER = {"policy": "nvlink", "when-full": "hand-over"}


@pytest.mark.parametrize("is_forged", [False, True])
async def test_no_pod_of_a_partition_is_handed_over(is_forged: bool) -> None:
    cluster = cluster_of(OURS, a="blue", b="red")
    cluster.rival("x", "b", range(8))
    cluster.pod("p", 4, wishes=HAND_OVER)
    if is_forged:
        respell(cluster, "p", "hand-over")
    await step(cluster)
    assert cluster.claim("p") is None
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert reason(cluster, "p").endswith(
        " The pod is not handed over to kube-scheduler, which does not know the partition of tenant ours. Remove "
        "gpu.topology/when-full: hand-over, or write schedulerPlaced: allow for the tenant."
    )
    cluster.remove(RESOURCE_CLAIMS, "x", "default")
    await step(cluster)
    assert place(cluster, "p", "default") == ("b", [0, 1, 2, 3]), "it waits for a place in its partition"


@pytest.mark.parametrize(
    "tenant", [OURS.replace("}}}", "}}, schedulerPlaced: allow}"), "ours: {namespaces: [default]}"]
)
async def test_a_pod_that_the_scheduler_may_place_is_handed_over(tenant: str) -> None:
    cluster = cluster_of(OURS, a="blue", b="red")
    for name, node in (("x", "a"), ("y", "b")):
        cluster.rival(name, node, range(8))
    cluster.pod("p", 4, wishes=HAND_OVER)
    await step(cluster)
    assert cluster.claim("p") is None
    follow(cluster, tenant)
    await step(cluster)
    claim = cluster.claim("p")
    assert claim is not None, "the file has changed"
    assert claim["metadata"]["labels"] == {names.LABEL: names.LABEL_HANDED_OVER}


async def test_a_pod_whose_tenant_gets_a_partition_while_it_is_handed_over_is_not() -> None:
    cluster = cluster_of("ours: {namespaces: [default]}", a="blue", b="red")
    for name, node in (("x", "a"), ("y", "b")):
        cluster.rival(name, node, range(8))
    cluster.pod("p", 4, wishes=HAND_OVER)
    cluster.client.kill_at = -1  # the claim is made, and the gate is not lifted
    with pytest.raises(Killed):
        await cluster.settle()
    assert cluster.claim("p") is not None
    cluster.restart()
    follow(cluster, OURS)
    await step(cluster)
    assert cluster.claim("p") is None
    assert "not handed over" in reason(cluster, "p")
    cluster.remove(RESOURCE_CLAIMS, "y", "default")
    await step(cluster)
    assert place(cluster, "p", "default") == ("b", [0, 1, 2, 3])
