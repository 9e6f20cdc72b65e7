"""What the API server keeps of a slice.

A server drops a field without a word where its feature is off. For what divides a GPU that is a matter of safety: a GPU
whose counters are dropped is handed out whole beside its own slices, and a share takes it whole (both seen on 1.34 and
1.35). So it is asked by a dry run before anything is published, and seen again in what came back from each write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from dradriver.api.base import names

FIELDS: Final = {
    "taints": ("taints",),  # KEP-5055
    "shares": ("allowMultipleAllocations", "requestPolicy"),  # KEP-5075
    "counters": ("sharedCounters", "consumesCounters"),  # KEP-4815
}
"""What each ability needs; 1.36 has all of them."""

WITHOUT: Final = {
    "taints": "GPUs that pods shall keep off are left out of the slices",
    "shares": "a GPU that may be shared is published as parts of equal size, each a device, and never whole",
    "counters": "no MIG instances are made for claims; those that exist are published",
}
"""What is done where one is missing."""


class SliceFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Which fields of a slice the server keeps.

    Attributes:
        taints: Taints of devices.
        shares: Devices that several claims share, with what each may take.
        counters: Counters that devices share.
    """

    taints: bool = True
    shares: bool = True
    counters: bool = True

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the names of the slice features that the API server lacks."""
        return tuple(name for name in FIELDS if not getattr(self, name))

    def without(self, paths: Collection[str]) -> SliceFeatures:
        """Return these slice features without those that lost a field: ``paths`` are those of the dropped fields."""
        gone = {
            name: False
            for name, fields in FIELDS.items()
            if any(f".{field}" in f".{path}" for path in paths for field in fields)
        }
        return msgspec.structs.replace(self, **gone)


ALL: Final = SliceFeatures()


def probes(node: str, node_uid: str) -> list[dict[str, Any]]:
    """Return slices for dry runs, with all fields that the API server may drop.

    Counters and devices are in different slices: from Kubernetes 1.35 on no slice may have both.
    """
    # A field that the server drops is missing in its answer. The values are arbitrary, and valid together.
    taint = {"key": f"{names.PREFIX}probe", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    counters = {"slice-0": {"value": "1"}}
    policy = {"default": "100", "validRange": {"min": "1", "step": "1", "max": "100"}}
    # Taints (KEP-5055), shared devices with a policy of requests (KEP-5075) and shared counters (KEP-4815).
    device = {
        "name": "probe",
        "taints": [taint],
        "allowMultipleAllocations": True,
        "capacity": {names.CAPACITY_CORES: {"value": "100", "requestPolicy": policy}},
        "consumesCounters": [{"counterSet": "probe", "counters": counters}],
    }
    specs = ({"sharedCounters": [{"name": "probe", "counters": counters}]}, {"devices": [device]})
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "generateName": f"{names.DRIVER}-probe-",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
                ],
            },
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 2},
            }
            | spec,
        }
        for spec in specs
    ]
