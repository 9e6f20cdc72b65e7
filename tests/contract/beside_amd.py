"""A story of the add-on to AMD's driver, told next to a control plane: `python -m tests.contract.beside_amd NAME`.

Real are the API server, its validation of all objects, the scheduler, and the chart's rights, webhook and controller.
Slices are as AMD's driver and our node agent publish them; no kubelet prepares anything.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes import amd
from tests.fakes.admission import pod

NODE: Final = "node-a"
HIVES: Final = ({0, 1, 2, 3}, {4, 5, 6, 7})


class Story:
    """Pods on a node of two hives of four GPUs whose names shift."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._machine: Machine = profiles.load("mi210-x8", seed=NODE)
        self._cards = {gpu.uuid: gpu.index for gpu in self._machine.gpus}

    async def tell(self) -> None:
        """Place a pod beside one without words, shift the names of two GPUs, and place another."""
        await self.add()
        await self.create(1, "theirs", {})  # by a claim of theirs, as the scheduler likes
        first = await self.placed("first", 4)
        assert first in HIVES, "one hive, and not the one of which a GPU is taken"
        held = await self.given("theirs")
        rest = next(hive for hive in HIVES if hive != first)
        assert held < rest, "the scheduler takes the first by name"
        assert await self.placed("second", 2) < rest - held

        await self.delete("first")
        await self.swap(min(held), min(first))
        assert not await self.placed("third", 2) & {*held, min(first)}, "a GPU that the shift confuses is nobody's"

    async def add(self) -> None:
        """Create the node, and what both drivers publish of it."""
        uid = await stories.add_node(self._client, NODE)
        theirs = self._theirs()
        theirs["metadata"]["ownerReferences"][0]["uid"] = uid
        await stories.publish(
            self._client, (*resource_slices.machine_alone(self._machine, node=NODE, node_uid=uid), theirs)
        )

    def _theirs(self) -> dict[str, Any]:
        """Return AMD's slice, with a device for a virtual machine beside each GPU."""
        gpus = self._machine.gpus
        return amd.resource_slice(
            NODE, [*amd.whole(self._machine, self._cards), *map(amd.vfio, gpus, range(len(gpus)))]
        )

    async def swap(self, first: int, second: int) -> None:
        """Give each of two GPUs the name that the other had, as a boot may."""
        one, other = (self._machine.gpus[index].uuid for index in (first, second))
        self._cards[one], self._cards[other] = self._cards[other], self._cards[one]
        made = self._theirs()
        patch = {"spec": {"devices": made["spec"]["devices"]}}
        await self._client.patch(RESOURCE_SLICES, made["metadata"]["name"], patch, kind=PatchKind.MERGE)

    async def create(self, gpus: int, name: str, words: dict[str, str]) -> None:
        """Create a pod of ours, or without words one by a claim of AMD's class."""
        if words:
            made = pod(None, annotations=words, name=name, namespace=NAMESPACE)
            made["spec"]["containers"][0]["resources"] = {"limits": {amd.LIMIT: str(gpus)}}
        else:
            exactly = {
                "deviceClassName": amd.DRIVER,
                "count": gpus,
                "selectors": [{"cel": {"expression": 'device.attributes["gpu.amd.com"].type == "amdgpu"'}}],
            }
            spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
            await self._client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
            made = pod(None, name=name, namespace=NAMESPACE)
            made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
            made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        made["spec"]["terminationGracePeriodSeconds"] = 0  # there is no kubelet that would end it
        await self._client.create(PODS, made)
        await stories.bound(self._client, name)

    async def given(self, name: str) -> set[int]:
        """Return which GPUs a pod's claim was given, by the names of now."""
        results = await stories.given(self._client, await self._client.get(PODS, name, namespace=NAMESPACE))
        assert {one["driver"] for one in results} == {amd.DRIVER}
        cards = {one["device"] for one in results}
        return {gpu.index for gpu in self._machine.gpus if amd.gpu(gpu, self._cards[gpu.uuid])["name"] in cards}

    async def placed(self, name: str, gpus: int) -> set[int]:
        """Place a pod; what the scheduler allocated, by AMD's names, is what the pod says that it got, by uuid."""
        await self.create(gpus, name, {names.POLICY: "nvlink"})
        found = await self.given(name)
        told = (await self._client.get(PODS, name, namespace=NAMESPACE))["metadata"]["annotations"]
        assert {self._machine.gpus[index].uuid for index in found} == set(told[names.ALLOCATED].split(","))
        assert (len(found), told[names.LEVEL]) == (gpus, "nvlink")
        return found

    async def delete(self, name: str) -> None:
        """Delete a pod, and wait until its claim is gone."""
        found = await self._client.get(PODS, name, namespace=NAMESPACE)
        claim = found["spec"]["resourceClaims"][0]["resourceClaimName"]
        await self._client.delete(PODS, name, namespace=NAMESPACE)
        async with asyncio.timeout(BOUND_S):
            while claim in {c["metadata"]["name"] for c in (await self._client.list(RESOURCE_CLAIMS))[0]}:
                await asyncio.sleep(0.1)


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client:
        spec = {"selectors": [{"cel": {"expression": amd.CLASS_CEL}}]}
        await client.create(DEVICE_CLASSES, {"metadata": {"name": amd.DRIVER}, "spec": spec})
        async with stories.driver(plane, f"allocatingDriver={amd.DRIVER}"):
            await Story(client).tell()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
