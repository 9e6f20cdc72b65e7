"""NICs beside GPUs where there are many: of a card, of nodes, of wishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import Costs
from dradriver.allocator.fleet.gang_placement import place_gang
from dradriver.api.vocabulary import simple_cel
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_nics, gang_plan, nic_choice, nic_places
from dradriver.controller.placing.decide import decide
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.nic_refusals import NoNicsError
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_SLICES
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import NEAREST, gang, given, gpus, pod, run, template, wanted
from tests.fakes.nics import SRIOV


def functions(cluster: GpuCluster, node: str, each: int = 16) -> None:
    """Add a node whose cards have so many virtual functions each."""
    cluster.node(node, "hgx-h100")
    cards = [nic.pci for nic in cluster.machines[node].nics if nic.pci]
    made = [nics.function(f"{card[:-4]}{1 + at // 8:02x}.{at % 8}", card, at) for card in cards for at in range(each)]
    cluster.put(RESOURCE_SLICES, nics.published(node, made, driver=SRIOV))
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many rows each assignment has had."""
    out: list[int] = []
    assign = nearest_nics.assign

    def counted(costs: Costs) -> tuple[int, ...] | None:
        out.append(len(costs))
        return assign(costs)

    monkeypatch.setattr(nearest_nics, "assign", counted)
    return out


@pytest.mark.parametrize("count", [17, 31])
async def test_more_functions_than_any_card_near_a_gpu_has_are_refused_without_a_search(
    count: int, rows: list[int]
) -> None:
    cluster = GpuCluster()
    for at in range(3):
        functions(cluster, f"n{at}")
    template(cluster, gpus(), wanted("nic", count, device_class=SRIOV))
    pod(cluster, near_nic="required")
    await cluster.settle()
    assert "enough free NICs near its free GPUs" in (cluster.note("p", "reason") or "")
    assert rows == []


async def test_as_many_functions_as_a_card_has_are_had(rows: list[int]) -> None:
    cluster = GpuCluster()
    functions(cluster, "a")
    template(cluster, gpus(), wanted("nic", 16, device_class=SRIOV))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert len(given(cluster, driver=SRIOV)) == 16
    assert max(rows) == 16


async def test_where_any_nic_will_do_those_of_other_nodes_are_counted_alone(rows: list[int]) -> None:
    cluster = GpuCluster()
    for at in range(20):
        functions(cluster, f"n{at:02}", 1)
    template(cluster, gpus(), wanted("nic", 2, device_class=SRIOV))
    pod(cluster)
    await run(cluster)
    assert len(given(cluster, driver=SRIOV)) == 2
    assert len(rows) < 8, "of its own node, each time that it was looked at"


def far_node(cluster: GpuCluster, name: str, count: int = 8) -> None:
    """Add a node whose NICs are near none of its GPUs."""
    cluster.node(name, "hgx-h100")
    far = [nics.device(f"0000:f{at}:00.0", number=at, numa=None) for at in range(count)]
    cluster.put(RESOURCE_SLICES, nics.published(name, far))


def near_node(cluster: GpuCluster, name: str) -> None:
    cluster.node(name, "hgx-h100")
    cluster.put(RESOURCE_SLICES, nics.published(name, nics.of_machine(cluster.machines[name])))


async def test_a_node_that_joins_makes_no_pod_read_the_nics_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    for at in range(3):
        near_node(cluster, f"n{at}")
    for at in range(70):
        text = f'device.attributes["dra.net"].ifName == "x{at}"'
        template(cluster, gpus(), wanted("nic", 1, text), name=f"t{at}")
        pod(cluster, f"p{at}", f"t{at}")
    await cluster.settle()
    judged = Mock(side_effect=simple_cel.hold)
    monkeypatch.setattr(simple_cel, "hold", judged)
    cluster.node("z", "hgx-h100")
    await cluster.settle()
    assert judged.call_count == 0, "the new one has none"


async def test_a_gang_goes_past_any_number_of_nodes_whose_nics_are_near_no_gpu() -> None:
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    for at in range(20):
        far_node(cluster, f"a{at:02}")
    for name in "yz":
        near_node(cluster, name)
    template(cluster, gpus(count=8), wanted("nic", 8))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert {cluster.gpus(name)[0] for name in "pq"} == {"y", "z"}, cluster.note("p", "reason")


