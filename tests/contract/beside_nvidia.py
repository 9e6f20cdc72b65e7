"""A story of the add-on, told next to a control plane without nodes: `python -m tests.contract.beside_nvidia NAME`.

Real are the API server, its validation of all objects, the scheduler, and the chart's rights, webhook and controller.
Slices are what NVIDIA's driver and our node agent publish; no kubelet prepares anything.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_SLICES
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import NAMESPACE
from tests.fakes import nvidia
from tests.fakes.admission import pod

MACHINE: Final = "dgx1-v100"
TYPE: Final = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


class Nodes:
    """Nodes whose GPUs NVIDIA's driver hands out."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.machines: dict[str, Machine] = {}
        self._minors: dict[str, dict[str, int]] = {}

    async def add(self, name: str) -> None:
        """Create a node, and what both drivers publish of it."""
        machine = profiles.load(MACHINE, seed=name)
        uid = await stories.add_node(self._client, name)
        self.machines[name] = machine
        self._minors[name] = {gpu.uuid: gpu.minor for gpu in machine.gpus}
        theirs = nvidia.slices(name, nvidia.whole(machine))
        theirs["metadata"]["ownerReferences"][0]["uid"] = uid
        del theirs["metadata"]["generateName"]
        await stories.publish(self._client, (*resource_slices.machine_alone(machine, node=name, node_uid=uid), theirs))

    async def swap(self, node: str, first: str, second: str) -> None:
        """Give each of two GPUs the name that the other had, as a boot after a loss may."""
        minors = self._minors[node]
        minors[first], minors[second] = minors[second], minors[first]
        one = nvidia.slices(node, nvidia.whole(self.machines[node], minors))
        patch = {"spec": {"devices": one["spec"]["devices"]}}
        await self._client.patch(RESOURCE_SLICES, one["metadata"]["name"], patch, kind=PatchKind.MERGE)

    def uuid_of(self, node: str, device: str) -> str:
        """Return which GPU has a name of NVIDIA's now."""
        (found,) = [uuid for uuid, minor in self._minors[node].items() if f"gpu-{minor}" == device]
        return found

    def gpus(self, node: str) -> set[str]:
        """Return the uuids of a node's GPUs."""
        return {gpu.uuid for gpu in self.machines[node].gpus}


class Story:
    """Pods on such nodes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.nodes = Nodes(client)

    async def tell(self) -> None:
        """Place a pod, shift the names of its node's GPUs, and place more."""
        for name in ("node-a", "node-b"):
            await self.nodes.add(name)
        node, held, level = await self.placed("first", 4)
        assert (len(held), level) == (4, "nvlink")

        other = min(self.nodes.gpus(node) - held)
        await self.nodes.swap(node, min(held), other)
        where, rest, level = await self.placed("second", 3, nodeSelector={"kubernetes.io/hostname": node})
        assert (where, level) == (node, "nvlink")
        assert rest == self.nodes.gpus(node) - held - {other}, "both GPUs that the shift confuses are nobody else's"

        where, quad, level = await self.placed("third", 4)
        assert (where != node, len(quad), level) == (True, 4, "nvlink")
        await self.refused()

    async def placed(self, name: str, gpus: int, **spec: Any) -> tuple[str, set[str], str]:
        """Create a pod and wait until it is bound: where, to which GPUs, and how well these go together.

        What the scheduler allocated, by NVIDIA's names, is what the pod says that it got, by uuid.
        """
        words = {names.POLICY: "nvlink"}
        made = await self._client.create(PODS, pod(gpus, annotations=words, spec=spec, name=name, namespace=NAMESPACE))
        assert names.GPU_RESOURCE not in str(made["spec"]["containers"][0]["resources"])
        made = await stories.bound(self._client, name)
        node, results = made["spec"]["nodeName"], await stories.given(self._client, made)
        assert {one["driver"] for one in results} == {nvidia.DRIVER}
        found = {self.nodes.uuid_of(node, one["device"]) for one in results}
        told = made["metadata"]["annotations"]
        assert found == set(told[names.ALLOCATED].split(","))
        return node, found, told[names.LEVEL]

    async def refused(self) -> None:
        """Ask for what only attributes of our own devices can say."""
        words = {names.POLICY: "nvlink", names.PLACEMENT: "static"}
        try:
            await self._client.create(PODS, pod(1, annotations=words, name="static", namespace=NAMESPACE))
        except ApiError as error:
            assert "allocates the GPUs" in error.message
        else:
            raise AssertionError("a static pod was admitted")


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client:
        spec = {"selectors": [{"cel": {"expression": TYPE}}], "extendedResourceName": names.GPU_RESOURCE}
        await client.create(DEVICE_CLASSES, {"metadata": {"name": nvidia.DRIVER}, "spec": spec})
        async with stories.driver(plane, f"allocatingDriver={nvidia.DRIVER}"):
            await Story(client).tell()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
