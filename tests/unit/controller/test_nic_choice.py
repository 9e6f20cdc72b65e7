"""Who gets which NIC: requests for unlike NICs, what NICs must have in common, and all the ways that there are."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.controller.placing import nic_node
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.nic_refusals import NoNicsError
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.effort import sampled
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import NEAREST, a_cluster, addresses, asked, gang, gpus, pod, run, template, wanted
from tests.fakes.nics import SRIOV
from tests.unit.controller.test_nics_many import functions, wish_of

OF_SRIOV = f'device.attributes["{SRIOV}"]'


def named(number: int) -> str:
    return f'device.attributes["dra.net"].ifName == "rdma{number}"'


def on_node(number: int) -> str:
    return f'device.attributes["dra.net"].numaNode == {number}'


def pinned(cluster: GpuCluster, request: str, name: str = "p") -> list[str]:
    """Return the addresses that a request of either driver's is pinned to."""
    text = asked(cluster, name)[request]["selectors"][0]["cel"]["expression"]
    return [part for part in text.rpartition(" in ")[2].split('"') if ":" in part]


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
async def test_the_order_of_unlike_requests_says_nothing(order: tuple[int, int]) -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), *(wanted(f"n{number}", 1, named(number)) for number in order))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert [addresses(cluster, request=f"n{number}") for number in order] == [[NEAREST[number]] for number in order]
    assert cluster.gpus("p")[1] == [3, 5]


async def test_unlike_requests_have_gpus_chosen_that_can_have_one_of_each() -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("x", 1, on_node(0)), wanted("y", 1, on_node(1)))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert sorted(addresses(cluster, request="x") + addresses(cluster, request="y")) == sorted(
        NEAREST[gpu] for gpu in cluster.gpus("p")[1]
    )


@pytest.mark.parametrize("card", [0, 7])
async def test_what_only_some_nics_can_have_in_common_is_found_wherever_they_are(card: int) -> None:
    cluster = GpuCluster()
    functions(cluster, "a")
    alike = [
        {"requests": ["x"], "matchAttribute": f"{SRIOV}/pfPciAddress"},
        {"requests": ["y"], "matchAttribute": f"{SRIOV}/vfID"},
    ]
    of_card = f'{OF_SRIOV}.pfPciAddress == "{NEAREST[card]}"'
    x, y = wanted("x", 2, of_card, device_class=SRIOV), wanted("y", 2, device_class=SRIOV)
    template(cluster, gpus(), x, y, constraints=alike)
    pod(cluster)
    await run(cluster)
    assert {one[:-5] for one in pinned(cluster, "x")} == {NEAREST[card][:-5]}
    assert len({one[-4:] for one in pinned(cluster, "y")}) == 1


async def test_a_function_that_both_drivers_publish_counts_once() -> None:
    cluster = a_cluster()
    one, other = f"{NEAREST[0][:-1]}1", f"{NEAREST[1][:-1]}1"
    cluster.put(RESOURCE_SLICES, nics.published("a", [nics.device(one, virtual=True)]))
    made = [nics.function(one, NEAREST[0]), nics.function(other, NEAREST[1])]
    template(cluster, gpus(), wanted("nic"), wanted("vf", device_class=SRIOV))
    pod(cluster)
    cluster.put(RESOURCE_SLICES, nics.published("a", made[:1], driver=SRIOV))
    await run(cluster)
    assert cluster.claim("p") is None
    cluster.put(RESOURCE_SLICES, nics.published("a", made, driver=SRIOV))
    await run(cluster)
    assert (pinned(cluster, "nic"), pinned(cluster, "vf")) == ([one], [other])


async def test_a_pair_of_requests_for_several_gpus_gets_a_nic_of_its_own_gpus() -> None:
    cluster = a_cluster()
    template(cluster, gpus("gpu-0", 2), wanted("nic-0"), gpus("gpu-1", 2), wanted("nic-1"))
    pod(cluster)
    await run(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    (own,) = [one for one in claim["spec"]["devices"]["config"] if "order" in one["opaque"]["parameters"]]
    number = {gpu.uuid: gpu.index for gpu in cluster.machines["a"].gpus}
    for at in (0, 1):
        near = {NEAREST[number[uuid]] for uuid in own["opaque"]["parameters"]["order"][f"gpu-{at}"]}
        assert set(addresses(cluster, request=f"nic-{at}")) < near


async def test_the_nics_of_a_constraint_with_one_gpu_are_for_it_and_others_need_not_have_as_many() -> None:
    cluster = a_cluster()
    machine = cluster.machines["a"]
    made = [nics.function(f"{card[:-1]}{1 + at}", card, at) for card in NEAREST.values() for at in range(2)]
    for each, gpu in zip(made, (gpu for gpu in machine.gpus for _ in range(2)), strict=True):
        each["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": gpu.pcie_root}
    cluster.put(RESOURCE_SLICES, nics.published("a", made, driver=SRIOV))
    alike = {"requests": ["one", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    template(cluster, gpus("other"), gpus("one"), wanted("nic", 2, device_class=SRIOV), constraints=[alike])
    pod(cluster, near_nic="required")
    await run(cluster)
    first, second = pinned(cluster, "nic")
    assert first[:-1] == second[:-1]
    assert f"{first[:-1]}0" in {NEAREST[gpu] for gpu in cluster.gpus("p")[1]}


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> Mock:
    counted = Mock(side_effect=nearest_nics.dealt)
    monkeypatch.setattr(nearest_nics, "dealt", counted)
    return counted


def alike_functions(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"constraints": [{"requests": [one["name"] for one in requests], "matchAttribute": f"{SRIOV}/vfID"}]}


async def ready(cluster: GpuCluster) -> None:
    """Have a cluster know all there is, and its pods wait."""
    await cluster.settle()
    cluster.worker.picture.nics.counts.forget()


async def test_nothing_is_assigned_that_too_few_nics_have_in_common(assigned: Mock) -> None:
    cluster = GpuCluster()
    for at in range(3):
        functions(cluster, f"n{at}")
    texts = [f'{OF_SRIOV}.pfPciAddress != "{NEAREST[0]}"', *[f"{OF_SRIOV}.vfID != {100 + at}" for at in range(8)]]
    requests = [wanted(f"n{at}", 1, text, device_class=SRIOV) for at, text in enumerate(texts)]  # eight have a number
    template(cluster, gpus(), *requests, **alike_functions(*requests))
    pod(cluster)
    await ready(cluster)
    with pytest.raises(NoNicsError, match="no eligible node has enough free NICs"):
        decide(Snapshot(cluster.worker.picture, "default"), wish_of(cluster, "p"))
    assert assigned.call_count == 0


async def hopeless(cluster: GpuCluster, nodes: int) -> None:
    """Have a pod want what no way of many gives: three requests on two cards, and each number is had by eight."""
    for at in range(nodes):
        functions(cluster, f"n{at}", 32)
    two = f'{OF_SRIOV}.pfPciAddress in ["{NEAREST[0]}", "{NEAREST[1]}"]'
    texts = [f"{OF_SRIOV}.vfID != {100 + at}" for at in range(4)]
    requests = [
        wanted(f"n{at}", 1, text, *([two] if at < 3 else []), device_class=SRIOV) for at, text in enumerate(texts)
    ]
    template(cluster, gpus(), *requests, **alike_functions(*requests))
    pod(cluster)
    await ready(cluster)


async def test_a_whole_search_is_bounded_and_goes_on_behind_where_it_ended(
    assigned: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = GpuCluster()
    await hopeless(cluster, 4)
    monkeypatch.setattr(nic_node, "MOST_WORK", 40 * 8 * 32 * 4 // 8)  # 40 tries of so many functions for four requests
    assigned.reset_mock()
    picture, version = cluster.worker.picture, cluster.worker.picture.version
    for ask in range(3):
        with pytest.raises(
            NoNicsError, match=r"no node with free GPUs was found yet that has them. Other nodes are tried next"
        ):
            decide(Snapshot(picture, "default"), wish_of(cluster, "p"))
        assert picture.version == version + ask + 1, "so it is asked again"
        assert assigned.call_count <= (40 + 4) * (ask + 1)
    with pytest.raises(NoNicsError, match="no eligible node has enough free NICs"):
        decide(Snapshot(picture, "default"), wish_of(cluster, "p"))


async def test_every_node_of_a_gang_is_looked_at_at_any_cost_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_node, "MOST_WORK", 1)
    cluster = GpuCluster()
    for name in "abc":
        functions(cluster, name)
    template(cluster, gpus(count=8), wanted("nic", 8, device_class=SRIOV))
    gang(cluster, *"pqr", near_nic="required")
    await run(cluster)
    assert {cluster.gpus(name)[0] for name in "pqr"} == {*"abc"}


async def test_a_search_that_ended_on_a_node_does_not_say_that_no_set_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_node, "MOST_TRIES", 8)
    cluster = GpuCluster()
    await hopeless(cluster, 2)
    picture = cluster.worker.picture
    for _ in range(2):
        with pytest.raises(NoNicsError, match=r"no node with free GPUs was found that has them. Not all combinations"):
            decide(Snapshot(picture, "default"), wish_of(cluster, "p"))
    monkeypatch.undo()
    picture.nics.counts.changed("n0")
    picture.nics.counts.changed("n1")
    with pytest.raises(NoNicsError, match="no eligible node has enough free NICs"):
        decide(Snapshot(picture, "default"), wish_of(cluster, "p"))


async def test_where_the_one_set_that_was_offered_will_not_do_it_is_not_said_that_no_set_exists() -> None:
    cluster = a_cluster()
    cluster.rival("theirs", "a", [1, 2, 3])
    template(cluster, gpus(count=2), wanted("x", 1, named(4)), wanted("y", 1, on_node(0)))
    pod(cluster, near_nic="required", required="same-numa")
    await run(cluster)
    assert cluster.claim("p") is None
    assert "no node with free GPUs was found that has them. Not all combinations" in (cluster.note("p", "reason") or "")


# Against all the ways that there are.


class Case:
    """A node with four free GPUs and a few NICs, and a pod that wants some of both."""

    def __init__(self, seed: int) -> None:
        own = random.Random(seed)
        self.free = sorted(own.sample(range(8), 4))
        every = [(gpu, number) for gpu in range(8) for number in range(2)]
        rather = [one for one in every if one[0] in self.free]
        self.nics = sorted(own.sample(rather, own.randint(2, 5)) + own.sample(every, 1))
        self.nics = sorted(set(self.nics))
        self.gpus = own.randint(1, 3)
        self.near = own.random() < 0.7
        self.requests = [self.request(own) for _ in range(own.randint(1, 3))]
        self.alike = own.random() < 0.3

    @staticmethod
    def request(own: random.Random) -> tuple[int, frozenset[int] | None]:
        """Return how many, and the cards that they may be of; None for any."""
        return own.choice([1, 1, 1, 2]), frozenset(
            own.sample(range(8), own.randint(3, 6))
        ) if own.random() < 0.6 else None

    def cluster(self) -> GpuCluster:
        made = GpuCluster()
        made.node("a", "hgx-h100")
        devices = [nics.function(self.address(one), NEAREST[one[0]], one[1]) for one in self.nics]
        made.put(RESOURCE_SLICES, nics.published("a", devices, driver=SRIOV))
        made.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
        made.rival("theirs", "a", [gpu for gpu in range(8) if gpu not in self.free])
        requests = []
        for at, (count, cards) in enumerate(self.requests):
            listed = ", ".join(f'"{NEAREST[card]}"' for card in sorted(cards or ()))
            texts = [f"{OF_SRIOV}.pfPciAddress in [{listed}]"] if cards is not None else []
            requests.append(wanted(f"n{at}", count, *texts, device_class=SRIOV))
        template(made, gpus(count=self.gpus), *requests, **(alike_functions(*requests) if self.alike else {}))
        pod(made, **({"near_nic": "required"} if self.near else {}))
        return made

    @staticmethod
    def address(nic: tuple[int, int]) -> str:
        return f"{NEAREST[nic[0]][:-1]}{1 + nic[1]}"

    def ways(self) -> Iterator[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]]:
        """Yield all sets of GPUs with NICs, as many as are asked for in the requests' order, that are a place."""
        slots = [cards for count, cards in self.requests for _ in range(count)]
        for way in itertools.permutations(self.nics, len(slots)):
            if any(cards is not None and nic[0] not in cards for nic, cards in zip(way, slots, strict=True)):
                continue
            if self.alike and len({number for _, number in way}) > 1:
                continue
            for own in itertools.combinations(self.free, self.gpus):
                if not self.near or self.is_even(own, way):
                    yield own, way

    @staticmethod
    def is_even(gpus: tuple[int, ...], way: tuple[tuple[int, int], ...]) -> bool:
        """Return whether each NIC is near a GPU, which is the one at its switch, and these have as many."""
        load = Counter(gpu for gpu, _ in way)
        every, some = divmod(len(way), len(gpus))
        return load.keys() <= set(gpus) and all(load[gpu] in (every, every + bool(some)) for gpu in gpus)


@pytest.mark.parametrize("seed", sampled(range(150)))
async def test_a_pod_is_placed_if_and_only_if_some_set_of_gpus_and_nics_will_do(seed: int) -> None:
    case = Case(seed)
    cluster = case.cluster()
    await cluster.settle()
    ways = set(case.ways())
    if cluster.claim("p") is None:
        assert not ways, cluster.note("p", "reason")
        return
    cluster.schedule()
    await cluster.settle()
    by_address = {case.address(one): one for one in case.nics}
    got = [[by_address[one] for one in pinned(cluster, f"n{at}")] for at in range(len(case.requests))]
    assert (tuple(cluster.gpus("p")[1]), tuple(itertools.chain(*got))) in ways


async def test_requests_that_tolerate_other_taints_are_unlike() -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    cluster.node("a", "hgx-h100")
    cluster.rival("theirs", "a", [1, 2, 3])
    tainted = nics.device(NEAREST[6], number=6, numa=1) | {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    others = [nics.device(NEAREST[gpu], number=gpu, numa=gpu // 4) for gpu in (0, 7)]
    cluster.put(RESOURCE_SLICES, nics.published("a", [tainted, *others]))
    template(cluster, gpus(count=2), wanted("x", 1, tolerations=[{"key": "k", "operator": "Exists"}]), wanted("y"))
    pod(cluster, near_nic="required", required="same-numa")
    await run(cluster)
    assert cluster.claim("p") is not None or "Not all combinations" in (cluster.note("p", "reason") or "")
