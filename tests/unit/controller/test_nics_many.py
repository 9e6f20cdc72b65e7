"""NICs beside GPUs where there are many: of a card, of nodes, of wishes."""

from __future__ import annotations

import pytest

from dradriver.allocator.choice import nearest_nics
from dradriver.allocator.choice.nearest_nics import Costs
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nics import SRIOV
from tests.unit.controller.test_nics import given, gpus, pod, run, template, wanted

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
