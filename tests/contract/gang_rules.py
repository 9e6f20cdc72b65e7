"""Gangs whose pods have rules about each other, on a control plane: `python -m tests.contract.gang_rules NAME`.

Real are the API server, the scheduler with all its plugins, and the chart's rights, webhook and controller.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from dradriver.api.base import names
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS
from tests.bench.throughput.machines import Machines
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import NAMESPACE
from tests.fakes.admission import pod

Object = dict[str, Any]

NODES: Final = 8
ZONES: Final = 4
ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
PORT: Final = 29500
GONE_S: Final = 30
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def zone_of(number: int) -> str:
    """Return the zone of a node."""
    return f"zone-{number % ZONES}"


def rule(key: str) -> Object:
    """Return a rule about the pods of the gang."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "train"}}}


class Story:
    """Gangs on eight empty nodes in four zones."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client, self._machines = client, machines

    async def tell(self) -> None:
        """Start a gang with each kind of rule, one after another."""
        await self._machines.grow(NODES)
        zones = await self.start(4, affinity={"podAntiAffinity": {_REQUIRED: [rule(ZONE)]}})
        assert sorted(map(self.zone, zones)) == [zone_of(number) for number in range(ZONES)]

        spread = rule(ZONE) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        zones = await self.start(8, topologySpreadConstraints=[spread])
        assert sorted(map(self.zone, zones)) == sorted(2 * [zone_of(number) for number in range(ZONES)])

        zones = await self.start(3, affinity={"podAffinity": {_REQUIRED: [rule(ZONE)]}})
        assert len(set(map(self.zone, zones))) == 1
        assert len(set(await self.start(2, affinity={"podAffinity": {_REQUIRED: [rule(HOST)]}}))) == 1

        assert len(set(await self.start(2, port=PORT, hostNetwork=True))) == 2, "one port is on a node once"

        # What foreign pods exclude by their rules is nothing that the controller sees. Each plan that meets one fails,
        # and the next one takes more nodes, and others.
        excluded = [self._machines.name(number) for number in range(2)]
        for node in excluded:
            await self._client.create(PODS, _foreign(f"foreign-{node}", node))
        assert not set(await self.start(2)) & set(excluded)

    def zone(self, node: str) -> str:
        """Return the zone of a node by its name."""
        return zone_of(int(node.removeprefix("n")))

    async def start(self, count: int, *, port: int | None = None, **spec: Any) -> Sequence[str]:
        """Create a gang of pods with four GPUs, wait until all are bound, and delete it. Returns their nodes."""
        words = {names.POLICY: "nvlink", names.GANG: "train", names.GANG_SIZE: str(count)}
        pods = [f"train-{number}" for number in range(count)]
        began = time.monotonic()
        for name in pods:
            made = pod(4, annotations=words, labels={"app": "train"}, spec=dict(spec), name=name, namespace=NAMESPACE)
            made["spec"]["terminationGracePeriodSeconds"] = 0
            if port is not None:
                made["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
            await self._client.create(PODS, made)
        nodes = [str((await stories.bound(self._client, name))["spec"]["nodeName"]) for name in pods]
        sys.stderr.write(f"{count} pods with {', '.join(spec) or 'no rules'}: {time.monotonic() - began:.1f} s\n")
        for name in pods:
            await self._client.delete(PODS, name, namespace=NAMESPACE)
        async with asyncio.timeout(GONE_S):
            while await self._any_of(pods):
                await asyncio.sleep(0.2)
        return nodes

    async def _any_of(self, pods: Sequence[str]) -> bool:
        for name in pods:
            try:
                await self._client.get(PODS, name, namespace=NAMESPACE)
            except ApiError as error:
                assert error.not_found, error
            else:
                return True
        return False


def _foreign(name: str, node: str) -> Object:
    affinity = {"podAntiAffinity": {_REQUIRED: [rule(HOST)]}}
    spec = {"nodeName": node, "affinity": affinity, "containers": [{"name": "main", "image": "none"}]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    await stories.on_machines(
        plane, lambda client, machines: Story(client, machines).tell(), labels=lambda number: {ZONE: zone_of(number)}
    )


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
