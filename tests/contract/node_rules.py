"""Rules that keep pods from nodes, on a control plane: `python -m tests.contract.node_rules NAME`.

Real are the API server, the scheduler with all its plugins, and the chart's rights, webhook and controller. A pod that
is narrowed to eight nodes before such a rule is known is never bound if the rule keeps it from all eight.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api.base import names
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
)
from tests.bench.throughput.machines import Machines
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes.admission import pod

Object = dict[str, Any]

COUNT: Final = 14
LISTENERS: Final = 12
PORT: Final = 8080
ZONE: Final = "topology.kubernetes.io/zone"
HOSTNAME: Final = "kubernetes.io/hostname"
SELECTED: Final = "volume.kubernetes.io/selected-node"
DRIVER: Final = "fpga.example.com"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class Story:
    """Fourteen nodes, of which the last two are in a zone of their own: fuller nodes and first names are preferred."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client, self._machines = client, machines

    async def tell(self) -> None:
        """Tell a story for each rule, and see that the pods are bound."""
        await self._machines.grow(COUNT)
        every = [self._machines.name(number) for number in range(COUNT)]
        far = every[-2:]
        for name in every:
            await self.label(name, {ZONE: "far" if name in far else "near"})
        await self.affinity(far)
        await self.claim(far[1])
        await self.storage(far)
        await self.hostname(every[:2])
        await self.ports(every)

    async def affinity(self, far: list[str]) -> None:
        """Place a pod with a foreign one in a zone, and pods with each other."""
        await self.plain("db", far[0], labels={"app": "db"})
        await self.create("with-db", affinity=_near(ZONE, "db"))
        assert await self.bound("with-db") in far
        together = [f"together-{number}" for number in range(3)]
        await asyncio.gather(
            *(self.create(name, labels={"app": "x"}, affinity=_near(HOSTNAME, "x")) for name in together)
        )
        assert len({await self.bound(name) for name in together}) == 1

    async def claim(self, node: str) -> None:
        """Place a pod that shares another driver's claim with one that is bound."""
        cel = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        await self._client.create(DEVICE_CLASSES, {"metadata": {"name": DRIVER}, "spec": {"selectors": [cel]}})
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec: Object = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": "fpga-0"}]}
        await self._client.create(RESOURCE_SLICES, {"metadata": {"name": "fpga"}, "spec": spec})
        requests = [{"name": "fpga", "exactly": {"deviceClassName": DRIVER}}]
        claim = {"metadata": {"name": "fpga", "namespace": NAMESPACE}, "spec": {"devices": {"requests": requests}}}
        await self._client.create(RESOURCE_CLAIMS, claim)
        entries = [{"name": "fpga", "resourceClaimName": "fpga"}]
        await self.plain("first", resourceClaims=entries)
        assert await self.bound("first") == node
        await self.create("shares", resourceClaims=entries)
        assert await self.bound("shares") == node

    async def storage(self, far: list[str]) -> None:
        """Place a pod whose volume can only be made in one zone, and make it there as a provisioner does."""
        terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["far"]}]}]
        kind = {"provisioner": "example.com/made", "volumeBindingMode": "WaitForFirstConsumer"}
        await self._client.create(STORAGE_CLASSES, {"metadata": {"name": "far"}, "allowedTopologies": terms} | kind)
        both = {"accessModes": ["ReadWriteOnce"], "storageClassName": "far"}
        asks = both | {"resources": {"requests": {"storage": "1Gi"}}}
        await self._client.create(
            PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data", "namespace": NAMESPACE}, "spec": asks}
        )
        await self.create("stores", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        async with asyncio.timeout(BOUND_S):
            while True:
                found = await self._client.get(PERSISTENT_VOLUME_CLAIMS, "data", namespace=NAMESPACE)
                if SELECTED in found["metadata"].get("annotations", {}):
                    break
                await asyncio.sleep(0.2)
        made = both | {"capacity": {"storage": "1Gi"}, "nfs": {"server": "none", "path": "/"}}
        made |= {"claimRef": {"name": "data", "namespace": NAMESPACE}}
        await self._client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "data"}, "spec": made})
        assert await self.bound("stores") in far

    async def hostname(self, pair: list[str]) -> None:
        """Place a pod with a node affinity of its own next to a node without the label that it is narrowed by."""
        for node in pair:
            await self.label(node, {"pool": "pair"})
        await self.label(pair[0], {HOSTNAME: None})
        terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["pair"]}]}]
        await self.create("narrowed", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
        assert await self.bound("narrowed") == pair[1]
        await self.label(pair[0], {HOSTNAME: pair[0]})

    async def ports(self, every: list[str]) -> None:
        """Place pods with a host port on just as many nodes as have it free; no other pod has room."""
        ports = [{"containerPort": PORT, "hostPort": PORT}]
        taken = every[3:5]
        for node in taken:
            await self.plain(f"agent-{node}", node, ports=ports)
        listeners = [f"listener-{number}" for number in range(LISTENERS)]
        await asyncio.gather(*(self.create(name, ports=ports) for name in listeners))
        assert {await self.bound(name) for name in listeners} == set(every) - set(taken)
        await self.create("on-the-host", ports=[{"containerPort": PORT}], hostNetwork=True)
        assert "a host port of the pod is in use" in await stories.reason(self._client, "on-the-host")
        await self._client.delete(PODS, listeners[0], namespace=NAMESPACE)
        await self.bound("on-the-host")

    async def label(self, node: str, labels: Object) -> None:
        """Change labels of a node; None removes one."""
        await self._client.patch(NODES, node, {"metadata": {"labels": labels}}, kind=PatchKind.MERGE)

    async def plain(
        self, name: str, node: str = "", *, labels: Object | None = None, ports: Any = (), **spec: Any
    ) -> None:
        """Create a pod that is not ours; on a node without the scheduler, if it is said."""
        on_node = {"nodeName": node} if node else {}
        claims = [{"name": entry["name"]} for entry in spec.get("resourceClaims", ())]
        resources = {"claims": claims} if claims else {}
        containers = [{"name": "main", "image": "none", "ports": list(ports), "resources": resources}]
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels or {}}
        spec = {"terminationGracePeriodSeconds": 0, "containers": containers} | on_node | spec
        await self._client.create(PODS, {"metadata": metadata, "spec": spec})

    async def create(self, name: str, *, labels: Object | None = None, ports: Any = (), **spec: Any) -> None:
        """Create a pod of one GPU."""
        ends = {"terminationGracePeriodSeconds": 0}
        made = pod(
            1, annotations={names.POLICY: "nvlink"}, labels=labels or {}, spec=ends | spec, name=name,
            namespace=NAMESPACE,
        )  # fmt: skip
        made["spec"]["containers"][0]["ports"] = list(ports)
        await self._client.create(PODS, made)

    async def bound(self, name: str) -> str:
        """Wait until a pod is bound. Returns its node."""
        return str((await stories.bound(self._client, name))["spec"]["nodeName"])


def _near(key: str, app: str) -> Object:
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]
    return {"podAffinity": {REQUIRED: terms}}


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    await stories.on_machines(plane, lambda client, machines: Story(client, machines).tell())


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
