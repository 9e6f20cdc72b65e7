"""Pods that only the scheduler can refuse, beside a control plane: `python -m tests.contract.siblings NAME`.

Real are the API server, the scheduler with all its plugins, and the chart's rights, webhook and controller.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from dradriver.api import names
from dradriver.api.policies.modes import Mode
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import PODS
from tests.bench.throughput.machines import Machines
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.fakes.admission import pod

Object = dict[str, Any]

NAMESPACE: Final = "default"
NODES: Final = 16
REPLICAS: Final = 12
BOUND_S: Final = 60
PORT: Final = 8080
ALONE: Final = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


class Story:
    """Pods on sixteen nodes."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client = client
        self._machines = machines

    async def tell(self) -> None:
        """Have the scheduler refuse a pod on the first of its nodes, then place replicas that must be alone."""
        await self._machines.grow(NODES)
        taken = {self._machines.name(number) for number in range(2)}
        for node in taken:  # a port of the host's is nothing that the controller sees
            await self._client.create(PODS, _foreign(f"foreign-{node}", node))
        await self.create("listener", port=PORT)
        assert await self.bound("listener") not in taken

        every = [f"db-{number}" for number in range(REPLICAS)]
        await asyncio.gather(*(self.create(name, labels={"app": "db"}, affinity=ALONE) for name in every))
        assert len({await self.bound(name) for name in every}) == REPLICAS
        await self._client.delete(PODS, "db-3", namespace=NAMESPACE)
        await self.create("db-3-again", labels={"app": "db"}, affinity=ALONE)
        every[3] = "db-3-again"
        assert len({await self.bound(name) for name in every}) == REPLICAS

    async def create(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        port: int | None = None,
        **spec: Any,
    ) -> None:
        """Create a pod of one GPU."""
        made = pod(
            1, annotations={names.POLICY: "nvlink"}, labels=labels or {}, spec=spec, name=name, namespace=NAMESPACE
        )
        made["spec"]["terminationGracePeriodSeconds"] = 0
        if port is not None:
            made["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
        await self._client.create(PODS, made)

    async def bound(self, name: str) -> str:
        """Wait until a pod is bound. Returns its node."""
        async with asyncio.timeout(BOUND_S):
            while not (node := (await self._client.get(PODS, name, namespace=NAMESPACE))["spec"].get("nodeName")):
                await asyncio.sleep(0.2)
        return str(node)


def _foreign(name: str, node: str) -> Object:
    container = {"name": "main", "image": "none", "ports": [{"containerPort": PORT, "hostPort": PORT}]}
    spec = {"nodeName": node, "containers": [container]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="contract", timeout_s=30) as client:
        machines = Machines(client, "dgx1-v100", mode=Mode(), connections=8)
        async with stories.driver(plane):
            await Story(client, machines).tell()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
