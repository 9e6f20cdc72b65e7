"""What the scheduler makes of what is asked of a GPU, and that our books say the same."""

from __future__ import annotations

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices.device_attributes import divisible
from tests.fakes.control_plane.devices import consumed
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_parts import bound, step


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (None, "100"), ("25", "25"), ("0", "1"), ("-1", "1"), ("12500m", "13"), ("101", None),
    ],
)  # fmt: skip
def test_the_schedulers_stand_in_rounds_as_it_does(asked: str | None, taken: str | None) -> None:
    assert consumed(asked, divisible(100, 100)) == taken


def test_the_schedulers_stand_in_rounds_memory_to_mebibytes_and_equal_shares_to_one_or_all() -> None:
    memory = divisible(81920, 81920, unit="Mi")
    assert [consumed(text, memory) for text in ("1000000", "1500Ki", "10G", "81Gi")] == ["1Mi", "2Mi", "9537Mi", None]
    thirds = divisible(100, 100, parts=3)
    assert [consumed(text, thirds) for text in ("1", "33", "34", "100", "101")] == ["33", "33", "100", "100", None]


@pytest.mark.slow
@pytest.mark.parametrize("equal", [2, 3, 7, 48])
async def test_equal_shares_fill_a_gpu_by_the_schedulers_rounding_as_by_our_books(equal: int) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(shared="mps", equal_shares=equal))
    cluster.pod("whole", 7)
    pods = [f"p{number}" for number in range(equal)]
    for name in pods:
        cluster.pod(name, Amount(cores=1))
    cluster.pod("late", Amount(cores=1))
    await step(cluster)
    assert bound(cluster, "whole", *pods, "late") == [True] * (equal + 1) + [False]
    taken = {str(one["consumedCapacity"]) for name in pods for one in results_of(cluster, name)}
    claims = [claim for name in pods if (claim := cluster.claim(name)) is not None]
    asked = {str(one["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]) for one in claims}
    assert taken == asked, "nothing is left to be rounded"


def results_of(cluster: GpuCluster, pod: str) -> list[dict[str, str]]:
    claim = cluster.claim(pod)
    assert claim is not None
    found: list[dict[str, str]] = claim["status"]["allocation"]["devices"]["results"]
    return found
