"""NICs beside the GPUs of gangs, of which several pods may be on one node."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pytest

from dradriver.controller.placing import gang_plan
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.effort import sampled
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import NEAREST, RDMA, a_cluster, addresses, gang, given, gpus, pod, run, template, wanted
from tests.fakes.nics import SRIOV

Counts: TypeAlias = tuple[int, ...]  # by switch

CARDS = (  # of a DGX A100, by the switch that they share with two GPUs
    ("0000:0c:00.0", "0000:12:00.0"), ("0000:4b:00.0", "0000:54:00.0"),
    ("0000:8d:00.0", "0000:94:00.0"), ("0000:ba:00.0", "0000:cc:00.0"),
)  # fmt: skip


@pytest.mark.parametrize("seed", sampled(range(100)))
@pytest.mark.parametrize(
    ("machine", "switches"), [("dgx-a100", CARDS), ("hgx-h100", [(NEAREST[gpu],) for gpu in range(8)])]
)
async def test_pods_of_a_gang_share_a_nodes_near_nics_where_any_way_to_deal_them_out_is_found(
    machine: str, switches: Sequence[Sequence[str]], seed: int
) -> None:
    own, cluster = random.Random(seed), GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.node("a", machine)
    free = own.sample(range(8), own.randint(3, 8))
    cluster.rival("theirs", "a", [gpu for gpu in range(8) if gpu not in free])
    chance = own.choice([0.3, 0.6, 0.9])
    near = [[card for card in cards if own.random() < chance] for cards in switches]
    devices = [nics.device(card, number=number) for number, card in enumerate(itertools.chain(*near))]
    cluster.put(RESOURCE_SLICES, nics.published("a", devices))
    each, count = own.randint(1, 4), own.randint(1, 4)
    pods = "pqrs"[: min(8 // each, own.randint(2, 4))]
    template(cluster, gpus(count=each), wanted("nic", count))
    gang(cluster, *pods, near_nic="required")
    await run(cluster)
    there = tuple(sum(gpu * len(switches) // 8 == switch for gpu in free) for switch in range(len(switches)))
    fits = can_share(there, tuple(map(len, near)), pods=len(pods), gpus_each=each, nics_each=count)
    assert (cluster.claim("p") is not None) is fits, cluster.note("p", "reason")


@functools.cache
def can_share(gpus: Counts, nics: Counts, *, pods: int, gpus_each: int, nics_each: int) -> bool:
    """Whether any way to deal out the GPUs and NICs of switches has each GPU with as many as its pod's others, or one
    more; all ways are tried."""
    if not pods:
        return True
    least, some = divmod(nics_each, gpus_each)
    for own in ways(gpus_each, gpus):
        most = tuple(min(there, (least + bool(some)) * gpu) for there, gpu in zip(nics, own, strict=True))
        for near in ways(nics_each, most):
            if all(nic >= least * gpu for nic, gpu in zip(near, own, strict=True)) and can_share(
                minus(gpus, own), minus(nics, near), pods=pods - 1, gpus_each=gpus_each, nics_each=nics_each
            ):
                return True
    return False


def ways(total: int, most: Counts) -> Iterator[Counts]:
    """All ways to take so many of switches that have these."""
    if not most:
        yield from [()] if not total else []
        return
    for number in range(min(total, most[0]) + 1):
        for others in ways(total - number, most[1:]):
            yield number, *others


def minus(some: Counts, others: Counts) -> Counts:
    return tuple(one - other for one, other in zip(some, others, strict=True))


async def test_each_pod_of_a_gang_on_a_node_gets_gpus_near_unlike_nics() -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.node("a", "hgx-h100")
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(cluster.machines["a"])))
    some = (f'device.attributes["dra.net"].pciAddress in ["{NEAREST[gpu]}", "{NEAREST[gpu + 4]}"]' for gpu in (2, 3))
    template(cluster, gpus(count=2), *(wanted(f"n{at}", 1, text) for at, text in enumerate(some)))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    for name in "pq":
        given = [*addresses(cluster, name, request="n0"), *addresses(cluster, name, request="n1")]
        assert sorted(given) == sorted(NEAREST[gpu] for gpu in cluster.gpus(name)[1])


@pytest.mark.parametrize("before", [7, 12])
async def test_a_gang_of_one_node_is_looked_for_behind_nodes_that_do_for_one_of_its_pods(before: int) -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    for name, cards in [*((f"a{at:02}", 1) for at in range(before)), ("z", 8)]:
        cluster.node(name, "hgx-h100")
        every = [(NEAREST[card], at) for card in range(cards) for at in range(4)]
        made = [nics.function(f"{card[:-1]}{1 + at}", card, at) for card, at in every]
        cluster.put(RESOURCE_SLICES, nics.published(name, made, driver=SRIOV))
    template(cluster, gpus(), wanted("nic", 1, device_class=SRIOV))
    gang(cluster, *"pq", near_nic="required", max_nodes="1")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    assert {cluster.gpus(name)[0] for name in "pq"} == {"z"}


@pytest.mark.parametrize("seats", [False, True])
async def test_the_pods_of_a_gang_get_different_nics_each_near_its_gpus(seats: bool) -> None:
    cluster = a_cluster("a", "b")
    if seats:
        cluster.barrier()
    template(cluster, gpus(count=2), wanted("nic", 2, RDMA))
    gang(cluster, *"pqrstu", near_nic="required")
    await run(cluster)
    seen: set[tuple[str, str]] = set()
    for name in "pqrstu":
        node, chosen = cluster.gpus(name)
        assert addresses(cluster, name) == [NEAREST[gpu] for gpu in chosen]
        seen |= {(node, one) for one in addresses(cluster, name)}
        assert len(given(cluster, name)) == 2
    assert len(seen) == 12


async def test_a_gang_waits_until_all_its_pods_can_have_nics() -> None:
    cluster = a_cluster("a", "b")
    devices = nics.of_machine(cluster.machines["b"])
    cluster.put(RESOURCE_SLICES, nics.published("b", devices[:3]))
    template(cluster, gpus(count=2), wanted("nic", 4))
    gang(cluster, *"pqr")
    await run(cluster)
    assert [cluster.claim(name) for name in "pqr"] == [None] * 3
    cluster.put(RESOURCE_SLICES, nics.published("b", devices[:4]))
    await run(cluster)
    assert sorted(cluster.gpus(name)[0] for name in "pqr") == ["a", "a", "b"]
    assert all(len(given(cluster, name)) == 4 for name in "pqr")


async def test_a_gang_goes_on_to_other_nodes_where_near_nics_are_not_enough() -> None:
    cluster = a_cluster("a", "b")
    far = [nics.device(f"0000:f{at}:00.0", number=at, numa=None) for at in range(4)]
    cluster.put(RESOURCE_SLICES, nics.published("a", far))
    template(cluster, gpus(count=4), wanted("nic", 4))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert {cluster.gpus(name)[0] for name in "pq"} == {"b"}


DGX1_CARDS = ("0000:05:00.0", "0000:0c:00.0", "0000:84:00.0", "0000:8b:00.0")  # of two GPUs each


@pytest.mark.parametrize(
    ("machine", "cards", "free", "counts", "pods", "words", "sets"),
    [
        # Whose GPUs have no NIC is not all that counts: 3 and 6 have no link.
        ("dgx1-v100", DGX1_CARDS, [0, 3, 4, 6, 7], [0, 0, 2, 1], [2, 2], {}, [(6, 7), (0, 4)]),
        ("dgx1-v100", DGX1_CARDS, [0, 3, 4, 6, 7], [0, 0, 2, 1], [2, 2], {"required": "nvlink"}, [(6, 7), (0, 4)]),
        ("hgx-h100", (*NEAREST.values(),), [0, 1, 2, 3, 4], [1, 1], [1, 3], {}, [(0,), (1, 2, 3)]),
    ],
)
async def test_gpus_in_addition_to_those_with_nics_are_as_well_linked_as_can_be_and_pods_of_any_size_have_some(
    machine: str,
    cards: Sequence[str],
    free: Sequence[int],
    counts: Sequence[int],
    pods: Sequence[int],
    words: dict[str, str],
    sets: Sequence[tuple[int, ...]],
) -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    cluster.node("a", machine)
    cluster.rival("theirs", "a", [gpu for gpu in range(8) if gpu not in free])
    made = [
        nics.function(f"{card[:-1]}{1 + at}", card, at)
        for card, count in zip(cards, counts, strict=False)
        for at in range(count)
    ]
    cluster.put(RESOURCE_SLICES, nics.published("a", made, driver=SRIOV))
    for number, size in enumerate(pods):
        template(cluster, gpus(count=size), wanted("nic", 1, device_class=SRIOV), name=f"t{number}")
        pod(cluster, f"p{number}", f"t{number}", gang="g", gang_size=str(len(pods)), near_nic="required", **words)
    await run(cluster)
    assert cluster.claim("p0") is not None, cluster.note("p0", "reason")
    assert [tuple(sorted(cluster.gpus(f"p{number}")[1])) for number in range(len(pods))] == [*sets]


async def test_a_gang_of_pods_of_many_sizes_that_find_no_near_nics_comes_to_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, plans, plan = GpuCluster(), 0, gang_plan.plan
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    for node in "abcdefghij":
        cluster.node(node, "dgx-a100")
        cluster.rival(f"theirs-{node}", node, [0, 3, 4, 5, 7])
        cards = [nic.pci for nic in cluster.machines[node].nics][:10]
        made = [nics.function(f"{card[:-1]}1", card, 0) for card in cards]
        cluster.put(RESOURCE_SLICES, nics.published(node, made, driver=SRIOV))
    for name, size in (("p", 2), ("q", 1), ("r", 3)):
        template(cluster, gpus(count=size), wanted("nic", 3, device_class=SRIOV), name=f"t{size}")
        pod(cluster, name, f"t{size}", gang="g", gang_size="2-3", near_nic="required", max_nodes="1")

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal plans
        plans += 1
        assert plans <= 30
        return plan(*args, **options)

    monkeypatch.setattr(gang_plan, "plan", counted)
    await run(cluster)
    assert plans < 30, "one order of the pods forgets what another has found"
    assert cluster.note("p", "reason")
