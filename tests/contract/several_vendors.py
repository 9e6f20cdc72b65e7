"""A story of nodes of several vendors: `python -m tests.contract.several_vendors NAME`, beside a control plane.

Real are the API server, the scheduler, and the chart's classes, webhook and controller; no node has a kubelet. Slices
are what node agents publish, one of them of a release that knew no vendor.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.topology import profiles
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes.admission import pod

Object = dict[str, Any]

# The scheduler looks at nodes by name where nothing else decides: NVIDIA's comes last.
MACHINES: Final = {"a-amd": "mi210-x8", "b-ascend": "ascend-910b-x8"}
OLD: Final = "c-old"
_OLD_SLICE: Final = Path(__file__).parents[1] / "fakes" / "slice_before_vendors.json"


async def add_nodes(client: Client) -> None:
    """Create the nodes, and what their agents publish."""
    for name in (*MACHINES, OLD):
        uid = await stories.add_node(client, name)
        if name == OLD:
            piece = json.loads(_OLD_SLICE.read_text())
            piece["metadata"]["name"] = resource_slices.slice_name(0, name)
            piece["spec"] |= {"nodeName": name, "pool": piece["spec"]["pool"] | {"name": name}}
            published = [piece]
        else:
            machine = profiles.load(MACHINES[name], seed=name)
            published = resource_slices.build(machine, node=name, node_uid=uid)
        for piece in published:
            piece["metadata"]["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
            ]
        await stories.publish(client, published)


async def settled(client: Client, name: str) -> str:
    """Return the node that a pod is bound to; empty once the scheduler says that there is none."""
    async with asyncio.timeout(BOUND_S):
        while True:
            found = await client.get(PODS, name, namespace=NAMESPACE)
            if node := found["spec"].get("nodeName"):
                return str(node)
            told = found["status"].get("conditions", ())
            if any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in told):
                return ""
            await asyncio.sleep(0.1)


async def classes(client: Client, name: str) -> set[str]:
    """Return the classes of a pod's claim."""
    (entry,) = (await client.get(PODS, name, namespace=NAMESPACE))["spec"]["resourceClaims"]
    claim = await client.get(RESOURCE_CLAIMS, entry["resourceClaimName"], namespace=NAMESPACE)
    return {one["exactly"]["deviceClassName"] for one in claim["spec"]["devices"]["requests"]}


async def tell(client: Client) -> None:
    """Place pods of each vendor, by limits and by the word, and see what is refused."""

    async def create(name: str, gpus: int, resource: str = names.GPU_RESOURCE, **words: str) -> None:
        said = {names.PREFIX + word.replace("_", "-"): text for word, text in words.items()}
        made = pod(gpus, annotations=said, resource=resource, name=name, namespace=NAMESPACE)
        await client.create(PODS, made)

    await add_nodes(client)
    await create("hive", 4, "amd.com/gpu", policy="linked")
    await create("mesh", 2, "huawei.com/Ascend910B3", required="linked")
    await create("plain", 8, policy="best-effort")
    for name, node, device_class in (
        ("hive", "a-amd", "amd.gpu.topology"),
        ("mesh", "b-ascend", "ascend.gpu.topology"),
        ("plain", OLD, "gpu.topology"),
    ):
        assert await settled(client, name) == node, name
        assert await classes(client, name) == {device_class}
        told = (await client.get(PODS, name, namespace=NAMESPACE))["metadata"]["annotations"]
        assert told[names.LEVEL] == "nvlink" or name == "plain"
        assert (names.BUSBW in told) == (name == "plain")
    await create("late", 1, policy="best-effort")
    await stories.reason(client, "late")
    found = await client.get(PODS, "late", namespace=NAMESPACE)
    assert not found["spec"].get("nodeName"), "no GPU of another vendor is one for who says nothing"
    await create("static", 4, "amd.com/gpu", policy="linked", placement="static")
    assert await settled(client, "static") == "a-amd"
    for resource, words in (("amd.com/gpu", {"min_busbw": "10"}), ("amd.com/gpu", {"vendor": "nvidia"})):
        try:
            await create("refused", 1, resource, **words)
        except ApiError as error:
            expected = ("cannot predict the bandwidth", "contradicts the containers' limits")
            assert any(text in error.message for text in expected), error.message
        else:
            raise AssertionError("what cannot be had was admitted")


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client, stories.driver(plane):
        await tell(client)


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
