"""A story of NICs of other drivers, next to a control plane without nodes: `python -m tests.contract.beside_nics NAME`.

Real are the API server, its validation of all objects, the scheduler, and the chart's rights, webhook and controller.
Slices are what dranet, the SR-IOV driver and our node agent publish; no kubelet prepares anything.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from typing import Any, Final

import yaml

from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import NAMESPACE
from tests.fakes import nics
from tests.fakes.admission import pod
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV
from tests.paths import SHARED_DATA

Object = dict[str, Any]

RDMA: Final = 'device.attributes["dra.net"].rdma == true && device.attributes["dra.net"].virtual == false'
# dranet's own slice of a GB200 node: its NICs have roots, which no GPU of the node has.
CAPTURED: Final = SHARED_DATA / "vendors" / "nic" / "dranet_BM.GPU.GB200-v3.4_resourceslice-dranet.yaml"


class Story:
    """Pods on nodes with GPUs of ours and NICs of others."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.machines: dict[str, Machine] = {}

    async def tell(self) -> None:
        """Place pods with NICs beside their GPUs, until there are none, and one that asks for what cannot be."""
        await self.add("node-h", "hgx-h100")
        machine = self.machines["node-h"]
        await self.publish("node-h", nics.of_machine(machine))
        functions = [
            nics.function(f"{nic.pci[:-1]}{1 + number}", nic.pci, number) for nic in machine.nics for number in range(2)
        ]
        await self.publish("node-h", functions, SRIOV)
        for one in (nics.device_class(), nics.device_class(SRIOV, SRIOV)):
            await self._client.create(DEVICE_CLASSES, one)
        await self.template("pairs", 2, 2, RDMA)
        await self.template("functions", 2, 2, device_class=SRIOV)

        at = {gpu.uuid: nic.pci for gpu, nic in zip(machine.gpus, machine.nics, strict=True)}
        seen: set[str] = set()
        for name in ("first", "second"):
            node, gpus, got = await self.placed(name, "pairs", DRANET, {names.NEAR_NIC: "required"})
            assert (node, len(gpus)) == ("node-h", 2)
            assert got == {at[uuid] for uuid in gpus}, "each GPU has the NIC at its switch"
            assert not got & seen
            seen |= got
        _, gpus, got = await self.placed("third", "functions", SRIOV, {names.NEAR_NIC: "required"})
        assert got == {f"{at[uuid][:-1]}1" for uuid in gpus}, "a function of each GPU's own card"

        await self.template("many", 1, 6, RDMA)
        await self.create("fourth", "many", {})
        reason = await stories.reason(self._client, "fourth")
        assert reason.startswith("Waiting for 6 NICs of class dranet.net: no eligible node has enough free NICs"), (
            reason
        )
        await self._client.delete(PODS, "first", namespace=NAMESPACE)  # the claim goes with it
        await stories.bound(self._client, "fourth")

        await self.add("node-g", "gb200-nvl72-tray")
        await self.publish("node-g", captured() or nics.of_machine(self.machines["node-g"]))
        only = {"kubernetes.io/hostname": "node-g"}
        node, gpus, got = await self.placed("fifth", "pairs", DRANET, {names.NEAR_NIC: "required"}, nodeSelector=only)
        numa = {gpu.uuid: gpu.numa for gpu in self.machines["node-g"].gpus}
        of_nic = {"0000": 0, "0002": 0, "0010": 1, "0012": 1}
        assert {numa[uuid] for uuid in gpus} == {of_nic[nic[:4]] for nic in got}

    async def add(self, name: str, profile: str) -> None:
        """Create a node, and what our agent publishes of it."""
        machine = profiles.load(profile, seed=name)
        uid = await stories.add_node(self._client, name)
        self.machines[name] = machine
        modes = {gpu.uuid: Mode() for gpu in machine.gpus}
        await stories.publish(self._client, resource_slices.build(machine, node=name, node_uid=uid, modes=modes))

    async def publish(self, node: str, devices: Collection[Object], driver: str = DRANET) -> None:
        """Publish a node's NICs."""
        await self._client.create(RESOURCE_SLICES, nics.published(node, devices, driver=driver))

    async def template(self, name: str, gpus: int, count: int, *texts: str, device_class: str = DRANET_CLASS) -> None:
        """Create a template of so many GPUs and NICs."""
        exactly: Object = {"deviceClassName": device_class, "count": count}
        if texts:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in texts]
        gpu = {"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": gpus}}
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"spec": {"devices": {"requests": [gpu, {"name": "nic", "exactly": exactly}]}}},
        }
        await self._client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=NAMESPACE)

    async def create(self, name: str, template: str, words: dict[str, str], **spec: Any) -> None:
        """Create a pod that uses a template."""
        manifest = pod(None, annotations={names.POLICY: "nvlink"} | words, name=name, namespace=NAMESPACE)
        claims = [{"name": "devices", "resourceClaimTemplateName": template}]
        manifest["spec"] |= {"resourceClaims": claims, "terminationGracePeriodSeconds": 0} | spec  # no kubelet ends it
        manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
        await self._client.create(PODS, manifest)

    async def placed(
        self, name: str, template: str, driver: str, words: dict[str, str], **spec: Any
    ) -> tuple[str, set[str], set[str]]:
        """Create a pod and return its node, its GPUs by uuid, and its NICs by address, as the scheduler gave them."""
        await self.create(name, template, words, **spec)
        made = await stories.bound(self._client, name)
        results = await stories.given(self._client, made)
        node = made["spec"]["nodeName"]
        of_device = {resource_slices.device_name(gpu.uuid): gpu.uuid for gpu in self.machines[node].gpus}
        gpus = {of_device[one["device"]] for one in results if one["driver"] == names.DRIVER}
        assert gpus == set(made["metadata"]["annotations"][names.ALLOCATED].split(","))
        return node, gpus, {address_of(one["device"]) for one in results if one["driver"] == driver}


def captured() -> list[Object]:
    """Return the devices of the slice that was captured; none where the file is not there."""
    if not CAPTURED.exists():
        return []
    found: list[Object] = yaml.safe_load(CAPTURED.read_text())["spec"]["devices"]
    return found


def address_of(device: str) -> str:
    """Return the PCI address that a device is called by."""
    *rest, function = device.removeprefix("pci-").split("-")
    return ":".join(rest) + f".{function}"


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with stories.client(plane) as client, stories.driver(plane):
        await Story(client).tell()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
