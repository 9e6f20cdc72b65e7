"""A cluster of GPU nodes where NVIDIA's driver hands out the GPUs, and this one chooses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dradriver.api.base.allocating_driver import NVIDIA, current_ledger
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology.machine import Machine
from tests.fakes import nvidia
from tests.fakes.apistore import Object
from tests.fakes.gpucluster import GpuCluster

SLICE = "00000-gpu.nvidia.com-{}-k2x7p"


class AddOnCluster(GpuCluster):
    """The node agent publishes the machine; NVIDIA's driver the devices. Its ledger is bound (fixture ``addon``)."""

    def restart(self) -> None:
        assert current_ledger() is NVIDIA, "or the controller takes NVIDIA's slices for nobody's"
        super().restart()

    def publish(self, node: str, machine: Machine) -> None:
        (built,) = resource_slices.machine_alone(machine, node=node, node_uid="n")
        built["spec"]["pool"]["generation"] = 1
        self.put(RESOURCE_SLICES, built)
        self.offer(node, nvidia.whole(machine))

    def offer(self, node: str, devices: Iterable[Object]) -> None:
        """Publish what NVIDIA's driver has on a node: it changes its one slice in place, in the same generation."""
        self.put(RESOURCE_SLICES, nvidia.slices(node, list(devices)))

    def offer_parts(self, node: str, minors: Mapping[int, int], *, generation: int = 1) -> Iterator[None]:
        """Publish a node's GPUs whole and by their MIG placements; gives way after each of the driver's writes."""
        machine = self.machines[node]
        numbers = {gpu.uuid: minors[gpu.index] for gpu in machine.gpus if gpu.index in minors}
        wanted = nvidia.in_parts(node, machine, numbers, generation=generation)
        there = [one for one in self.all(RESOURCE_SLICES) if one["spec"]["driver"] == nvidia.DRIVER]
        before = {one["metadata"]["name"] for one in there if one["spec"]["nodeName"] == node}
        for name in before - {one["metadata"]["name"] for one in wanted}:
            self.remove(RESOURCE_SLICES, name)
            yield
        for one in wanted:
            self.put(RESOURCE_SLICES, one)
            yield

    def shift(self, node: str, minors: Mapping[int, int]) -> None:
        """Give GPUs other minor numbers; one without a number is lost. Both by the machine's own numbers."""
        gpus = {gpu.index: gpu for gpu in self.machines[node].gpus}
        self.offer(node, [nvidia.gpu(gpus[index], minor) for index, minor in minors.items()])

    def foreign(self, name: str, node: str, *devices: str) -> None:
        """Allocate devices, by NVIDIA's names, to a claim of somebody who has no words of ours."""
        found = [{"request": "gpu", "driver": nvidia.DRIVER, "pool": node, "device": device} for device in devices]
        claim = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": nvidia.DRIVER}}]}},
            "status": {"allocation": {"devices": {"results": found}}},
        }
        self.put(RESOURCE_CLAIMS, claim)

    def given(self, pod: str) -> list[str]:
        """Return the names of the devices that a pod's claim was allocated."""
        claim = self.claim(pod)
        assert claim is not None
        return [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]
