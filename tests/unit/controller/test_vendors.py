"""Nodes of several vendors in one cluster: nobody gets GPUs of another vendor's than he asked for, by whichever way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from dradriver.topology import machine_codec
from dradriver.topology.vendors import VENDORS
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.kfd import on_boards

# A node's slice as a release published it that knew no vendor: slices.build of dgx1-v100 before there were any.
OLD = Path(__file__).parents[2] / "fakes" / "slice_before_vendors.json"
PROFILES = {"nvidia": "dgx1-v100", "amd": "mi210-x8", "ascend": "ascend-910b-x8"}


def mixed(*vendors: str) -> GpuCluster:
    """Return a cluster with a node of each vendor, named as it is."""
    cluster = GpuCluster()
    for vendor in vendors:
        cluster.node(vendor, PROFILES[vendor])
    return cluster


def old_node(cluster: GpuCluster, name: str = "old") -> None:
    """Add a node whose agent is of a release that knew no vendor."""
    cluster.node(name, None)
    piece = json.loads(OLD.read_text())
    cluster.machines[name] = machine_codec.decode(piece["metadata"]["annotations"][names.MACHINE])
    cluster.put(RESOURCE_SLICES, piece)


def classes(cluster: GpuCluster, pod: str) -> list[str]:
    claim = cluster.claim(pod)
    assert claim is not None
    return [one["exactly"]["deviceClassName"] for one in claim["spec"]["devices"]["requests"]]


def words(vendor: str) -> dict[str, str]:
    return {} if vendor == "nvidia" else {"vendor": vendor}


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_pod_gets_gpus_of_the_vendor_that_it_asks_for_and_nvidias_where_it_says_nothing(vendor: str) -> None:
    cluster = mixed(*PROFILES)
    for number in range(3):
        cluster.pod(f"p{number}", 4, wishes=words(vendor))
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert [cluster.gpus(f"p{number}") for number in range(2)] == [(vendor, [0, 1, 2, 3]), (vendor, [4, 5, 6, 7])]
    assert [cluster.get_pod(f"p{number}")["spec"].get("nodeName") for number in range(3)] == [vendor, vendor, None]
    assert classes(cluster, "p0") == [VENDORS[vendor].device_class]
    assert (cluster.note("p0", "busbw") is None) == (vendor != "nvidia"), "a figure of others would be invented"
    assert (cluster.note("p0", "bandwidth") is None) == (vendor != "amd"), "nor of one whose busbw is known"
    assert cluster.note("p0", "level") == "nvlink"
    assert "no eligible node has such a free set" in str(cluster.note("p2", "reason"))


BOARD = "AMD Instinct MI300X OAM"


@pytest.mark.parametrize("product", [BOARD, "AMD Instinct MI300X", "AMD Instinct MI300X*"])
@pytest.mark.parametrize("upgraded", ["before", "while it waits", "never"])
async def test_a_pod_gets_gpus_by_the_name_of_the_board_or_of_the_part_whenever_its_agent_tells_both(
    product: str, upgraded: str
) -> None:
    cluster = GpuCluster()
    cluster.node("n", "mi300x-x8")
    if upgraded == "before":
        cluster.publish("n", on_boards(cluster.machines["n"]))
    cluster.pod("p", 4, wishes={"vendor": "amd", "product": product})
    await cluster.settle()
    if upgraded == "while it waits":
        cluster.publish("n", on_boards(cluster.machines["n"]))
        await cluster.settle()
    if upgraded == "never" and product == BOARD:
        assert "no node of this cluster has such a set" in str(cluster.note("p", "reason"))
    else:
        assert cluster.gpus("p")[0] == "n"


async def test_nodes_whose_boards_differ_are_told_apart_by_them() -> None:
    cluster = GpuCluster()
    cluster.node("a", "mi300x-x8")
    cluster.node("b", "mi300x-x8")
    cluster.publish("b", on_boards(cluster.machines["b"]))
    cluster.pod("p", 4, wishes={"vendor": "amd", "product": BOARD})
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"


async def test_gpu_time_goes_by_the_part_with_any_name_of_the_boards() -> None:
    cluster = GpuCluster()
    cluster.node("n", "mi300x-x8")
    cluster.publish("n", on_boards(cluster.machines["n"]))
    cluster.pod("p", 4, wishes={"vendor": "amd"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.worker.picture.gpu_time.charges == {"default": {"AMD Instinct MI300X": 4.0}}


@pytest.mark.parametrize(
    ("profile", "gpus"),
    [("ascend-910a-x8", 8), ("ascend-910a-x8", 4), ("ascend-300i-duo-x8", 4), ("ascend-910b-x8", 1)],
)
async def test_no_bandwidth_is_written_of_links_of_unknown_rate(profile: str, gpus: int) -> None:
    """Nor of a way beside them, over PCIe or between rings: NCCL's figures for that say nothing of HCCL."""
    cluster = GpuCluster()
    cluster.node("n", profile)
    cluster.pod("p", gpus, wishes=words("ascend"))
    await cluster.settle()
    assert [cluster.note("p", word) for word in ("bandwidth", "busbw")] == [None, None]
    claim = cluster.claim("p")
    assert claim is not None
    choice = json.loads(claim["metadata"]["annotations"][names.CHOICE])
    assert (choice["bandwidth_gbps"], choice["busbw_gbps"]) == (0, 0)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_where_no_node_has_gpus_of_the_vendor_the_reason_says_so(vendor: str) -> None:
    others = [other for other in PROFILES if other != vendor]
    cluster = mixed(*others)
    cluster.pod("p", 2, wishes=words(vendor))
    await cluster.settle()
    assert cluster.claim("p") is None
    have = " and ".join(sorted(others))
    assert f"no node has GPUs of vendor {vendor}, only of {have}" in str(cluster.note("p", "reason"))
    cluster.node("late", PROFILES[vendor])
    await cluster.settle()
    assert cluster.gpus("p")[0] == "late"


