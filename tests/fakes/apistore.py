"""The storage of the fake API server: objects of any kind, their versions, and the log that watches read."""

from __future__ import annotations

import copy
import datetime
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import jsonpointer

from tests.fakes.apirules import Object, Refused, check_change, check_new

__all__ = ["Collection", "Event", "Key", "Object", "Refused", "Selector", "Store"]

Key = tuple[str, str]  # namespace (empty for none), name
Selector = Callable[[Object], bool]

HAS_STATUS = frozenset({"pods", "nodes", "resourceclaims"})
FIELDS = {
    "": {"metadata.name", "metadata.namespace"},
    "pods": {"spec.nodeName", "spec.schedulerName", "status.phase", "status.nominatedNodeName"},
    "resourceslices": {"spec.nodeName", "spec.driver"},
    "secrets": {"type"},
    "events": {"involvedObject.uid"},
}


@dataclass(frozen=True)
class Event:
    """One entry of the log: what the object was before and is now."""

    version: int
    old: Object | None
    new: Object | None


@dataclass
class Collection:
    """All objects of one kind, over all namespaces."""

    plural: str
    objects: dict[Key, Object] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)


class Store:
    """Collections by (group, version, plural), with one counter of resource versions for all."""

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = 0  # watches and continue tokens from before this version are answered 410
        self.lacks: set[str] = set()  # fields of slices and templates whose feature is off: dropped without a word
        self.on_event: Callable[[], None] = lambda: None
        self._collections: dict[tuple[str, str, str], Collection] = {}
        self._made = 0

    def collection(self, group: str, version: str, plural: str) -> Collection:
        return self._collections.setdefault((group, version, plural), Collection(plural))

    def restore(self, version: int) -> None:
        """Put an empty backup of that version in the place of everything."""
        self.version = version
        for where in self._collections.values():
            where.objects.clear()
            where.log.clear()

    def backup(self) -> Callable[[], None]:
        """Return what puts everything back to what it is now, the versions, too."""
        version, there = self.version, {key: copy.deepcopy(c.objects) for key, c in self._collections.items()}

        def put_back() -> None:
            self.restore(version)
            for key, objects in there.items():
                self._collections[key].objects.update(copy.deepcopy(objects))

        return put_back

    def get(self, where: Collection, key: Key) -> Object:
        if key not in where.objects:
            raise Refused(404, "NotFound", f'{where.plural} "{key[1]}" not found')
        return where.objects[key]

    def create(
        self, where: Collection, namespace: str, obj: Object, *, with_status: bool = False, dry: bool = False
    ) -> Object:
        obj = self._kept(where, obj)
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Refused(422, "Invalid", "metadata.name: Required value: name or generateName is required")
            metadata["name"] = f"{metadata['generateName']}{self._made:05x}"
        if metadata.get("namespace", namespace) != namespace:
            raise Refused(400, "BadRequest", "the namespace of the object does not match the request's")
        if namespace:
            metadata["namespace"] = namespace
        key = (namespace, metadata["name"])
        if key in where.objects:
            raise Refused(409, "AlreadyExists", f'{where.plural} "{key[1]}" already exists')
        if where.plural in HAS_STATUS and not with_status:
            check_new(where.plural, obj)
            obj.pop("status", None)
        if where.plural == "pods":
            obj.setdefault("status", {}).setdefault("phase", "Pending")
        self._made += 1
        metadata.setdefault("uid", str(uuid.UUID(int=self._made)))
        metadata.setdefault(
            "creationTimestamp", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")[:19] + "Z"
        )
        return obj if dry else self._write(where, key, obj)

    def replace(
        self, where: Collection, key: Key, obj: Object, *, subresource: str = "", whole: bool = False
    ) -> Object:
        """Store a new state of an object that exists, by the rules of an update (``whole``: all of it, status too)."""
        old = self.get(where, key)
        obj = self._kept(where, obj)
        metadata = obj.setdefault("metadata", {})
        if metadata.get("name", key[1]) != key[1]:
            raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
        asked = metadata.get("resourceVersion")
        if asked and asked != old["metadata"]["resourceVersion"]:
            raise Refused(
                409, "Conflict", f'"{key[1]}": the object has been modified; please apply your changes to the latest'
            )
        if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise Refused(409, "Conflict", f'"{key[1]}": Precondition failed: UID in precondition differs')
        if subresource == "status":
            obj = copy.deepcopy(old) | ({"status": obj["status"]} if "status" in obj else {})
        elif where.plural in HAS_STATUS and not whole:
            obj.pop("status", None)
            obj |= {"status": copy.deepcopy(old["status"])} if "status" in old else {}
        for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
            if name in old["metadata"]:
                obj["metadata"][name] = old["metadata"][name]
        for name in ("apiVersion", "kind"):
            if name in old:
                obj[name] = old[name]
        if obj == old:
            return old
        if not whole:
            check_change(where.plural, old, obj)
        if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
            self._remove(where, key)
            return obj
        return self._write(where, key, obj)

    def delete(self, where: Collection, key: Key, preconditions: Object | None = None) -> None:
        old = self.get(where, key)
        for name, wanted in (preconditions or {}).items():
            if old["metadata"][name] != wanted:
                raise Refused(409, "Conflict", f'"{key[1]}": Precondition failed: {name} differs')
        if old["metadata"].get("finalizers"):
            if not old["metadata"].get("deletionTimestamp"):
                obj = copy.deepcopy(old)
                obj["metadata"]["deletionTimestamp"] = obj["metadata"]["creationTimestamp"]
                self._write(where, key, obj)
            return
        self._remove(where, key)

    def _kept(self, where: Collection, obj: Object) -> Object:
        """Return a copy of what is sent, without the fields that this server lacks, and with each owner once."""
        obj = copy.deepcopy(obj)
        if owners := obj.get("metadata", {}).get("ownerReferences"):
            obj["metadata"]["ownerReferences"] = [one for i, one in enumerate(owners) if one not in owners[:i]]
        if where.plural == "resourceclaimtemplates":
            for request in (obj["spec"]["spec"].get("devices") or {}).get("requests") or ():
                for name in self.lacks:
                    request.get("exactly", {}).pop(name, None)
        if where.plural == "resourceslices":
            spec = obj.get("spec", {})
            parts = [
                part
                for device in spec.get("devices") or ()
                for part in (device, *(device.get("capacity") or {}).values())
            ]
            for part in (spec, *parts):
                for name in self.lacks:
                    part.pop(name, None)
        return obj

    def _write(self, where: Collection, key: Key, obj: Object) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        where.log.append(Event(self.version, where.objects.get(key), obj))
        where.objects[key] = obj
        self.on_event()
        return obj

    def _remove(self, where: Collection, key: Key) -> None:
        self.version += 1
        last = copy.deepcopy(where.objects.pop(key))
        last["metadata"]["resourceVersion"] = str(self.version)
        where.log.append(Event(self.version, last, None))
        self.on_event()


