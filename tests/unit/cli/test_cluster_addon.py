"""Who holds which GPU where NVIDIA's driver hands them out."""

from __future__ import annotations

from typing import Any

from dradriver.api.base.allocating_driver import AMD, NVIDIA
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster import cluster_reading
from dradriver.cli.cluster.cluster_view import views
from dradriver.cluster.views.node_views import NodeView
from dradriver.kube.client import Client
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import amd, nvidia
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpunodes import Object, allocated, machine, pieces, promised, read_claims, read_slices


def shown(theirs: list[Object], claims: list[Object], *, ours: list[Object] | None = None) -> list[NodeView]:
    bare = resource_slices.machine_alone(machine("node-a"), node="node-a", node_uid="u") if ours is None else ours
    nodes, warnings = views(read_slices(*bare, *theirs), read_claims(*claims))
    assert warnings == []
    return nodes


def theirs(name: str, *devices: str, **more: Any) -> Object:
    """A claim of somebody who has no words of ours."""
    claim = allocated(name, "node-a", [0] * len(devices), pods=[name], driver=nvidia.DRIVER, **more)
    for result, device in zip(claim["status"]["allocation"]["devices"]["results"], devices, strict=True):
        result["device"] = device
    return claim


def test_their_devices_and_claims_show_as_gpus_with_holders() -> None:
    (node,) = shown(
        [nvidia.slices("node-a", nvidia.whole(machine("node-a")))],
        [theirs("trainer", "gpu-1", "gpu-6"), promised("gpus-2", "node-a", [2, 3], pod="next")],
    )
    states = [view.state for view in node.gpus]
    assert states == ["free", "allocated", "tentative", "tentative", "free", "free", "allocated", "free"]
    assert [holder.who for holder in node.gpus[6].holders] == ["team-a/trainer"]
    assert [holder.who for holder in node.gpus[2].holders] == ["team-a/next"]
    assert node.machine == machine("node-a")


async def test_the_cluster_is_read_so_where_our_agents_publish_no_devices() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="test") as client:
        for piece in resource_slices.machine_alone(machine("node-a"), node="node-a", node_uid="u"):
            api.put(RESOURCE_SLICES, piece)
        api.put(RESOURCE_SLICES, nvidia.slices("node-a", nvidia.whole(machine("node-a"))))
        api.put(RESOURCE_CLAIMS, theirs("trainer", "gpu-1"))
        nodes, _ = views(*await cluster_reading.read(client, api.config))
    assert [view.state for view in nodes[0].gpus].count("free") == 7


def test_a_gpu_that_they_do_not_list_is_blocked_and_one_in_instances_held_by_their_claims() -> None:
    gpus = machine("node-a").gpus
    devices = [
        *nvidia.whole(machine("node-a"), without=(0, 1)),
        nvidia.mig(gpus[1], 1),
        nvidia.mig(gpus[1], 1, start=1),
    ]
    (node,) = shown([nvidia.slices("node-a", devices)], [theirs("small", "gpu-1-mig-1g10gb-19-1")])
    assert (node.gpus[0].state, node.gpus[0].blocked) == ("unhealthy", "not in the node's slices")
    assert [holder.who for holder in node.gpus[1].holders] == ["team-a/small"]


def test_where_our_own_devices_are_published_theirs_change_nothing() -> None:
    own = pieces("node-a")
    (node,) = shown(
        [nvidia.slices("node-a", nvidia.whole(machine("node-a")))],
        [allocated("mine", "node-a", [4], pods=["p"])],
        ours=own,
    )
    assert [view.state for view in node.gpus].count("free") == 7


async def test_amds_devices_show_as_gpus_with_holders_by_their_addresses() -> None:
    node = machine("node-a", "mi210-x8")
    async with FakeApiServer() as api, Client(api.config, user_agent="test") as client:
        for piece in resource_slices.machine_alone(node, node="node-a", node_uid="u"):
            api.put(RESOURCE_SLICES, piece)
        api.put(RESOURCE_SLICES, amd.resource_slice("node-a", amd.whole(node)))
        # NVIDIA's driver on another node, whose machine nobody here describes.
        api.put(RESOURCE_SLICES, nvidia.slices("node-b", nvidia.whole(machine("node-b"))))
        claim = theirs("trainer", "gpu-5-133")
        claim["status"]["allocation"]["devices"]["results"][0]["driver"] = amd.DRIVER
        api.put(RESOURCE_CLAIMS, claim)
        nodes, warnings = views(*await cluster_reading.read(client, api.config))
    assert (warnings, [view.name for view in nodes]) == ([], ["node-a"])
    assert [view.state for view in nodes[0].gpus] == ["free"] * 5 + ["allocated"] + ["free"] * 2
    assert [holder.who for holder in nodes[0].gpus[5].holders] == ["team-a/trainer"]


def test_whose_devices_they_are_say_the_machines_that_our_agents_describe() -> None:
    assert cluster_reading.whose({"a", "b"}, {NVIDIA: ["c"], AMD: ["a", "b"]}) is AMD
    assert cluster_reading.whose({"a", "b"}, {NVIDIA: ["a", "b"], AMD: ["b"]}) is NVIDIA
    assert cluster_reading.whose({"a"}, {}) is NVIDIA
