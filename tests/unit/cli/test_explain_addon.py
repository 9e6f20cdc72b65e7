"""``gputopo explain`` and ``free`` where NVIDIA's driver hands out the GPUs: as the controller there decides."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.policies.gpu_modes import Mode
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import nvidia
from tests.fakes.addoncluster import SLICE, AddOnCluster
from tests.fakes.commands import CommandLine, run_all

pytestmark = pytest.mark.usefixtures("addon")


@pytest.fixture
def cluster() -> AddOnCluster:
    return AddOnCluster()


async def test_a_pod_that_waits_is_told_who_holds_their_devices(cluster: AddOnCluster, shell: CommandLine) -> None:
    cluster.node("a")
    cluster.foreign("theirs", "a", *(f"gpu-{minor}" for minor in range(5)))
    cluster.pod("next", 4, wishes={"policy": "nvlink"})
    cluster.pod("big", 8)
    await run_all(cluster)
    found = await shell.data("explain next")
    assert (found["state"], found["place"]) == ("waits", None)
    assert found["reason"] == cluster.note("next", "reason")
    (room,) = found["free"]["best"]
    assert (found["free"]["gpus"], room["free"], room["largest"]) == (3, [5, 6, 7], 3)
    (owner,) = found["would_help"][0]["owners"]
    assert (owner["claim"], owner["gpus"]) == ("theirs", [4])
    assert (await shell.data("explain big"))["queue"]["position"] == 2


async def test_a_place_is_the_one_that_the_controller_gives(cluster: AddOnCluster, shell: CommandLine) -> None:
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0")
    cluster.pod("next", 4, wishes={"policy": "nvlink"})
    place = (await shell.data("explain next"))["place"]
    await cluster.settle()
    assert cluster.gpus("next") == ("a", place["gpus"]) == ("a", [4, 5, 6, 7])
    found = await shell.data("explain next")
    assert (found["state"], found["place"]) == ("tentative", place)
    await run_all(cluster)
    found = await shell.data("explain next")
    assert (found["state"], found["node"], found["place"]) == ("placed", "a", place)


async def test_after_a_shift_of_minors_it_is_as_a_controller_that_starts_then(
    cluster: AddOnCluster, shell: CommandLine
) -> None:
    cluster.node("a")
    cluster.pod("first", 2, wishes={"policy": "nvlink"})
    await run_all(cluster)
    mine = cluster.gpus("first")[1]
    lost = next(index for index in range(8) if index not in mine)
    left = [index for index in range(8) if index != lost]
    cluster.shift("a", {index: minor for minor, index in enumerate(left)})
    cluster.restart()
    cluster.pod("next", 8)
    await run_all(cluster)
    named = {f"gpu-{minor}": index for minor, index in enumerate(left)}
    out = {*mine, lost, *(named[name] for name in cluster.given("first") if name in named)}
    assert len(out) > 3, "some GPU has a name by now that the first pod's claim was given"
    found = await shell.data("explain next")
    assert found["free"]["best"][0]["free"] == sorted(set(range(8)) - out)
    assert found["reason"] == cluster.note("next", "reason")
    free = await shell.data("free")
    assert (free["gpus"], free["free"]) == (8, 8 - len(out))
    # Its own pod is told of the GPUs that it was given, whatever they are called.
    assert (await shell.data("explain first"))["place"]["gpus"] == mine


async def test_what_is_free_is_counted_of_both_drivers_nodes(cluster: AddOnCluster, shell: CommandLine) -> None:
    cluster.node("a")
    cluster.node("b")
    cluster.foreign("theirs", "a", "gpu-0", "gpu-1")
    devices = {device["name"]: device for device in nvidia.whole(cluster.machines["b"])}
    devices["gpu-1"]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    devices["gpu-2"]["allowMultipleAllocations"] = True
    cluster.offer("b", devices.values())
    found = await shell.data("free")
    assert (found["nodes"], found["gpus"], found["free"]) == (2, 16, 12)
    for number in range(2):
        cluster.pod(f"p{number}", 4, wishes={"policy": "nvlink"})
    await run_all(cluster)
    placed = [number for number in range(2) if cluster.claim(f"p{number}") is not None]
    sets = [one for one in found["sets"] if one["size"] == 4 and one["level"] == "nvlink"]
    assert sum(one["sets"] for one in sets) == len(placed) == 2


async def test_a_node_that_only_one_of_the_two_describes_does_not_count(
    cluster: AddOnCluster, shell: CommandLine
) -> None:
    cluster.node("a")
    cluster.remove(RESOURCE_SLICES, SLICE.format("a"))
    cluster.pod("next", 2)
    await cluster.settle()
    found = await shell.data("explain next")
    assert found["reason"] == cluster.note("next", "reason") == "No node offers GPUs of this driver."
    assert (await shell.data("free"))["nodes"] == 0


async def test_what_a_template_of_theirs_asks_for_is_explained(cluster: AddOnCluster, shell: CommandLine) -> None:
    def template(device_class: str) -> dict[str, Any]:
        request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": 4}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        return {"metadata": {"name": "t", "namespace": "default"}, "spec": spec}

    cluster.node("a")
    claims = [{"name": "own", "resourceClaimName": "gpus-next"}]
    cluster.pod("next", 1, wishes={"template": "own/t"}, resourceClaims=claims)
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template("mig.nvidia.com"))
    assert (
        "class 'mig.nvidia.com' is neither a GPU class (gpu.nvidia.com" in (await shell.data("explain next"))["reason"]
    )
    cluster.put(RESOURCE_CLAIM_TEMPLATES, template(NVIDIA.device_class))
    found = await shell.data("explain next")
    assert len(found["place"]["gpus"]) == 4


async def test_their_slices_are_read_only_where_machines_stand_alone(cluster: AddOnCluster, shell: CommandLine) -> None:
    def asked() -> set[str]:
        return {request.query.get("fieldSelector") or "" for request in shell.api.requests}

    cluster.node("a")
    await shell.data("free")
    assert {"spec.driver=gpu.topology", "spec.driver=gpu.nvidia.com"} <= asked()
    for piece in cluster.all(RESOURCE_SLICES):
        cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    super(AddOnCluster, cluster).publish("a", cluster.machines["a"])
    shell.api.requests.clear()
    assert (await shell.data("free"))["free"] == 8
    assert "spec.driver=gpu.nvidia.com" not in asked()


async def test_a_node_of_ours_without_a_device_changes_no_driver(cluster: AddOnCluster, shell: CommandLine) -> None:
    cluster.node("a")
    cluster.node("b")
    for piece in cluster.all(RESOURCE_SLICES):
        if piece["spec"]["nodeName"] == "b" or piece["spec"]["driver"] == nvidia.DRIVER:
            cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    super(AddOnCluster, cluster).publish("b", cluster.machines["b"])
    found = await shell.data("free")
    assert (found["free"], [one["node"] for one in found["sets"] if one["size"] == 8]) == (8, ["b"])
    cluster.rival("own", "b", [0])
    assert (await shell.data("free"))["free"] == 7
    assert cluster.find(RESOURCE_CLAIMS, "own", "default") is not None


async def test_a_node_of_ours_whose_first_slice_has_counters_alone_has_its_own_devices(
    cluster: AddOnCluster, shell: CommandLine
) -> None:
    cluster.node("a", "dgx-h100")
    for piece in cluster.all(RESOURCE_SLICES):
        cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    cluster.modes["a"] = Mode(mig="placements")
    super(AddOnCluster, cluster).publish("a", cluster.machines["a"])
    shell.api.requests.clear()
    assert (await shell.data("free"))["free"] == 8
    assert [len(node["free"]) for node in await shell.data("topo --cluster")] == [8]
    assert all("gpu.nvidia.com" not in request.query.get("fieldSelector", "") for request in shell.api.requests)
