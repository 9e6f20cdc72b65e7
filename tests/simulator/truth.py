"""What is really the case: which devices are offered, who holds them, and whether a pod has a place."""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from dradriver.allocator import Amount, Fleet, MigPart, Offer, SharePart
from dradriver.allocator.request import NoPlaceError
from dradriver.allocator.request import Part as Placed
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from dradriver.topology.machine import Gpu as MachineGpu
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Key, Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import rules
from tests.simulator import sharing
from tests.simulator.server import Server
from tests.simulator.taking import Gpu, Home, Part, Takes, given, together


class Made(msgspec.Struct):
    """A claim that a controller made: by which replica, when (version and time), and what it is pinned to."""

    replica: int
    version: int
    at: float
    takes: dict[Gpu, Takes]
    pod: tuple[str, str]  # name and uid of its owner


class Truth:
    """The server's objects, looked through once a version.

    Attributes:
        pools: Each real node's machine and the devices that it offers; absent while its pool is incomplete.
        homes: What every device of the real nodes is.
        made: Claims that controllers made, by uid.
        kept: How often each GPU is kept for pods that are made anew for lost ones of their gangs: for nobody else.
        aside: Nodes of which nobody need have a place: their machines are others every second.
        revision: Goes up when something changes here that the server's version does not tell.
    """

    def __init__(self, server: Server, may_have: Callable[[str, str, MachineGpu], bool]) -> None:
        """``may_have`` says whether a namespace may have a GPU of a node."""
        self._may_have = may_have
        self.pools: dict[str, tuple[Machine, Mapping[str, Object]]] = {}
        self.homes: dict[str, Home] = {}
        self.made: dict[str, Made] = {}
        self.kept: collections.Counter[Gpu] = collections.Counter()
        self.aside: set[str] = set()
        self.revision = 0
        self._unsure: dict[int, tuple[Key, dict[Gpu, Takes]]] = {}
        self._server = server
        self._version = -1
        self._allocated: dict[Gpu, dict[Key, Takes]] = {}
        self._promised: dict[Gpu, list[str]] = {}
        self._keys: dict[str, Key] = {}
        self._orphaned: dict[Gpu, list[tuple[Key, Takes]]] = {}  # of claims whose pod is gone, until they are too
        self._fleet = Fleet()
        self._shown: dict[str, object] = {}

    def add(self, uid: str, made: Made) -> None:
        """Note a claim that a controller made."""
        self.made[uid] = made
        self._version = -1

    def asked(self, number: int, claim: Key, takes: dict[Gpu, Takes]) -> None:
        """Note a request for a claim: until its sender knows what became of it, it must hold what it is to take."""
        self._unsure[number] = claim, takes
        self.revision += 1

    def unsure(self) -> list[tuple[Key, dict[Gpu, Takes]]]:
        """Return what requests for claims would take of which nobody knows yet what became of them."""
        return list(self._unsure.values())

    def certain(self, number: int) -> None:
        """Note that the sender of such a request can know what became of it."""
        self._unsure.pop(number, None)
        self.revision += 1

    def keep(self, gpus: Iterable[Gpu], change: int) -> None:
        """Count GPUs as kept once more, or once less."""
        self.kept.update(dict.fromkeys(gpus, change))
        self.revision += 1

    def come_back(self, node: str) -> None:
        """Count a node again that stood aside."""
        self.aside.discard(node)
        self.revision += 1

    def listed(self, node: str) -> Mapping[str, Object]:
        """Return the devices that a node offers, by name, in their order."""
        return self.pools[node][1] if node in self.pools else {}

    def ruled(self) -> frozenset[Gpu]:
        """Return the devices that an administrator's rules keep new claims off."""
        return frozenset((pool, device) for _, pool, device in rules(self._server))

    def allocated(self) -> dict[Gpu, dict[Key, Takes]]:
        """Return what claims were given of every GPU: no more than there is, if the scheduler is right."""
        self._look()
        return self._allocated

    def promised(self) -> dict[Gpu, list[str]]:
        """Return the uids of the controllers' live claims that hold some of each GPU, allocated or not."""
        self._look()
        return self._promised

    def doubles(self) -> dict[Gpu, list[str]]:
        """Return the controllers' live claims, by uid, of each GPU that does not hold all of them."""
        return {gpu: uids for gpu, uids in self.promised().items() if not self.agree(gpu, uids)}

    def agree(self, gpu: Gpu, uids: Sequence[str], *more: tuple[str, Takes]) -> bool:
        """Return whether a GPU holds what these claims of controllers take, and more, given with its namespace."""
        loads = [(self._keys[uid][0], self.made[uid].takes[gpu]) for uid in uids] + list(more)
        if self._exclusive(gpu) and len({namespace for namespace, _ in loads}) > 1:
            return False
        return together(self.homes, gpu, [takes for _, takes in loads])

    def fits(self, uid: str) -> bool:
        """Return whether there is room for what a controller's live claim is pinned to, and everybody can know that."""
        key, takes = self._keys[uid], self.made[uid].takes
        for gpu, own in takes.items():
            others = self._loads(gpu, {key})
            if gpu[0] not in self.pools:
                return False  # nobody can know while a part of its slices is not written
            if any(takes is None or any(part.hidden for part in takes) for _, takes in others):
                return False
            alone = not self._exclusive(gpu) or all(other[0] == key[0] for other, _ in others)
            if not alone or not together(self.homes, gpu, [own, *(takes for _, takes in others)]):
                return False
        return True

    def _exclusive(self, gpu: Gpu) -> bool:
        device = self.listed(gpu[0]).get(gpu[1])
        return device is not None and "exclusiveTo" in device["attributes"]

    def live(self, claim: Object) -> bool:
        """Return whether a controller's claim keeps its devices from others."""
        metadata = claim["metadata"]
        made = self.made.get(metadata["uid"])
        if made is None:
            return False
        if claim.get("status", {}).get("allocation"):
            return True
        found = [(self._server.find(PODS, name, metadata["namespace"]), uid) for name, uid in self.owners(claim)]
        pods = [pod for pod, uid in found if pod is not None and pod["metadata"]["uid"] == uid]
        living = any(not fit.finished(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
        return living and "deletionTimestamp" not in metadata

    def victims(self) -> frozenset[str]:
        """Return the uids of pods that have to end for a promise which stands: what they have is another's soon."""
        found: set[str] = set()
        for claim in self._server.all(RESOURCE_CLAIMS):
            named = names.PREEMPTS in fit.notes_of(claim) and not claim.get("status", {}).get("allocation")
            if named and self.live(claim):
                found |= {uid for _, _, uid in json.loads(fit.notes_of(claim)[names.PREEMPTS])["victims"]}
        return frozenset(found)

    def owners(self, claim: Object) -> list[tuple[str, str]]:
        """Return name and uid of the pod that a controller made a claim for, or of those that share it by now."""
        shared = names.SET in fit.notes_of(claim)
        return sharing.owners(claim) if shared else [self.made[claim["metadata"]["uid"]].pod]

    def has_place(self, pod: Object, feasible: Callable[[Object, Object, int], bool]) -> bool:
        """Return whether the allocator, asked directly, has a place for a pod on what is really free.

        What the pod's own claim holds counts as free; CPU that lifted pods were promised counts as taken.

        Args:
            pod: A pod with the webhook's note.
            feasible: Whether a pod fits on a node, devices aside, given so much CPU taken beside the bound pods'.
        """
        self._look()
        if (shared := sharing.claim_of(pod)) is not None:
            claim = self._server.find(RESOURCE_CLAIMS, shared[1], shared[0])
            if claim is not None and claim.get("status", {}).get("allocation"):
                return self._may_join(pod, claim, feasible)
            first = sharing.first(self._server, shared, None if claim is None else dict(self.owners(claim)).values())
            if first is None or first["metadata"]["uid"] != pod["metadata"]["uid"]:
                return False  # it follows another
        request = resolved.read(fit.notes_of(pod)).request
        own = {(pod["metadata"]["namespace"], name) for name in fit.claim_names(pod)}
        promised = self.promised_cpu({pod["metadata"]["uid"]})
        nodes = [
            str(name)
            for node in self._server.all(NODES)
            if (name := node["metadata"]["name"]) in self.pools
            and name not in self.aside
            and _ready(node)
            and feasible(pod, node, promised.get(name, 0))
        ]
        for node in nodes:
            self._show(node, own, pod["metadata"]["namespace"])
        try:
            return bool(nodes) and bool(self._fleet.rank(request, eligible=nodes, limit=1))
        except NoPlaceError:
            return False

    def _may_join(self, pod: Object, claim: Object, feasible: Callable[[Object, Object, int], bool]) -> bool:
        """Return whether a pod can have the set that others of its claim have."""
        given = claim["status"]["allocation"]["devices"]["results"]
        node = self._server.find(NODES, given[0]["pool"]) if given else None
        if node is None or not sharing.alike(pod, claim) or claim["metadata"]["uid"] not in self.made:
            return False
        name = node["metadata"]["name"]
        return (
            name in self.pools
            and _ready(node)
            and feasible(pod, node, self.promised_cpu({pod["metadata"]["uid"]}).get(name, 0))
        )

    def _show(self, node: str, own: set[Key], namespace: str) -> None:
        """Tell the fleet what is left of a node for a pod, besides what its own claim holds."""
        machine, listed = self.pools[node]
        ruled = self.ruled()
        free, shared, sliced, only = set(), set(), set(), set()
        parts: dict[int, tuple[Placed, ...]] = {}
        placed = {self.homes[name].gpu[1] for name in listed if self.homes[name].part is not None}
        for gpu in machine.gpus:
            name = resource_slices.device_name(gpu.uuid)
            device = listed.get(name)
            if device is None and name not in placed:
                continue
            if (node, name) in ruled or self.kept[node, name] or not self._may_have(namespace, node, gpu):
                continue
            attributes = {} if device is None else device["attributes"]
            loads = self._loads((node, name), own)
            if attributes.get("type", {}).get("string") != "gpu":
                only.add(gpu.index)
            if not ("exclusiveTo" in attributes and any(key[0] != namespace for key, _ in loads)):
                if "shareable" in attributes:
                    shared.add(gpu.index)
                if "mig" in attributes or name in placed:
                    sliced.add(gpu.index)
            if not loads:
                free.add(gpu.index)
            elif all(takes is not None and not any(part.hidden for part in takes) for _, takes in loads):
                parts[gpu.index] = tuple(_placed(gpu.index, part) for _, takes in loads for part in takes or ())
        offer = Offer(shared=frozenset(shared), sliced=frozenset(sliced), parts_only=frozenset(only))
        shown = machine.name, machine.gpus, free, offer, parts
        if self._shown.get(node) != shown:
            self._fleet.set_node(node, machine, free)
            self._fleet.set_offer(node, offer)
            self._fleet.set_parts(node, parts)
            self._shown[node] = shown

    def _loads(self, gpu: Gpu, own: set[Key]) -> list[tuple[Key, Takes]]:
        """Return what others hold of a GPU, or were promised, or may have been."""
        found = dict(self._allocated.get(gpu, {}))
        found |= {self._keys[uid]: self.made[uid].takes[gpu] for uid in self._promised.get(gpu, ())}
        unsure = [(key, takes[gpu]) for key, takes in self._unsure.values() if gpu in takes and key not in found]
        every = itertools.chain(found.items(), self._orphaned.get(gpu, ()), unsure)
        return [(key, takes) for key, takes in every if key not in own]

    def whole(self, node: str, own: set[Key], namespace: str) -> int:
        """Return how many GPUs of a node are to be had whole by a pod, besides what these claims hold."""
        self._look()
        machine = self.pools[node][0] if node in self.pools else None
        ruled, listed, count = self.ruled(), self.listed(node), 0
        for gpu in () if machine is None else machine.gpus:
            device = listed.get(name := resource_slices.device_name(gpu.uuid))
            whole = device is not None and device["attributes"].get("type", {}).get("string") == "gpu"
            off = (node, name) in ruled or self.kept[node, name] or not self._may_have(namespace, node, gpu)
            count += whole and not off and not self._loads((node, name), own)
        return count

    def promised_cpu(self, besides: Collection[str]) -> dict[str, int]:
        """CPU of pods that are not bound yet, but these (uids): by the node that they are promised or nominated for."""
        cpu: dict[str, int] = {}
        for pod in self._server.all(PODS):
            if pod["metadata"]["uid"] in besides or pod["spec"].get("nodeName") or fit.finished(pod):
                continue
            own = {(pod["metadata"]["namespace"], name) for name in fit.claim_names(pod)}
            held = [self.made[uid].takes for uid, key in self._keys.items() if key in own]
            held += [takes for key, takes in self._unsure.values() if key in own]
            nodes = {node for takes in held for node, _ in takes}
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
        self._orphaned = {}
        ends = self.victims()
        for claim in self._server.all(RESOURCE_CLAIMS):
            metadata = claim["metadata"]
            uid, key = metadata["uid"], (metadata["namespace"], metadata["name"])
            for gpu, takes in given(claim, self.homes).items():
                self._allocated.setdefault(gpu, {})[key] = takes
            if self.live(claim) and not (ends and any(owner in ends for _, owner in self.owners(claim))):
                self._keys[uid] = key
                for gpu in self.made[uid].takes:
                    self._promised.setdefault(gpu, []).append(uid)
            elif uid in self.made:
                for gpu, takes in self.made[uid].takes.items():
                    self._orphaned.setdefault(gpu, []).append((key, takes))


def _placed(number: int, part: Part) -> Placed:
    if part.slices:
        return MigPart(gpu=number, profile=part.profile, start=part.start, size=part.slices)
    return SharePart(gpu=number, amount=Amount(part.cores, part.memory_mib))


def _ready(node: Object) -> bool:
    return {"type": "Ready", "status": "True"} in node["status"]["conditions"]