@pytest.mark.slow
@pytest.mark.parametrize("tie", [False, True])
async def test_nodes_whose_nics_are_near_no_gpu_are_not_looked_at(tie: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_places, "MOST_LOOKS", 1)  # of 32 nodes each
    cluster = GpuCluster()
    cluster.put(DEVICE_CLASSES, nics.device_class())
    for at in range(40):
        far_node(cluster, f"a{at:02}", 1)
    near_node(cluster, "z")
    constraints: dict[str, Any] = {}
    if tie:
        root = "resource.kubernetes.io/pcieRoot"
        constraints = {"constraints": [{"requests": ["gpu", "nic"], "matchAttribute": root}]}
        machine = cluster.machines["z"]
        roots = {nic.pci: gpu.pcie_root or "" for nic, gpu in zip(machine.nics, machine.gpus, strict=True) if nic.pci}
        cluster.put(RESOURCE_SLICES, nics.published("z", nics.of_machine(machine, roots)))
    template(cluster, gpus(), wanted(), **constraints)
    pod(cluster, **({} if tie else {"near_nic": "required"}))
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    assert cluster.gpus("p")[0] == "z"


def crowded_node(cluster: GpuCluster, name: str) -> None:
    """Add a node whose NICs are near GPUs, all near the same one: by their number they are enough."""
    cluster.node(name, "hgx-h100")
    made = [nics.function(f"{NEAREST[0][:-1]}{1 + at}", NEAREST[0], at) for at in range(2)]
    cluster.put(RESOURCE_SLICES, nics.published(name, made, driver=SRIOV))
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))


def wish_of(cluster: GpuCluster, name: str) -> PlacementRequest:
    picture = cluster.worker.picture
    pod = picture.pods["default", name]
    return Member(pod, picture.templates.of(pod)).wish


@pytest.mark.slow
async def test_who_asks_again_goes_on_behind_the_nodes_that_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_places, "MOST_LOOKS", 1)
    cluster = GpuCluster()
    for at in range(40):
        crowded_node(cluster, f"a{at:02}")
    template(cluster, gpus(count=2), wanted("nic", 2, device_class=SRIOV))
    pod(cluster, near_nic="required")
    await cluster.settle()
    refused = "enough free NICs near its free GPUs"
    assert refused in (cluster.note("p", "reason") or "")
    functions(cluster, "z", 1)
    monkeypatch.setattr(cluster.worker, "turn", None)
    cluster.deliver()
    picture, apart = cluster.worker.picture, Mock(side_effect=nic_choice.gpus_apart)
    monkeypatch.setattr(nic_choice, "gpus_apart", apart)
    assert decide(Snapshot(picture, "default"), wish_of(cluster, "p")).node == "z"
    assert apart.call_count == 0, "nothing changed at any of the others"
    picture.nics.counts.forget()
    version = picture.version
    with pytest.raises(NoNicsError, match="Other nodes are tried next"):
        decide(Snapshot(picture, "default"), wish_of(cluster, "p"))
    assert picture.version > version, "so it is asked again"
    assert decide(Snapshot(picture, "default"), wish_of(cluster, "p")).node == "z"
    assert apart.call_count == 32, "of the others none was looked at again"


@pytest.mark.parametrize("what", ["nics", "gpu"])
async def test_a_node_is_looked_at_again_when_something_of_it_changed(what: str) -> None:
    cluster = GpuCluster()
    near_node(cluster, "a")
    cluster.put(DEVICE_CLASSES, nics.device_class())
    devices = nics.of_machine(cluster.machines["a"])
    template(cluster, gpus(), wanted())
    pod(cluster, "first", near_nic="required")
    await run(cluster)
    (number,) = cluster.gpus("first")[1]
    free = [one for one in devices if one["attributes"]["dra.net/pciAddress"]["string"] != NEAREST[number]]
    cluster.put(RESOURCE_SLICES, nics.published("a", [nics.device(NEAREST[number]) | {"name": "other"}]))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is None
    if what == "nics":
        cluster.put(RESOURCE_SLICES, nics.published("a", free))
    else:
        cluster.remove(PODS, "first", "default")
        cluster.collect()
    await run(cluster)
    assert cluster.gpus("p")[0] == "a"


