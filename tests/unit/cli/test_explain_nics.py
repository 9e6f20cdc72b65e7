"""``gputopo explain`` of pods that want NICs of other drivers: it reads what the controller reads."""

from __future__ import annotations

import pytest

from dradriver.kube.resources import RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import a_cluster, gang, gpus, pod, run, template, wanted


@pytest.fixture
def cluster() -> GpuCluster:
    """Two nodes with eight GPUs; one has a NIC for five of them, the other two that nothing is near."""
    made = a_cluster("a", "b")
    made.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(made.machines["a"])[:5]))
    far = [nics.device(f"0000:f{at}:00.0", number=at, numa=None) for at in range(2)]
    made.put(RESOURCE_SLICES, nics.published("b", far))
    template(made, gpus(count=2), wanted("nic", 2))
    return made


async def test_a_pod_that_waits_for_nics_is_told_where_how_many_are_left(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    for name in ("p", "q"):
        pod(cluster, name, near_nic="required")
    await run(cluster)
    pod(cluster, "next", near_nic="required")
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["state"] == "waits"
    assert found["reason"] == cluster.note("next", "reason")
    assert found["reason"].startswith(
        "Waiting for 2 NICs of class dranet.net: no eligible node has enough free NICs near"
    )
    assert found["nearest"] == (
        "b: 2 of 2 NICs free, 2 of them match the request, for no GPU. "
        "a: 1 of 5 NICs free, 1 of them match the request, one each for GPU 4."
    )
    assert found["would_help"] == []


async def test_the_place_that_it_would_get_is_the_controllers(cluster: GpuCluster, shell: CommandLine) -> None:
    pod(cluster, "first", near_nic="required")
    found = await shell.data("explain first")
    assert found["reason"].startswith("There is a place for the pod on a now")
    await run(cluster)
    assert cluster.gpus("first")[0] == "a"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ("xy", "There are places for 2 pods"),
        ("xyz", " Each pod also requests 2 NICs of class dranet.net near its GPUs."),
    ],
)
async def test_of_a_gang_the_same_is_said(cluster: GpuCluster, shell: CommandLine, pods: str, says: str) -> None:
    gang(cluster, *pods, near_nic="required")
    cluster.deliver()
    assert (await shell.data("explain x"))["reason"].count(says) == 1
    await run(cluster)
    assert {cluster.claim(name) is None for name in pods} == {pods == "xyz"}
