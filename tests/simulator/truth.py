"""What is really the case: which devices are offered, who holds them, and whether a pod has a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dradriver.allocator import Fleet
from dradriver.allocator.request import NoPlaceError
from dradriver.api import resolved, slices
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Key, Object
from tests.simulator import fit
from tests.simulator.server import Server

Device = tuple[str, str]


class Made(msgspec.Struct):
    """A claim that a controller made: by which replica, when (version and time), and what it is pinned to."""

    replica: int
    version: int
    at: float
    devices: frozenset[Device]
    pod: tuple[str, str]  # name and uid of its owner


class Truth:
    """The server's objects, looked through once a version.

    Attributes:
        pools: Each real node's machine and the devices that it offers; absent while its pool is incomplete.
        made: Claims that controllers made, by uid.
        revision: Goes up when something changes here that the server's version does not tell.
    """

    def __init__(self, server: Server) -> None:
        self.pools: dict[str, tuple[Machine, frozenset[str]]] = {}
        self.made: dict[str, Made] = {}
        self.revision = 0
        self._unsure: dict[int, tuple[Key, frozenset[Device]]] = {}
        self._server = server
        self._version = -1
        self._allocated: dict[Device, list[Key]] = {}
        self._promised: dict[Device, list[str]] = {}
        self._keys: dict[str, Key] = {}
        self._orphaned: set[Device] = set()  # of claims whose pod is gone, until they are gone too
        self._fleet = Fleet()
        self._shown: dict[str, tuple[Machine, frozenset[int]]] = {}

    def add(self, uid: str, made: Made) -> None:
        """Note a claim that a controller made."""
        self.made[uid] = made
        self._version = -1

    def asked(self, number: int, claim: Key, devices: frozenset[Device]) -> None:
        """Note a request for a claim: until its sender knows what became of it, it must hold the devices."""
        self._unsure[number] = claim, devices
        self.revision += 1

    def certain(self, number: int) -> None:
        """Note that the sender of such a request can know what became of it."""
        self._unsure.pop(number, None)
        self.revision += 1

    def listed(self, node: str) -> frozenset[str]:
        return self.pools[node][1] if node in self.pools else frozenset()

    def allocated(self) -> dict[Device, list[Key]]:
        """Return the claims that every allocated device was given to: one each, if the scheduler is right."""
        self._look()
        return self._allocated

    def promised(self) -> dict[Device, list[str]]:
        """Return the uids of the controllers' live claims that hold each device, allocated or not."""
        self._look()
        return self._promised

    def live(self, claim: Object) -> bool:
        """Return whether a controller's claim keeps its devices from others."""
        metadata = claim["metadata"]
        made = self.made.get(metadata["uid"])
        if made is None:
            return False
        if claim.get("status", {}).get("allocation"):
            return True
        pod = self._server.find(PODS, made.pod[0], metadata["namespace"])
        if pod is None or pod["metadata"]["uid"] != made.pod[1] or fit.finished(pod):
            return False
        return "deletionTimestamp" not in metadata and "deletionTimestamp" not in pod["metadata"]

    def has_place(self, pod: Object, feasible: Callable[[Object, Object, int], bool]) -> bool:
        """Return whether the allocator, asked directly, has a place for a pod on what is really free.

        What the pod's own claim holds counts as free; CPU that lifted pods were promised counts as taken.

        Args:
            pod: A pod with the webhook's note.
            feasible: Whether a pod fits on a node, devices aside, given so much CPU taken beside the bound pods'.
        """
        self._look()
        request = resolved.read(fit.notes_of(pod)).request
        own = {(pod["metadata"]["namespace"], name) for name in fit.claim_names(pod)}
        promised = self._promised_cpu(pod)
        nodes = [
            str(name)
            for node in self._server.all(NODES)
            if (name := node["metadata"]["name"]) in self.pools
            and _ready(node)
            and feasible(pod, node, promised.get(name, 0))
        ]
        for node in nodes:
            machine, listed = self.pools[node]
            free = frozenset(
                gpu.index
                for gpu in machine.gpus
                if (name := slices.device_name(gpu.uuid)) in listed and self._free((node, name), own)
            )
            shown = self._shown.get(node)
            if shown is None or shown[0] is not machine or shown[1] != free:
                self._fleet.set_node(node, machine, free)
                self._shown[node] = machine, free
        try:
            return bool(nodes) and bool(self._fleet.rank(request, eligible=nodes, limit=1))
        except NoPlaceError:
            return False

    def _free(self, device: Device, own: set[Key]) -> bool:
        if any(key not in own for key in self._allocated.get(device, ())):
            return False
        if device in self._orphaned or any(device in asked for key, asked in self._unsure.values() if key not in own):
            return False
        return all(self._keys[uid] in own for uid in self._promised.get(device, ()))

    def _promised_cpu(self, besides: Object) -> dict[str, int]:
        """CPU of pods that are not bound yet, by the node that they were promised to or nominated for."""
        cpu: dict[str, int] = {}
        for pod in self._server.all(PODS):
            if pod is besides or pod["spec"].get("nodeName") or fit.finished(pod):
                continue
            own = {(pod["metadata"]["namespace"], name) for name in fit.claim_names(pod)}
            held = [self.made[uid].devices for uid, key in self._keys.items() if key in own]
            held += [devices for key, devices in self._unsure.values() if key in own]
            nodes = {node for devices in held for node, _ in devices}
            nodes.add(pod.get("status", {}).get("nominatedNodeName", ""))
            for node in nodes:
                cpu[node] = cpu.get(node, 0) + fit.cpu_of(pod)
        return cpu

    def _look(self) -> None:
        if self._version == self._server.version:
            return
        self._version = self._server.version
        self._allocated, self._promised = {}, {}
        self._keys = {}
        self._orphaned = set()
        for claim in self._server.all(RESOURCE_CLAIMS):
            metadata = claim["metadata"]
            key = metadata["namespace"], metadata["name"]
            for device in given(claim):
                self._allocated.setdefault(device, []).append(key)
            if self.live(claim):
                self._keys[metadata["uid"]] = key
                for device in self.made[metadata["uid"]].devices:
                    self._promised.setdefault(device, []).append(metadata["uid"])
            elif metadata["uid"] in self.made:
                self._orphaned |= self.made[metadata["uid"]].devices


def _ready(node: Object) -> bool:
    return {"type": "Ready", "status": "True"} in node["status"]["conditions"]


def given(claim: Object) -> Iterator[Device]:
    """Give the devices that a claim was allocated; one for monitoring takes none from anybody."""
    allocation = claim.get("status", {}).get("allocation") or {}
    for result in allocation.get("devices", {}).get("results", ()):
        if not result.get("adminAccess"):
            yield result["pool"], result["device"]
