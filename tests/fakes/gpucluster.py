"""A cluster of GPU nodes in memory: the controller's worker with its API server, a scheduler and a garbage collector.

Nothing happens by itself: events reach the controller when ``deliver`` is called, pods are bound when ``schedule`` is.
"""

from __future__ import annotations

import collections
import datetime
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from dradriver.allocator.request import Choice, PartChoice
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.api.vocabulary.nic_requests import DRIVERS
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.nics import nic_devices
from dradriver.controller.audit import Audit
from dradriver.controller.controller import Source, sources
from dradriver.controller.features.registry import FeatureLimits
from dradriver.controller.loop.worker import Worker
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.writing.reasons import PodRecorders, Record
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.isolated import Isolated
from dradriver.kube.reflector import Change
from dradriver.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.apistore import Object, Store, Stored, key_of
from tests.fakes.control_plane import binding, cleanup
from tests.fakes.control_plane.binding import Verdict
from tests.fakes.control_plane.devices import pinned, result
from tests.fakes.control_plane.scheduler import Scheduler
from tests.fakes.storeclient import Call, StoreClient, answer


class Killed(BaseException):
    """The controller was killed, as by kill -9: nothing of its own may catch this."""


class DirectClient(StoreClient):
    """A client whose process can be killed at a write, and whose writes can be refused.

    Attributes:
        writes: All writes that were asked for, in order: verb, ``try`` of what was only tried, and name.
        kill_at: Number of the write (from 1) at which the controller is killed, or 0; negative: after it was stored.
        refuse: Errors to answer the next writes of a verb with.
        lose: How many of the next writes of a verb are stored without an answer.
        on_request: Called with each request before it is answered.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.writes: list[tuple[str, str]] = []
        self.kill_at = 0
        self.refuse: dict[str, list[ApiError]] = {}
        self.lose: collections.Counter[str] = collections.Counter()
        self.on_request: Callable[[Call], object] = lambda _: None

    async def _send(self, call: Call, act: Callable[[], Any]) -> Any:
        self.on_request(call)
        if not call.writes:
            return answer(act)
        verb = "try" if call.dry else call.verb
        self.writes.append((verb, call.name))
        if 0 < self.kill_at <= len(self.writes) or 0 < -self.kill_at < len(self.writes):
            raise Killed
        if self.refuse.get(verb):
            raise _refused(call, self.refuse[verb].pop(0))
        result = answer(act)
        if -self.kill_at == len(self.writes):
            raise Killed
        if self.lose[verb]:
            self.lose[verb] -= 1
            raise Unreachable(f"{call}: the connection broke")
        return result


def _refused(call: Call, error: ApiError) -> ApiError:
    """Return a test's error as the client raises it: with the request, if it is one that creates an object."""
    if call.verb == "create" and isinstance(error, ApiError):
        error.request = f"POST /apis/group/version/namespaces/{call.namespace}/{call.plural}"
    return error


class Leader(NamedTuple):
    """A controller, and the version up to which it has seen the events of each kind of object."""

    worker: Worker
    seen: Mapping[str, int]


