"""NICs of other drivers beside GPUs of AMD: by this driver's class, and by that of AMD's own driver."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from dradriver.api.base.allocating_driver import AMD, OURS, bound
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.topology import profiles
from tests.effort import sampled
from tests.fakes import nics
from tests.fakes.amdcluster import AmdCluster
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import a_cluster, addresses, asked, given, gpus, pod, run, template, wanted

LEDGERS = {"amd.gpu.topology": (OURS, GpuCluster), "gpu.amd.com": (AMD, AmdCluster)}
MACHINES = ["mi300x-x8", "mi250-x4"]


@pytest.fixture(params=LEDGERS)
def device_class(request: pytest.FixtureRequest) -> Iterator[str]:
    with bound(LEDGERS[request.param][0]):
        yield request.param


def cluster_of(device_class: str, *nodes: str, profile: str) -> GpuCluster:
    return a_cluster(*nodes, profile=profile, kind=LEDGERS[device_class][1])


def near(profile: str) -> dict[int, set[str]]:
    """Return the addresses of the NICs that are as near to each GPU as any is."""
    machine = profiles.load(profile)
    found = {}
    for at, gpu in enumerate(machine.gpus):
        best = min(row[at] for row in machine.nic_paths)
        found[gpu.index] = {
            nic.pci for nic, row in zip(machine.nics, machine.nic_paths, strict=True) if row[at] == best
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("near_nic", ["", "required"])
@pytest.mark.parametrize("profile", sampled(MACHINES, fast=2))
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_each_gpu_gets_a_nic_that_is_nearest_to_it(
    device_class: str, profile: str, count: int, near_nic: str
) -> None:
    cluster = cluster_of(device_class, profile=profile)
    template(cluster, gpus(count=count, device_class=device_class), wanted("nic", count))
    pod(cluster, **({"near_nic": near_nic} if near_nic else {}))
    await run(cluster)
    _, chosen = cluster.gpus("p")
    got = addresses(cluster)
    assert len(set(got)) == len(chosen) == count
    nearest = near(profile)
    assert all(any(address in nearest[gpu] for address in got) for gpu in chosen)
    assert set(got) <= set.union(*(nearest[gpu] for gpu in chosen))
    assert asked(cluster)["gpu"]["deviceClassName"] == device_class
    assert len(given(cluster)) == count
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_a_pod_that_must_have_near_ones_waits_where_too_few_are_free(device_class: str) -> None:
    """An MI250 machine has two NICs at each socket, for four dies."""
    cluster = cluster_of(device_class, profile="mi250-x4")
    for name in ("p", "q"):
        template(cluster, gpus(count=2, device_class=device_class), wanted("nic", 2))
        pod(cluster, name, near_nic="required")
        await run(cluster)
    pod(cluster, "r", near_nic="required")
    await run(cluster)
    assert sorted(addresses(cluster, "p") + addresses(cluster, "q")) == sorted(
        nic.pci for nic in cluster.machines["a"].nics
    )
    assert cluster.claim("r") is None
    assert "NIC" in (cluster.note("r", "reason") or "")


async def test_a_node_with_too_few_is_passed_over(device_class: str) -> None:
    cluster = cluster_of(device_class, "a", "b", profile="mi300x-x8")
    far = [nics.device(nic.pci, number=at, numa=None) for at, nic in enumerate(cluster.machines["a"].nics[:3])]
    cluster.put(RESOURCE_SLICES, nics.published("a", far))
    template(cluster, gpus(count=4, device_class=device_class), wanted("nic", 4))
    pod(cluster, near_nic="required")
    await run(cluster)
    assert cluster.gpus("p")[0] == "b"


async def test_without_a_request_for_nics_near_nic_takes_gpus_that_have_one(device_class: str) -> None:
    cluster = cluster_of(device_class, profile="mi300x-x8")
    machine = cluster.machines["a"]
    cluster.publish("a", msgspec.structs.replace(machine, nics=machine.nics[-1:], nic_paths=machine.nic_paths[-1:]))
    wishes = {"near-nic": "required"} | ({} if device_class == "gpu.amd.com" else {"vendor": "amd"})
    cluster.pod("p", 1, wishes=wishes)
    await run(cluster)
    assert cluster.gpus("p") == ("a", [7])
