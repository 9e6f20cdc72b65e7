"""AMD's driver hands out the GPUs, and this one chooses them: by their addresses on the PCI bus, for want of uuids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import AMD, bound
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import amd
from tests.fakes.amdcluster import AmdCluster
from tests.fakes.gpucluster import claim_of

HIVES = ([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.fixture(autouse=True)
def ledger() -> Iterator[None]:
    with bound(AMD):
        yield


def free(cluster: AmdCluster, node: str = "a") -> list[int]:
    """What the allocator may choose from, by the machine's numbers."""
    inventory = cluster.worker.picture.inventory
    devices = {number: (node, uuid.lower()) for number, uuid in inventory.uuids(node).items()}
    return [n for n, device in devices.items() if inventory.usable(device, None) and not inventory.holders(device)]


async def test_a_pod_gets_one_hive_by_a_claim_of_their_class_that_is_pinned_to_addresses() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0-128")
    cluster.pod("p", 4)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    node, gpus = cluster.gpus("p")
    assert (node, gpus) == ("a", HIVES[1])
    assert sorted(cluster.given("p")) == [f"gpu-{index}-{128 + index}" for index in gpus]
    machine = cluster.machines["a"]
    assert cluster.note("p", "allocated") == ",".join(machine.gpus[index].uuid for index in gpus)
    claim = cluster.claim("p")
    assert claim is not None
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.amd.com"
    addresses = ", ".join(f'"{machine.gpus[index].pci}"' for index in gpus)
    assert request["exactly"]["selectors"] == [
        {
            "cel": {
                "expression": 'device.attributes["gpu.amd.com"].?type.orValue("") == "amdgpu" && '
                f'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") in [{addresses}]'
            }
        }
    ]
    (entry,) = claim["spec"]["devices"]["config"]
    assert entry["opaque"]["driver"] == names.DRIVER


async def test_what_is_held_under_old_names_stays_held_when_cards_shift() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-3-131")
    await cluster.settle()
    assert free(cluster) == [0, 1, 2, 4, 5, 6, 7]
    cluster.shift("a", {index: index - 1 for index in range(1, 8)})
    await cluster.settle()
    assert free(cluster) == [1, 2, 5, 6, 7], "3 is what the pod runs on, and 4 has its name"


async def test_a_leader_that_begins_knows_its_claims_by_their_pins() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    before = cluster.gpus("p")[1]
    cluster.restart()
    await cluster.settle()
    assert free(cluster) == [index for index in range(8) if index not in before]


async def test_partitions_and_devices_for_virtual_machines_are_no_gpus_and_keep_theirs_from_others() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    gpus = cluster.machines["a"].gpus
    parts = [amd.gpu(gpus[1], 1, kind="amdgpu-partition", render=129 + part) for part in range(2)]
    cluster.offer("a", [amd.gpu(gpus[0], 0), *parts, amd.vfio(gpus[0], 0), amd.gpu(gpus[2], 2)])
    await cluster.settle()
    assert free(cluster) == [0, 2], "1 is partitioned, and the others are not offered"
    cluster.foreign("machine", "a", "gpu-vfio-0")
    await cluster.settle()
    assert free(cluster) == [2]


async def test_gpus_that_are_divided_on_demand_are_not_chosen_among() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    cluster.offer("a", [device for gpu in cluster.machines["a"].gpus for device in amd.by_partition(gpu, gpu.index)])
    await cluster.settle()
    assert free(cluster) == []


async def test_a_release_without_the_standard_address_offers_nothing_that_is_known() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    devices = amd.whole(cluster.machines["a"])
    for device in devices:
        address = device["attributes"].pop("resource.kubernetes.io/pciBusID")
        device["attributes"]["pciAddr"] = address
    cluster.offer("a", devices)
    cluster.pod("p", 1)
    await cluster.settle()
    assert cluster.claim("p") is None


