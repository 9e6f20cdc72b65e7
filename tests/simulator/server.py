"""The API server's objects, with everybody told at once of every change."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dradriver.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tests.fakes.apistore import Collection, Event, Key, Object, Refused, Store, patched
from tests.simulator.faults import Call

EPOCH: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
KINDS: Final = (PODS, RESOURCE_CLAIMS, NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES)


@dataclass(slots=True)
class Happening:
    """One change of one object. ``encoded`` keeps its JSON, which several watches send."""

    plural: str
    event: Event
    encoded: dict[int, bytes] = field(default_factory=dict)

    @property
    def obj(self) -> Object:
        """The newest that is known of the object."""
        obj = self.event.new if self.event.new is not None else self.event.old
        assert obj is not None, "an event has an object"
        return obj

    @property
    def key(self) -> Key:
        metadata = self.obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]

    def json(self, obj: Object) -> bytes:
        if id(obj) not in self.encoded:
            self.encoded[id(obj)] = msgspec.json.encode(obj)
        return self.encoded[id(obj)]


class Server:
    """A store that stamps objects with the time of ``clock``. What it returns is not to be changed.

    Attributes:
        listeners: Called with every change, in order, before the write returns.
        acting: The controller's request that is being done, or None.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.store = Store()
        self.store.on_event = self._on_event
        self.listeners: list[Callable[[Happening], None]] = []
        self.acting: Call | None = None
        self._clock = clock
        self._collections: dict[str, Collection] = {}

    @property
    def version(self) -> int:
        return self.store.version

    def where(self, resource: Resource) -> Collection:
        found = self._collections.get(resource.plural)
        if found is None:
            found = self.store.collection(resource.group, resource.version, resource.plural)
            self._collections[resource.plural] = found
        return found

    # What anybody may ask.

    def find(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        return self.where(resource).objects.get((namespace, name))

    def all(self, resource: Resource) -> Iterable[Object]:
        return list(self.where(resource).objects.values())

    # What a client asks; Refused is the answer where it is refused.

    def get(self, resource: Resource, key: Key) -> Object:
        return self.store.get(self.where(resource), key)

    def create(self, resource: Resource, namespace: str, obj: Object) -> Object:
        return self.store.create(self.where(resource), namespace, self._stamped(obj))

    def update(self, resource: Resource, key: Key, obj: Object, subresource: str | None) -> Object:
        return self.store.replace(self.where(resource), key, obj, subresource=subresource or "")

    def patch(self, resource: Resource, key: Key, kind: str, body: Any, subresource: str | None) -> Object:
        old = self.get(resource, key)
        new = patched(old, kind, body)
        if resource is PODS and not old["spec"].get("schedulingGates") and new["spec"] != old["spec"]:
            raise Refused(422, "Invalid", f'Pod "{key[1]}" is invalid: spec: Forbidden: pod updates may not change it')
        return self.store.replace(self.where(resource), key, new, subresource=subresource or "")

    def delete(self, resource: Resource, key: Key, preconditions: Object) -> None:
        self.store.delete(self.where(resource), key, preconditions)

    # What the rest of Kubernetes and its users do.

    def put(self, resource: Resource, obj: Object) -> Object:
        """Create an object or replace all of it, status too."""
        namespace, where = obj["metadata"].get("namespace", ""), self.where(resource)
        key = namespace, obj["metadata"]["name"]
        if key in where.objects:
            metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
            return self.store.replace(where, key, obj | {"metadata": metadata}, whole=True)
        return self.store.create(where, namespace, self._stamped(obj), with_status=True)

    def edit(self, resource: Resource, key: Key, change: Callable[[Object], object]) -> None:
        """Let ``change`` change a copy of an object and store that; an object that is gone stays so."""
        old = self.where(resource).objects.get(key)
        if old is not None:
            new = copy.deepcopy(old)
            change(new)
            self.put(resource, new)

    def remove(self, resource: Resource, key: Key) -> None:
        """Delete an object; one that is gone is no error."""
        if key in self.where(resource).objects:
            self.store.delete(self.where(resource), key)

    def _stamped(self, obj: Object) -> Object:
        at = EPOCH + datetime.timedelta(seconds=self._clock())
        return obj | {"metadata": {"creationTimestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ")} | obj["metadata"]}

    def _on_event(self) -> None:
        for plural, where in self._collections.items():
            if where.log and where.log[-1].version == self.store.version:
                happening = Happening(plural, where.log[-1])
                for listener in self.listeners:
                    listener(happening)
