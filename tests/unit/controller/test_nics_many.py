"""NICs beside GPUs where there are many: of a card, of nodes, of wishes."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import Costs
from dradriver.api import simple_cel
from dradriver.controller import nic_places
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nics import SRIOV
from tests.unit.controller.test_nics import gang, given, gpus, pod, run, template, wanted

pytestmark = pytest.mark.looptime


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
    assert "so many free ones near GPUs that are free" in (cluster.note("p", "reason") or "")
    assert rows == []


async def test_as_many_functions_as_a_card_has_are_had(rows: list[int]) -> None:
    cluster = GpuCluster()
    functions(cluster, "a")
    template(cluster, gpus(), wanted("nic", 16, device_class=SRIOV))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert len(given(cluster, driver=SRIOV)) == 16
    assert max(rows) == 16


def far_node(cluster: GpuCluster, name: str, count: int = 8) -> None:
    """Add a node whose NICs are near none of its GPUs."""
    cluster.node(name, "hgx-h100")
    far = [nics.device(f"0000:f{at}:00.0", number=at, numa=None) for at in range(count)]
    cluster.put(RESOURCE_SLICES, nics.published(name, far))


def near_node(cluster: GpuCluster, name: str) -> None:
    cluster.node(name, "hgx-h100")
    cluster.put(RESOURCE_SLICES, nics.published(name, nics.of_machine(cluster.machines[name])))


async def test_a_node_that_joins_has_nobody_read_the_nics_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
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
