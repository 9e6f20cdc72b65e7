"""What a request says to the API server: patches and selectors; and the Status that it may be answered with."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import jsonpatch
import jsonpointer

from tests.fakes.apirules import Object, Refused

Selector = Callable[[Object], bool]

FIELDS = {
    "": {"metadata.name", "metadata.namespace"},
    "pods": {"spec.nodeName", "spec.schedulerName", "status.phase", "status.nominatedNodeName"},
    "resourceslices": {"spec.nodeName", "spec.driver"},
    "secrets": {"type"},
    "events": {"involvedObject.kind", "involvedObject.uid", "reason"},
}


def status_object(status: int, reason: str, message: str, details: Object | None = None) -> Object:
    """Return a Status object as the real server sends it."""
    head: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
    return head | {"reason": reason, "message": message} | ({"details": details} if details else {})


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
