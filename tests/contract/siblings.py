"""Pods that only the scheduler can refuse, beside a control plane: `python -m tests.contract.siblings NAME`.

Real are the API server, the scheduler with all its plugins, and the chart's rights, webhook and controller.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api.base import names
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.resources import NODES as MACHINES
from dradriver.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from tests.bench.throughput.machines import Machines
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes.admission import pod

Object = dict[str, Any]

NODES: Final = 16
REPLICAS: Final = 12
ZONE: Final = "topology.kubernetes.io/zone"
AVOIDED: Final = {"app": "shunned"}
ALONE: Final = stories.keeping_away({"app": "db"})


class Story:
    """Pods on sixteen nodes."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client = client
        self._machines = machines

    async def tell(self) -> None:
        """Have the scheduler refuse a pod on its first node, then place siblings apart and pods by their volumes."""
        await self._machines.grow(NODES)
        taken = {self._machines.name(number) for number in range(2)}
        for node in taken:  # what the anti-affinity of a foreign pod keeps away is nothing that the controller sees
            await self._client.create(PODS, _foreign(f"foreign-{node}", node))
        await self.create("shunned", labels=AVOIDED)
        assert await self.bound("shunned") not in taken

        every = [f"db-{number}" for number in range(REPLICAS)]
        await asyncio.gather(*(self.create(name, labels={"app": "db"}, affinity=ALONE) for name in every))
        assert len({await self.bound(name) for name in every}) == REPLICAS
        await self._client.delete(PODS, "db-3", namespace=NAMESPACE)
        await self.create("db-3-again", labels={"app": "db"}, affinity=ALONE)
        every[3] = "db-3-again"
        assert len({await self.bound(name) for name in every}) == REPLICAS

        far = [self._machines.name(number) for number in (NODES - 2, NODES - 1)]
        for number in range(NODES):
            name = self._machines.name(number)
            zone = {"metadata": {"labels": {ZONE: "far" if name in far else "near"}}}
            await self._client.patch(MACHINES, name, zone, kind=PatchKind.MERGE)
        hosts = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": far}]}
        local: Object = {"local": {"path": "/disk"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [hosts]}}}
        await self.volume("on-a-host", **local)
        await self.mount("on-a-host")
        await self.mount("in-a-zone")  # before there is a claim
        await self.volume("in-a-zone", labels={ZONE: "far"}, nfs={"server": "none", "path": "/"})
        for name in ("on-a-host", "in-a-zone"):
            assert await self.bound(name) in far
            assert await self.narrowed(name) <= set(far), "no node that the scheduler would refuse"

    async def mount(self, name: str) -> None:
        """Create a pod with a volume of its own name."""
        await self.create(name, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": name}}])

    async def volume(self, name: str, *, labels: dict[str, str] | None = None, **source: Any) -> None:
        """Make a volume and a claim that is bound to it."""
        both = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        spec = both | {"capacity": {"storage": "1Gi"}} | source
        await self._client.create(
            PERSISTENT_VOLUMES, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        )
        claim = both | {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        await self._client.create(
            PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": claim}
        )
        async with asyncio.timeout(BOUND_S):
            while True:
                found = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=NAMESPACE)
                if found["status"].get("phase") == "Bound":
                    return
                await asyncio.sleep(0.2)

    async def narrowed(self, name: str) -> set[str]:
        """Return the nodes that a pod was lifted for."""
        affinity = (await self._client.get(PODS, name, namespace=NAMESPACE))["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return {value for term in terms for field in term["matchFields"] for value in field["values"]}

    async def create(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Create a pod of one GPU."""
        made = pod(
            1, annotations={names.POLICY: "nvlink"}, labels=labels or {}, spec=spec, name=name, namespace=NAMESPACE
        )
        made["spec"]["terminationGracePeriodSeconds"] = 0
        await self._client.create(PODS, made)

    async def bound(self, name: str) -> str:
        """Wait until a pod is bound. Returns its node."""
        return str((await stories.bound(self._client, name))["spec"]["nodeName"])


def _foreign(name: str, node: str) -> Object:
    containers = [{"name": "main", "image": "none"}]
    spec = {"nodeName": node, "containers": containers, "affinity": stories.keeping_away(AVOIDED)}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    await stories.on_machines(plane, lambda client, machines: Story(client, machines).tell())


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