async def crowded_gang(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuCluster, Callable[[], dict[Member, Placement]]]:
    """Return a cluster with a gang that waits for its first look behind 12 crowded nodes, and what looks."""
    cluster = GpuCluster()
    for at in range(12):
        crowded_node(cluster, f"a{at:02}")
    template(cluster, gpus(count=8), wanted("nic", 2, device_class=SRIOV))
    gang(cluster, *"pq", near_nic="required")
    await cluster.settle()
    assert "enough free NICs near its free GPUs" in (cluster.note("p", "reason") or "")
    for name in "yz":
        functions(cluster, name, 1)
    monkeypatch.setattr(cluster.worker, "turn", None)
    cluster.deliver()
    picture = cluster.worker.picture
    picture.nics.counts.forget()
    pods = [picture.pods["default", name] for name in "pq"]
    members = [Member(pod, picture.templates.of(pod)) for pod in pods]
    return cluster, lambda: gang_plan.plan(Snapshot(picture, "default"), members, GangTerms(None, "g"))


async def test_all_nodes_of_a_plan_that_have_too_few_nics_next_to_its_gpus_are_left_out_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, look = await crowded_gang(monkeypatch)
    monkeypatch.setattr(gang_plan, "place_gang", plans := Mock(side_effect=place_gang))
    assert {one.choice.node for one in look().values()} == {"y", "z"}
    assert plans.call_count == 7, "six of two nodes each were nothing"


async def test_a_gang_is_looked_for_behind_any_number_of_plans_that_have_too_few_nics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_nics, "MOST_LOOKS", 1)
    cluster, look = await crowded_gang(monkeypatch)
    version = cluster.worker.picture.version
    for _ in range(6):
        with pytest.raises(NoNicsError, match="Not all plans for the gang were tried"):
            look()
    assert cluster.worker.picture.version == version + 6, "so it is asked again"
    assert {one.choice.node for one in look().values()} == {"y", "z"}


def half_node(cluster: GpuCluster, name: str, gpus: range) -> None:
    """Add a node on which only these GPUs have a NIC near."""
    cluster.node(name, "hgx-h100")
    devices = [nics.device(address, number=at) for at, address in enumerate(NEAREST[gpu] for gpu in gpus)]
    cluster.put(RESOURCE_SLICES, nics.published(name, devices))
    cluster.put(DEVICE_CLASSES, nics.device_class())


@pytest.mark.parametrize("half", [range(4), range(4, 8)])
async def test_a_gangs_pods_get_those_gpus_of_their_nodes_that_have_nics_near(half: range) -> None:
    cluster = GpuCluster()
    for name in "yz":
        half_node(cluster, name, half)
    template(cluster, gpus(count=4), wanted("nic", 4))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    assert sorted(cluster.gpus(name) for name in "pq") == [("y", [*half]), ("z", [*half])]


async def test_a_gang_is_content_with_nodes_that_have_less_than_others_seem_to_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_nics, "MOST_LOOKS", 2)
    cluster = GpuCluster()
    for at in range(8):
        half_node(cluster, f"a{at}", range(5, 8, 2))
    template(cluster, gpus(count=2), wanted("nic", 2))
    gang(cluster, *"pq", near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    places = [cluster.gpus(name) for name in "pq"]
    assert len({node for node, _ in places}) == 2
    assert [gpus for _, gpus in places] == [[5, 7]] * 2


@pytest.mark.parametrize(("count", "near"), [(1, [5]), (3, [2, 5])])
async def test_gpus_need_not_all_have_as_many_nics(count: int, near: list[int]) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100")
    cards = [NEAREST[near[at % len(near)]] for at in range(count)]
    made = [nics.function(f"{card[:-4]}01.{at}", card, at) for at, card in enumerate(cards)]
    cluster.put(RESOURCE_SLICES, nics.published("a", made, driver=SRIOV))
    cluster.put(DEVICE_CLASSES, nics.device_class(SRIOV, SRIOV))
    template(cluster, gpus(count=2), wanted("nic", count, device_class=SRIOV))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
    assert set(near) <= set(cluster.gpus("p")[1])
    assert len(given(cluster, driver=SRIOV)) == count