async def test_a_gpu_that_our_agent_does_not_know_is_left_out() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    devices = amd.whole(cluster.machines["a"])
    devices[0]["attributes"]["resource.kubernetes.io/pciBusID"] = {"string": "0000:ff:00.0"}
    cluster.offer("a", devices)
    await cluster.settle()
    assert free(cluster) == list(range(1, 8))


async def test_slices_in_either_order_come_to_the_same() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    (machine,) = (one for one in cluster.all(RESOURCE_SLICES) if one["spec"]["driver"] == names.DRIVER)
    cluster.remove(RESOURCE_SLICES, machine["metadata"]["name"])
    cluster.foreign("theirs", "a", "gpu-2-130")
    await cluster.settle()
    cluster.put(RESOURCE_SLICES, machine)
    await cluster.settle()
    assert free(cluster) == [0, 1, 3, 4, 5, 6, 7]
    cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
    await cluster.settle()
    assert free(cluster) == list(range(8))


def template(cluster: AmdCluster, **devices: Any) -> None:
    exactly = {"deviceClassName": "gpu.amd.com", "count": 4} | devices.pop("exactly", {})
    spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]} | devices}
    metadata = {"name": "t", "namespace": "default"}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": metadata, "spec": {"spec": spec}})
    claims = [{"name": "gpus", "resourceClaimName": claim_of("p")}]
    cluster.pod("p", 1, wishes={"template": "gpus/t"}, resourceClaims=claims)


async def test_a_template_of_theirs_may_say_the_product_as_they_write_it_and_keeps_its_configuration() -> None:
    cluster = AmdCluster()
    cluster.node("a")
    config = {"opaque": {"driver": "gpu.amd.com", "parameters": {"kind": "GpuConfig", "apiVersion": "x/v1alpha1"}}}
    product = 'device.attributes["gpu.amd.com"].productName == "AMD_Instinct_MI210"'
    template(cluster, exactly={"selectors": [{"cel": {"expression": product}}]}, config=[config])
    await cluster.settle()
    assert cluster.gpus("p")[1] in HIVES
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["spec"]["devices"]["config"][0] == config


def of_product(name: str) -> dict[str, Any]:
    text = f'device.attributes["gpu.amd.com"].productName == "{name}"'
    return {"selectors": [{"cel": {"expression": text}}]}


@pytest.mark.parametrize(
    ("profile", "name"),
    [("mi300x-x8", "AMD_Instinct_MI300X_OAM"), ("mi250-x4", "AMD_INSTINCT_MI250_MCM_OAM_AC_MBA")],
)
async def test_their_name_of_a_product_is_that_of_the_board_without_blanks_and_brackets(
    profile: str, name: str
) -> None:
    cluster = AmdCluster()
    cluster.node("a", profile)
    published = {
        device["attributes"]["productName"]["string"]
        for piece in cluster.all(RESOURCE_SLICES)
        if piece["spec"]["driver"] == amd.DRIVER
        for device in piece["spec"]["devices"]
    }
    assert published == {name}
    template(cluster, exactly=of_product(name))
    await cluster.settle()
    assert cluster.claim("p") is not None, cluster.note("p", "reason")


@pytest.mark.parametrize("name", ["AMD_Instinct_MI300X", "AMD_Instinct_MI210"])
async def test_a_template_for_another_product_waits(name: str) -> None:
    cluster = AmdCluster()
    cluster.node("a", "mi300x-x8")
    template(cluster, exactly=of_product(name))
    await cluster.settle()
    assert cluster.claim("p") is None
    assert f"of product {name}: no" in (cluster.note("p", "reason") or "")


@pytest.mark.parametrize("product", ["AMD Instinct MI300X", "AMD Instinct MI300X OAM", "*MI300X*"])
async def test_a_pods_words_may_name_the_part_or_the_board(product: str) -> None:
    cluster = AmdCluster()
    cluster.node("a", "mi300x-x8")
    cluster.pod("p", 4, wishes={"product": product})
    await cluster.settle()
    assert cluster.claim("p") is not None, cluster.note("p", "reason")
