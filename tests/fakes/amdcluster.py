"""A cluster of GPU nodes where AMD's driver hands out the GPUs, and this one chooses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import AMD, current_ledger
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology.machine import Machine
from tests.fakes import amd, kfd
from tests.fakes.apistore import Object
from tests.fakes.control_plane.devices import pinned
from tests.fakes.gpucluster import GpuCluster


class AmdCluster(GpuCluster):
    """The node agent publishes the machine; AMD's driver the devices. Its ledger has to be bound."""

    def restart(self) -> None:
        assert current_ledger() is AMD, "or the controller takes AMD's slices for nobody's"
        super().restart()

    def node(self, name: str, profile: str | None = "mi210-x8", **changes: Any) -> None:
        super().node(name, profile, **changes)

    def publish(self, node: str, machine: Machine) -> None:
        machine = kfd.on_boards(machine)
        (built,) = resource_slices.machine_alone(machine, node=node, node_uid="n")
        built["spec"]["pool"]["generation"] = 1
        self.put(RESOURCE_SLICES, built)
        self.offer(node, amd.whole(machine))

    def offer(self, node: str, devices: Iterable[Object]) -> None:
        """Publish what AMD's driver has on a node."""
        self.put(RESOURCE_SLICES, amd.resource_slice(node, list(devices)))

    def shift(self, node: str, cards: Mapping[int, int]) -> None:
        """Give GPUs, by the machine's own numbers, other cards; one without a number is lost."""
        gpus = {gpu.index: gpu for gpu in self.machines[node].gpus}
        self.offer(node, [amd.gpu(gpus[index], card) for index, card in cards.items()])

    def foreign(self, name: str, node: str, *devices: str) -> None:
        """Allocate devices, by AMD's names, to a claim of somebody who has no words of ours."""
        found = [{"request": "gpu", "driver": amd.DRIVER, "pool": node, "device": device} for device in devices]
        claim = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": amd.DRIVER}}]}},
            "status": {"allocation": {"devices": {"results": found}}},
        }
        self.put(RESOURCE_CLAIMS, claim)

    def admitted(self, name: str, gpus: Asked | Mapping[str, Asked] = 4, **changes: Any) -> Object:
        return super().admitted(name, gpus, wishes={**amd.WORDS, **changes.pop("wishes", {})}, **changes)

    def gpus(self, pod: str) -> tuple[str, list[int]]:
        """Return the node and the GPUs that a pod's claim is pinned to, by their addresses."""
        claim = self.claim(pod)
        assert claim is not None
        node = msgspec.json.decode(claim["metadata"]["annotations"][names.CHOICE], type=Choice).node
        wanted = set(pinned(claim))
        return node, [gpu.index for gpu in self.machines[node].gpus if gpu.pci in wanted]

    def given(self, pod: str) -> list[str]:
        """Return the names of the devices that a pod's claim was allocated."""
        claim = self.claim(pod)
        assert claim is not None
        return [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]
