"""The cluster's nodes: objects that say they are Ready, each with one machine's ResourceSlices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.topology import load
from dradriver.topology.synthetic import synthetic_uuid
from tests.bench.throughput.crowd import crowd

_MARK = "node-mark"
_UID = "uid-mark"
_WHOLE = Mode()


class Machines:
    """Nodes with equal machines, whose GPUs have uuids of their own; the cluster only grows.

    Attributes:
        count: How many there are now.
        gpus: GPUs of each.
    """

    def __init__(
        self,
        client: Client,
        source: str,
        *,
        mode: Mode = _WHOLE,
        connections: int,
        labels: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """``labels`` says which labels a node has beside those of all."""
        self._client = client
        self._labels = labels
        self._connections = connections
        machine = load.read_machine(source, seed=_MARK)
        self.count = 0
        self.gpus = len(machine.gpus)
        self._uuids = [(gpu.uuid, gpu.index) for gpu in machine.gpus]
        modes = {gpu.uuid: mode for gpu in machine.gpus}
        self._slices = []
        for each in resource_slices.build(machine, node=_MARK, node_uid=_UID, modes=modes):
            each["spec"]["pool"]["generation"] = 1
            # Filled in as text: to build thousands would take minutes.
            self._slices.append(msgspec.json.encode(each).decode())

    def name(self, number: int) -> str:
        """Return a node's name."""
        return f"n{number:05}"

    def uuids(self, number: int) -> list[str]:
        """Return the uuids of a node's GPUs in the machine's order."""
        return [synthetic_uuid(uuid, index, seed=self.name(number)) for uuid, index in self._uuids]

    async def grow(self, count: int) -> None:
        """Create what is missing to `count` nodes."""
        await crowd(self._add, range(self.count, count), at_once=self._connections)
        self.count = max(self.count, count)

    async def _add(self, number: int) -> None:
        name = self.name(number)
        uid = (await self._client.create(NODES, _node(name, self._labels(number))))["metadata"]["uid"]
        for text in self._slices:
            own = text.replace(_MARK, name).replace(_UID, uid)
            for (old, _), new in zip(self._uuids, self.uuids(number), strict=True):
                own = own.replace(old, new).replace(resource_slices.device_name(old), resource_slices.device_name(new))
            await self._client.create(RESOURCE_SLICES, msgspec.json.decode(own))


def _node(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    room = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    }