class GpuCluster(Stored):
    """The cluster. ``client`` and ``worker`` are replaced by ``restart``; see ``Worker`` for the times.

    Attributes:
        suspendable: Passed to the next ``Worker``.
        record_placed: Passed to the next ``Worker``.
        record_waiting: The same.
        tables: Passed to the next ``Worker``.
        tells_nvsentinel: Passed to the next ``Worker``.
        stands_by: Whether the next ``Worker`` only watches until its ``begin`` is called.
    """

    suspendable: Collection[str] = ()
    record_placed: Record | None = None
    record_waiting: Record | None = None
    tables: AtOnce | None = None
    tells_nvsentinel = False
    stands_by = False
    nics_are_read = True

    def __init__(self, *, promise_s: float = 1000.0, unschedulable_s: float = 1000.0) -> None:
        self.promise_s = promise_s
        self.hand_over_s = self.grace_s = 0.0
        self.unschedulable_s = unschedulable_s
        self.sources = sources()
        self.nic_sources = tuple(
            Source(RESOURCE_SLICES, nic_devices.read_slice, Picture.nics_changed, f"spec.driver={driver}")
            for driver in DRIVERS
        )
        self.store = Store(lambda: datetime.datetime.fromtimestamp(self.time_s(), datetime.UTC))
        self.machines: dict[str, Machine] = {}
        self.modes: dict[str, Mode] = {}
        self._created = 0
        self._seen: dict[str, int] = {}
        self._records: dict[str, Any] = {}
        self._delivered: int | None = None
        self.restart()

    def time_s(self) -> float:
        """Return the time for the controller and the API server, seconds since the epoch."""
        return time.time()

    def controller_time_s(self) -> float:
        """Return the time for the controller, where its clock may be another's than the API server's."""
        return self.time_s()

    def restart(self) -> None:
        """Put a new controller in the old one's place; it has seen nothing yet."""
        self.client = DirectClient(self.store)
        self.worker = Worker(
            cast("Client", self.client),
            deadlines=Deadlines(
                promise_s=self.promise_s,
                unschedulable_s=self.unschedulable_s,
                hand_over_s=self.hand_over_s,
                grace_s=self.grace_s,
            ),
            recorders=PodRecorders(placed=self.record_placed, waiting=self.record_waiting),
            suspendable=self.suspendable,
            clock=self.controller_time_s,
            tables=self.tables,
            tells_nvsentinel=self.tells_nvsentinel,
        )
        self.features = FeatureLimits(self.worker, clock=self.time_s)
        self.worker.picture.barrier = self.find(RESOURCE_SLICES, gang_barrier_device.SLICE) is not None
        if not self.stands_by:
            self.worker.begin()
        self._seen.clear()
        self._records.clear()
        self._delivered = None

    @property
    def leader(self) -> Leader:
        """The controller and what it has seen, for ``lead_again``."""
        return Leader(self.worker, dict(self._seen))

    def lead_again(self, leader: Leader) -> None:
        """Let an earlier controller act again; it has seen no events in between."""
        self.worker, self._seen, self._delivered = leader.worker, dict(leader.seen), None

    # What reaches the controller.

    def deliver(self, *resources: Resource) -> None:
        """Let the controller's reflectors see all that has happened, to some kinds only where any are named."""
        if self._delivered != self.store.version:
            self._delivered = None if resources else self.store.version
            self._deliver(resources)
        if self._nics_wanted:  # these are read late, by themselves
            for driver in DRIVERS:
                self.worker.picture.nics_read(driver)

    def _deliver(self, resources: Collection[Resource]) -> None:
        deleted = [claim for claim in self.store.all(RESOURCE_CLAIMS) if "deletionTimestamp" in claim["metadata"]]
        cleanup.clean(self.store, deleted)
        for source in (*self.sources, *self.nic_sources):
            if resources and source.resource not in resources:
                continue
            where = self.store.of(source.resource)
            seen = _stream(source)
            events: list[tuple[Object | None, Object | None]]
            if seen not in self._seen:
                events = [(None, obj) for obj in where.objects.values()]
            else:
                events = [(e.old, e.new) for e in where.log if e.version > self._seen[seen]]
            self._seen[seen] = self.store.version
            for before, after in events:
                if source.fields not in (None, f"spec.driver={(after or before or {}).get('spec', {}).get('driver')}"):
                    continue
                metadata = (after or before or {})["metadata"]
                key = metadata.get("namespace", ""), metadata["name"]
                old, new = (None if obj is None else self._read(source, obj) for obj in (before, after))
                if old is not None or new is not None:
                    source.changed(self.worker.picture, Change(key, old, new))
                    self.worker.placed.seen(old, new)

    def skip(self, resource: Resource) -> None:
        """Let the controller never see what has happened to objects of a kind so far."""
        for source in (*self.sources, *self.nic_sources):
            if source.resource is resource:
                self._seen[_stream(source)] = self.store.version

    @property
    def _nics_wanted(self) -> bool:
        return self.nics_are_read and self.worker.picture.nics.asked and not self.worker.picture.nics.known

    @property
    def restarts(self) -> OwnerRestarts:
        """The part of the controller that starts gangs again; ``settle`` has it work."""
        return self.worker.restarts

    async def audit(self) -> int:
        """Compare the controller's books with all that there is; return how many differences there were."""
        return await Audit(self.worker.picture, self.shown()).look()

    def shown(self) -> list[tuple[Resource, dict[tuple[str, str], Any]]]:
        """Return what the reflectors' stores would have of all that there is."""
        shown = []
        for source in (*self.sources, *self.nic_sources):
            found: dict[tuple[str, str], Any] = {}
            for key, obj in self.store.of(source.resource).objects.items():
                if source.fields in (None, f"spec.driver={obj.get('spec', {}).get('driver')}"):
                    found[key] = self._read(source, obj)
            shown.append((source.resource, {key: one for key, one in found.items() if one is not None}))
        return shown

    def _read(self, source: Source, obj: Object) -> Any:
        """Return what a reflector keeps of an object, which it reads once for each version."""
        version = f"{source.resource.plural} {source.fields} {obj['metadata']['resourceVersion']}"
        if version not in self._records:
            self._records[version] = Isolated(source.resource.plural, source.read)(_raw(obj))
        return self._records[version]

    async def settle(self) -> None:
        """Let the controller see everything and act until it has nothing more to do."""
        for _ in range(20):
            self.deliver()
            before = self.store.version
            await self.worker.rest()
            await self.worker.sweep()
            if self.store.version == before and not self._nics_wanted:
                assert await self.audit() == 0, "the controller's books are what it was shown"
                return
        raise AssertionError("the controller never comes to rest")

    # What others do.

    def node(self, name: str, profile: str | None = "dgx1-v100", *, mode: Mode | None = None, **changes: Any) -> None:
        """Add a node or change it; with a profile it publishes such a machine, its GPUs handed out as ``mode`` says."""
        labels = {"kubernetes.io/hostname": name, **changes.get("labels", {})}
        free = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        self.store.put(
            NODES,
            {
                "metadata": {"name": name, "labels": labels, "annotations": changes.get("annotations", {})},
                "spec": {"taints": changes.get("taints", []), "unschedulable": changes.get("unschedulable", False)},
                "status": {
                    "allocatable": free | changes.get("allocatable", {}),
                    "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
                },
            },
        )
        if profile is not None:
            self.machines[name] = profiles.load(profile, seed=name)
            self.modes[name] = mode or Mode()
            self.publish(name, self.machines[name])

    def device_class(self, name: str, extended: str) -> None:
        """Add a device class that serves an extended resource."""
        self.put(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"extendedResourceName": extended}})

    def publish(self, node: str, machine: Machine) -> None:
        """Publish a node's pool, a generation higher than before; what that one had and this has not goes."""
        before = self.store.find(RESOURCE_SLICES, resource_slices.slice_name(0, node))
        generation = 1 if before is None else before["spec"]["pool"]["generation"] + 1
        modes = {gpu.uuid: self.modes.get(node, Mode()) for gpu in machine.gpus}
        for built in resource_slices.build(machine, node=node, node_uid="n", modes=modes):
            built["spec"]["pool"]["generation"] = generation
            self.store.put(RESOURCE_SLICES, built)
        for piece in self.store.all(RESOURCE_SLICES):
            spec = piece["spec"]
            ours = spec["driver"] == names.DRIVER and spec.get("nodeName") == node
            if ours and spec["pool"]["generation"] < generation:
                self.remove(RESOURCE_SLICES, piece["metadata"]["name"])

    def pod(self, name: str, gpus: Asked | Mapping[str, Asked] = 4, **changes: Any) -> None:
        """Create a pod as the webhook admits it; ``changes`` go into its spec, ``wishes`` into its annotations."""
        self.store.put(PODS, self.admitted(name, gpus, **changes))

    def admitted(self, name: str, gpus: Asked | Mapping[str, Asked] = 4, **changes: Any) -> Object:
        """Return such a pod."""
        counts: dict[str, Asked] = dict(gpus) if isinstance(gpus, Mapping) else {"main": gpus}
        namespace = changes.pop("namespace", "default")
        self._created += 1
        wishes = {names.PREFIX + key: value for key, value in changes.pop("wishes", {}).items()}
        requests = changes.pop("requests", {})
        noted = resolved.resolve(Annotations(wishes), counts)
        claim = claim_of(name) if noted.shared is msgspec.UNSET else noted.shared
        spec: Object = {
            "schedulingGates": [{"name": names.GATE}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": claim}],
            "containers": [
                {
                    "name": container,
                    "image": "example.com/image",
                    "resources": {
                        "requests": requests,
                        "claims": [{"name": names.POD_CLAIM, "request": request} for request in requests_of],
                    },
                }
                for container, requests_of in noted.requests.items()
            ],
        }
        return {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "creationTimestamp": f"2026-01-01T00:00:{self._created % 60:02d}Z",
                "labels": {names.LABEL: names.LABEL_PLACED},
                "annotations": {names.REQUEST: resolved.write(noted), **wishes},
            },
            "spec": spec | changes,
            "status": {"phase": "Pending"},
        }

    def barrier(self) -> None:
        """Let seats keep pods from being bound, as from 1.36 on: the device is published, and the worker knows."""
        self.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}, "spec": {}})
        self.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
        self.worker.picture.barrier = True

    def schedule(self) -> None:
        """Let kube-scheduler give lifted pods their devices, in its order, and bind them; they run at once.

        Pods that wait for conditions of their claims it looks at, and binds those that need wait no longer.
        """
        scheduler = Scheduler(self.store)
        for pod in scheduler.queue():
            if binding.waits(self.store, pod):
                self._look(scheduler, pod)
                continue
            claims = scheduler.claims(pod)
            if claims is None:
                continue
            place = scheduler.place(pod, claims)
            for other in scheduler.in_the_way(pod, claims) if place is None else ():
                scheduler.put_out(other)
            place = place or scheduler.place(pod, claims)
            if place is None:
                if not scheduler.take_back(pod, elsewhere=scheduler.elsewhere(pod, claims)):
                    scheduler.refuse(pod)
                continue
            for claim, found in place.given:
                assert scheduler.give(pod, claim, found), "nobody changes a claim in the meantime"
            self._look(scheduler, pod, place.node)

    def put_out(self, name: str) -> None:
        """Take a pod that waits to be bound out of its place, as for one of higher priority; its claim stays."""
        Scheduler(self.store).put_out(self.get_pod(name))

    def _look(self, scheduler: Scheduler, pod: Object, node: str = "") -> None:
        found = scheduler.verdict(pod, node or pod["status"].get("nominatedNodeName", ""))
        if found is Verdict.FAILED:
            scheduler.put_out(pod)
            scheduler.take_back(pod, elsewhere=False)
        elif found is Verdict.BIND:
            scheduler.bind(pod, node or pod["status"]["nominatedNodeName"])
            self.store.edit(PODS, key_of(pod), lambda pod: pod["status"].update(phase="Running"))

    def begin_deletion(self, pod: str) -> None:
        """Delete a pod that does not go yet: its processes have not ended, or a finalizer keeps it."""
        deletion = {"deletionTimestamp": "2026-01-01T00:00:30Z", "finalizers": ["example.com/keep"]}
        self.store.edit(PODS, ("default", pod), lambda pod: pod["metadata"].update(deletion))

    def collect(self) -> None:
        """Let the claim controller and the garbage collector do all that they can."""
        for _ in range(2):
            cleanup.clean(self.store, self.store.all(RESOURCE_CLAIMS))

    def rival(self, name: str, node: str, indices: Iterable[int]) -> None:
        """Allocate a claim of somebody else's."""
        uuids = [self.machines[node].gpus[index].uuid for index in indices]
        given = {"devices": {"results": [result(node, uuid) for uuid in uuids]}}
        self.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "status": {"allocation": given}})

    # What a test looks at.

    def get_pod(self, name: str) -> Object:
        pod = self.find(PODS, name, "default")
        assert pod is not None
        return pod

    def note(self, name: str, key: str) -> str | None:
        """Return an annotation of a pod."""
        written: dict[str, str] = self.get_pod(name)["metadata"]["annotations"]
        return written.get(names.PREFIX + key)

    def claim(self, pod: str) -> Object | None:
        """Return the claim that the webhook named for a pod."""
        return self.find(RESOURCE_CLAIMS, claim_of(pod), "default")

    def gpus(self, pod: str) -> tuple[str, list[int]]:
        """Return the node and the GPUs that a pod's claim is pinned to."""
        claim = self.claim(pod)
        assert claim is not None
        node = msgspec.json.decode(claim["metadata"]["annotations"][names.CHOICE], type=Choice | PartChoice).node
        wanted = set(pinned(claim))
        return node, [gpu.index for gpu in self.machines[node].gpus if gpu.uuid in wanted]


def claim_of(pod: str) -> str:
    """Return the claim name that the fake webhook gives a pod."""
    return f"gpus-{pod}"


def note(counts: Mapping[str, Asked], wishes: Mapping[str, str]) -> str:
    """Return what the webhook notes of a pod."""
    return resolved.write(resolved.resolve(Annotations(wishes), counts))


def _stream(source: Source) -> str:
    return f"{source.resource.plural} {source.fields}"


def _raw(obj: Object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(obj))