async def test_parts_are_of_nvidias_gpus_under_any_policies_about_others() -> None:
    cluster = GpuCluster()
    cluster.node("amd", "mi210-x8", mode=Mode(shared="mps"))
    cluster.node("nvidia", "hgx-h100", mode=Mode(shared="mps"))
    cluster.pod("p", 1, wishes={"share": "0.5"})
    cluster.pod("whole", 8, wishes={"vendor": "amd"})
    await cluster.settle()
    assert (cluster.gpus("p")[0], cluster.gpus("whole")[0]) == ("nvidia", "amd")
    published = [piece["spec"] for piece in cluster.all(RESOURCE_SLICES) if piece["spec"]["nodeName"] == "amd"]
    assert not any("allowMultipleAllocations" in device for one in published for device in one["devices"])


async def test_slices_that_say_nothing_of_a_vendor_are_nvidias() -> None:
    """Trap 14 of what is known of the vendors: a node's agent is older than the controller for as long as it runs."""
    cluster = mixed("amd")
    old_node(cluster)
    cluster.pod("ours", 8)
    cluster.pod("theirs", 8, wishes={"vendor": "amd"})
    cluster.pod("more", 1, wishes={"vendor": "amd"})
    await cluster.settle()
    cluster.schedule()
    assert (cluster.gpus("ours")[0], cluster.gpus("theirs")[0]) == ("old", "amd")
    assert {name: cluster.get_pod(name)["spec"].get("nodeName") for name in ("ours", "theirs", "more")} == {
        "ours": "old", "theirs": "amd", "more": None,
    }  # fmt: skip


async def test_an_agent_that_is_upgraded_takes_nothing_from_who_has_its_gpus() -> None:
    cluster = GpuCluster()
    old_node(cluster)
    cluster.pod("p", 4)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    before = cluster.gpus("p")
    cluster.publish("old", cluster.machines["old"])
    (new,) = cluster.all(RESOURCE_SLICES)
    assert {device["attributes"]["vendor"]["string"] for device in new["spec"]["devices"]} == {"nvidia"}
    cluster.pod("q", 4)
    await cluster.settle()
    assert cluster.gpus("p") == before
    assert set(cluster.gpus("q")[1]).isdisjoint(before[1])


async def test_a_gang_is_of_one_vendor() -> None:
    cluster = mixed(*PROFILES)
    cluster.node("amd-2", "mi210-x8")
    for number in range(4):
        cluster.pod(f"g{number}", 4, wishes={"vendor": "amd", "gang": "train", "gang-size": "4"})
    await cluster.settle()
    assert sorted(cluster.gpus(f"g{number}")[0] for number in range(4)) == ["amd", "amd", "amd-2", "amd-2"]
    assert classes(cluster, "g3") == ["amd.gpu.topology"]


def by_template(cluster: GpuCluster, pod: str, device_class: str, **wishes: str) -> None:
    """Create a pod whose claim is made by a template of the class."""
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class, "count": 2}}
    content: dict[str, Any] = {
        "spec": {
            "devices": {
                "requests": [request],
                "constraints": [{"requests": ["gpus"], "matchAttribute": "gpu.topology/linkGroup2"}],
            }
        }
    }
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": pod, "namespace": "default"}, "spec": content})
    claims = [{"name": "gpus", "resourceClaimName": f"gpus-{pod}"}]
    cluster.pod(pod, 1, wishes={"template": f"gpus/{pod}"} | wishes, resourceClaims=claims)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_template_says_the_vendor_by_its_class(vendor: str) -> None:
    cluster = mixed(*PROFILES)
    by_template(cluster, "p", VENDORS[vendor].device_class)
    await cluster.settle()
    assert cluster.gpus("p")[0] == vendor
    assert classes(cluster, "p") == [VENDORS[vendor].device_class]


async def test_a_template_that_its_pods_words_contradict_is_said() -> None:
    cluster = mixed(*PROFILES)
    by_template(cluster, "p", "amd.gpu.topology", vendor="ascend")
    by_template(cluster, "q", "amd.gpu.topology", **{"min-busbw": "100"})
    by_template(cluster, "r", "intel.gpu.topology")
    await cluster.settle()
    assert "its class amd.gpu.topology is for GPUs of amd, and the pod's annotations request ascend" in str(
        cluster.note("p", "reason")
    )
    assert "RCCL reaches over xGMI" in str(cluster.note("q", "reason"))
    assert "is neither a GPU class (gpu.topology, amd.gpu.topology, ascend.gpu.topology" in str(
        cluster.note("r", "reason")
    )


def test_the_old_slice_is_one_of_before() -> None:
    piece = json.loads(OLD.read_text())
    assert not any("vendor" in device["attributes"] for device in piece["spec"]["devices"])
    machine = machine_codec.decode(piece["metadata"]["annotations"][names.MACHINE])
    assert machine.vendor.word == "nvidia"
    new = resource_slices.build(machine, node="old", node_uid="n")
    assert [device["name"] for device in new[0]["spec"]["devices"]] == [
        device["name"] for device in piece["spec"]["devices"]
    ]
    for was, device in zip(piece["spec"]["devices"], new[0]["spec"]["devices"], strict=True):
        assert was["attributes"].items() <= device["attributes"].items(), "what users select by stays"