def status_object(status: int, reason: str, message: str, details: Object | None = None) -> Object:
    """Return a Status object as the real server sends it."""
    head: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
    return head | {"reason": reason, "message": message} | ({"details": details} if details else {})


def told(event: Event, namespace: str, chosen: Selector) -> tuple[str, Object] | None:
    """Return what a watch with a selector is told: an object that leaves the selection is deleted for it."""
    was = event.old is not None and chosen(event.old)
    if event.new is None:
        return ("DELETED", event.old) if was and event.old is not None else None
    if chosen(event.new):
        return ("MODIFIED" if was else "ADDED"), event.new
    return ("DELETED", event.new) if was else None


def patched(obj: Object, content_type: str, body: Any) -> Object:
    """Return the object with a patch applied."""
    new = _patched(copy.deepcopy(obj), content_type, body)
    if new["metadata"].get("uid") != obj["metadata"]["uid"]:
        raise Refused(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
    return new


def _patched(obj: Object, content_type: str, body: Any) -> Object:
    if content_type == "application/json-patch+json":
        try:
            result: Object = jsonpatch.apply_patch(obj, body)
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            raise Refused(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from None
        return result
    if content_type == "application/merge-patch+json":
        return dict(merged(obj, body))
    if content_type == "application/apply-patch+yaml":
        return _applied(obj, body)
    raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}")


def _applied(obj: Object, body: Object) -> Object:
    """Return a claim with a server-side apply of its ``status.devices``, a list by driver, pool, device and share."""
    allocated = obj.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    devices = {_device_key(entry): entry for entry in obj.get("status", {}).get("devices", [])}
    for entry in body["status"]["devices"]:
        if _device_key(entry) not in map(_device_key, allocated):
            raise Refused(422, "Invalid", "status.devices[0]: Invalid value: must be an allocated device in the claim")
        devices[_device_key(entry)] = entry
    uid = body["metadata"].get("uid", obj["metadata"]["uid"])
    if uid != obj["metadata"]["uid"]:
        raise Refused(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
    return obj | {"status": obj["status"] | {"devices": list(devices.values())}}


def _device_key(entry: Object) -> tuple[str, str, str, str]:
    return entry["driver"], entry["pool"], entry["device"], entry.get("shareID", "")


def merged(old: Any, new: Any) -> Any:
    """Return an RFC 7386 merge."""
    if not isinstance(new, dict):
        return new
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def selector(plural: str, *, labels: str = "", fields: str = "") -> Selector:
    """Return the test of a label and a field selector; a field that the real server does not index is refused."""
    checks = [_label(part) for part in re.split(r",(?![^(]*\))", labels) if part]
    for part in filter(None, fields.split(",")):
        match = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", part)
        if match is None or match[1] not in FIELDS[""] | FIELDS.get(plural, set()):
            raise Refused(400, "BadRequest", f"field label not supported: {part}")
        checks.append(_field(match[1].split("."), match[3], equal=match[2] != "!="))
    return lambda obj: all(check(obj) for check in checks)


def _field(path: list[str], value: str, *, equal: bool) -> Selector:
    def check(obj: Object) -> bool:
        found: Any = obj
        for part in path:
            found = (found or {}).get(part)
        return ((found or "") == value) is equal

    return check


def _label(part: str) -> Selector:
    part = part.strip()
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s*\((.*)\)", part):
        name, word, values = match[1], match[2], {value.strip() for value in match[3].split(",")}
        return lambda obj: (_labels(obj).get(name) in values) is (word == "in")
    if match := re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", part):
        name, word, value = match[1], match[2], match[3]
        return lambda obj: (_labels(obj).get(name) == value) is (word != "!=")
    if part.startswith("!"):
        return lambda obj: part[1:] not in _labels(obj)
    return lambda obj: part in _labels(obj)


def _labels(obj: Object) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels
