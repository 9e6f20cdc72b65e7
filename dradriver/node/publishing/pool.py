"""Finds the writes that change a node's pool into the desired slices: pure functions, called by the publisher.

A scheduler uses only the slices of the highest pool generation. Each slice says how many slices the pool has, and the
scheduler waits until it sees all of them (resource/v1 types.go).

A pool is all slices of one node and driver. The wanted slices describe the machine as it is now; the existing slices
are in the API server.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names, quantity
from dradriver.api.base.errors import WordError

Object = dict[str, Any]
_NO_DIFFERENCES: Final[frozenset[str]] = frozenset()
_DEFAULTED: Final = frozenset({"timeAdded"})  # the API server fills it in where a taint has none (KEP-5055)
_OUR_ANNOTATIONS: Final = (names.MACHINE, names.SERVER_LACKS, names.LOST_GPUS)
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})  # the API server leaves such fields out


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """The writes to a pool, to be made in the order of the attributes.

    Attributes:
        create: Slices to create.
        update: Slices to update, with the resourceVersion that they replace.
        delete: Names and resource versions of slices that do not belong to the pool any more.
        generation: The pool's generation after the writes.
    """

    create: list[Object]
    update: list[Object]
    delete: list[tuple[str, str]]
    generation: int


def keep_times(wanted: Sequence[Object], found: Sequence[Object]) -> list[Object]:
    """Return a copy of the wanted slices in which existing taints keep their time (``timeAdded``).

    So the time since when a GPU has a taint stays the same when the agent restarts. ``found`` are the existing slices.
    """
    times = {
        (device["name"], taint.get("key"), taint.get("effect")): taint["timeAdded"]
        for obj in found
        for device in obj["spec"].get("devices") or []
        for taint in device.get("taints") or []
        if taint.get("timeAdded")
    }
    kept = copy.deepcopy(list(wanted))
    for obj in kept:
        for device in obj["spec"].get("devices") or []:
            for taint in device.get("taints") or []:
                taint["timeAdded"] = times.get((device["name"], taint["key"], taint["effect"]), taint["timeAdded"])
    return kept


def writes(
    desired: Sequence[Object],
    current: Sequence[Object],
    *,
    least_generation: int = 0,
    tolerated: Mapping[str, frozenset[str]],
) -> Writes:
    """Return the writes that turn the existing slices of a pool into the wanted slices.

    Args:
        desired: The pool's slices, as ``api.slices.resource_slices.build`` makes them.
        current: This driver's slices of this node, as the API server has them.
        least_generation: The lowest pool generation to write. It is the generation of the last write if the content is
            the same, else one more. Schedulers may have seen that generation even if its slices were deleted since.
        tolerated: By slice name: the paths of fields that the API server does not store as they are sent. A difference
            in these fields needs no write.
    """
    # 1. The existing slices that have the wanted content.
    existing = {current_slice["metadata"]["name"]: current_slice for current_slice in current}
    unchanged = [
        desired_slice
        for desired_slice in desired
        if (current_slice := existing.get(desired_slice["metadata"]["name"])) is not None
        and differences(desired_slice, current_slice)
        <= tolerated.get(desired_slice["metadata"]["name"], _NO_DIFFERENCES)
    ]

    # 2. All slices of a pool have one generation. It grows only if the content of an existing slice changes.
    newest = max(map(_generation, current), default=0)
    has_changed = len(unchanged) < sum(desired_slice["metadata"]["name"] in existing for desired_slice in desired)
    generation = max(newest + 1 if has_changed else newest, least_generation, 1)

    # 3. The writes. Slices that are not wanted are deleted.
    create, update = [], []
    for desired_slice in desired:
        current_slice = existing.pop(desired_slice["metadata"]["name"], None)
        if current_slice is None:
            create.append(_with_generation(desired_slice, generation))
        elif desired_slice not in unchanged or _generation(current_slice) != generation:
            update.append(_replacing(current_slice, _with_generation(desired_slice, generation)))
    delete = [(name, current_slice["metadata"]["resourceVersion"]) for name, current_slice in existing.items()]
    return Writes(create=create, update=update, delete=delete, generation=generation)


def differences(wanted: Object, found: Object) -> frozenset[str]:
    """Return the paths of the fields in which two slices of a pool differ; quantities are compared by amount.

    The API server drops a field without an error if it does not know the field, or if the field's feature is off. The
    difference between the sent and the returned slice shows this.
    """
    return frozenset(_differences(_content(wanted), _content(found), ""))


def _content(obj: Object) -> Object:
    # What two slices are compared by. The server may write a quantity in another way (1Gi, 1024Mi): compare amounts.
    spec = copy.deepcopy(obj["spec"])
    spec.get("pool", {}).pop("generation", None)
    for device in spec.get("devices") or []:
        for capacity in (device.get("capacity") or {}).values():
            _amounts(capacity, "value")
            if isinstance(policy := capacity.get("requestPolicy"), dict):
                _amounts(policy, "default", "validValues")
                _amounts(policy.get("validRange") or {}, "min", "max", "step")
        for consumed in device.get("consumesCounters") or []:
            for counter in (consumed.get("counters") or {}).values():
                _amounts(counter, "value")
    for counters in spec.get("sharedCounters") or []:
        for counter in (counters.get("counters") or {}).values():
            _amounts(counter, "value")
    metadata = obj["metadata"]
    return {
        "machine": metadata.get("annotations", {}).get(names.MACHINE),
        "lost": metadata.get("annotations", {}).get(names.LOST_GPUS),
        "owners": [owner.get("uid") for owner in metadata.get("ownerReferences") or []],
        "spec": spec,
    }


def _amounts(where: dict[str, Any], *keys: str) -> None:
    """Replace some quantities in a slice's object by exact amounts, so that they can be compared.

    ``keys`` names the fields of ``where`` with the quantities. Values that are not quantities stay.
    """
    for key in keys:
        with contextlib.suppress(WordError):
            if isinstance(where.get(key), list):
                where[key] = [quantity.exact(str(amount)) for amount in where[key]]
            elif key in where:
                where[key] = quantity.exact(str(where[key]))


def _differences(wanted: Any, found: Any, path: str) -> list[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        # What the server sets where we say nothing is no difference.
        keys = [key for key in sorted(wanted.keys() | found.keys()) if key in wanted or key not in _DEFAULTED]
        return [p for key in keys for p in _differences(wanted.get(key), found.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [p for i, (ours, theirs) in pairs for p in _differences(ours, theirs, f"{path}[{i}]")]
    if wanted == found or (wanted in _EMPTY and found in _EMPTY):
        return []
    return [path.lstrip(".")]


def _generation(obj: Object) -> int:
    return int(obj["spec"]["pool"].get("generation", 0))


def _with_generation(obj: Object, generation: int) -> Object:
    pool = obj["spec"]["pool"] | {"generation": generation}
    return obj | {"spec": obj["spec"] | {"pool": pool}}


def _replacing(old: Object, new: Object) -> Object:
    """Return the new slice as an update of the old one.

    Labels, and annotations of other programs, are those of the old slice.
    """
    metadata = {key: old["metadata"][key] for key in ("labels", "annotations", "uid") if key in old["metadata"]}
    theirs = {key: text for key, text in metadata.get("annotations", {}).items() if key not in _OUR_ANNOTATIONS}
    metadata["annotations"] = theirs | new["metadata"].get("annotations", {})
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    return new | {"metadata": new["metadata"] | metadata}
