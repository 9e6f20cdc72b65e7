"""GPU time by how GPUs are handed out: what a claim was promised costs it as much once it is given."""

from __future__ import annotations

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.claims.usage_config_maps import Kind
from dradriver.api.policies.gpu_modes import Mode
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.gpucluster import GpuCluster
from tests.unit.controller.test_static_pods import MIXED, SEVEN, STATIC, device, others, static

H100 = "NVIDIA H100 80GB HBM3"


def weighed(cluster: GpuCluster) -> dict[tuple[str, Kind], float]:
    """Return how many GPUs all claims have, by product and kind."""
    found: dict[tuple[str, Kind], float] = {}
    gpu_time = cluster.worker.picture.gpu_time
    for claim in gpu_time.claims():
        for bucket, gpus in gpu_time.of(claim).items():
            found[bucket.product, bucket.kind] = found.get((bucket.product, bucket.kind), 0.0) + gpus
    return found


@pytest.mark.parametrize(
    "mode", [Mode(shared="mps"), Mode(mig="dynamic"), Mode(mig="placements"), STATIC], ids=lambda mode: mode.mig
)
async def test_what_was_promised_is_what_is_given(mode: Mode) -> None:
    cluster = GpuCluster()
    expected: dict[tuple[str, Kind], float]
    if mode == STATIC:
        static(cluster, "a", MIXED)
    else:
        cluster.node("a", "hgx-h100", mode=mode)
    if mode.shared == "mps":
        cluster.pod("half", Amount(cores=50))
        cluster.pod("quarter", Amount(cores=25))
        expected = {(H100, "share"): 0.75}
    else:
        cluster.pod("one", ("1g.10gb",))
        cluster.pod("two", {"x": ("2g.20gb", "3g.40gb")})
        expected = {(H100, "slice"): 0.875}
    await cluster.settle()
    assert weighed(cluster) == expected
    assert cluster.worker.picture.gpu_time.now() == {"default": (0.0, sum(expected.values()))}
    cluster.schedule()
    await cluster.settle()
    assert weighed(cluster) == expected
    assert cluster.worker.picture.gpu_time.now() == {"default": (sum(expected.values()),) * 2}


async def test_seven_slices_of_one_gpu_are_no_more_than_it() -> None:
    cluster = GpuCluster()
    static(cluster, "a", SEVEN)
    await cluster.settle()
    others(cluster, *(device(cluster, "a", 0, "1g.10gb", start) for start in range(7)))
    await cluster.settle()
    assert weighed(cluster) == {(H100, "slice"): 0.875}


async def test_slices_that_were_seen_before_their_node_are_slices_once_it_is_there() -> None:
    cluster = GpuCluster()
    static(cluster, "a", SEVEN)
    others(cluster, device(cluster, "a", 0, "1g.10gb", 2))
    cluster.deliver(RESOURCE_CLAIMS)
    cluster.worker.picture.gpu_time.settle()
    assert weighed(cluster) == {("", "whole"): 1.0}
    cluster.deliver()
    assert weighed(cluster) == {(H100, "slice"): 0.125}


@pytest.mark.usefixtures("addon")
@pytest.mark.parametrize("profile", ["hgx-h100", "dgx-h100"])
async def test_slices_of_the_other_driver_are_slices(profile: str) -> None:
    cluster = AddOnCluster()
    cluster.node("a", profile)
    for _ in cluster.offer_parts("a", {i: i for i in range(8)}) if profile == "hgx-h100" else ():
        pass
    for start in range(7):
        cluster.foreign(f"t{start}", "a", f"gpu-3-mig-1g10gb-19-{start}")
    cluster.foreign("two", "a", "gpu-4-mig-3g40gb-9-0", "gpu-4-mig-1g10gb-me-20-4")
    cluster.foreign("whole", "a", "gpu-5")
    await cluster.settle()
    known = profile == "hgx-h100"  # else their driver tells of no slices, and which GPUs these are nobody knows
    assert cluster.worker.picture.gpu_time.now() == {"default": ((0.875 + 0.625 + 1.0,) * 2 if known else (10.0,) * 2)}


@pytest.mark.usefixtures("addon")
async def test_one_gpu_that_has_another_name_now_is_one_gpu() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-3")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.worker.picture.gpu_time.now() == {"default": (3.0, 3.0)}
    cluster.shift("a", {i: i - 1 for i in range(1, 8)})
    await cluster.settle()
    assert cluster.worker.picture.gpu_time.now() == {"default": (3.0, 3.0)}
