"""Which fields of a slice the API server keeps. The node agent asks before it publishes.

A server drops a field silently if its feature gate is off. For fields that divide a GPU this is dangerous. If counters
are dropped, a GPU is allocated whole and also in MIG slices. If the sharing fields are dropped, a share gets the whole
GPU. Both were seen on 1.34 and 1.35. So the node agent asks the server by a dry run before it publishes anything, and
checks the answer to each write.
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
    "taints": "GPUs that must get no pods are not published",
    "shares": "a shared GPU is published as shares of equal size, each a device, and never as a whole GPU",
    "counters": "the node agent creates no MIG instances for claims, and publishes only those that exist",
}
"""What is done where one is missing."""


class SliceFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a slice that the API server keeps. Each attribute is true if it keeps them.

    Attributes:
        taints: Taints of devices.
        shares: Devices that several claims share, with the amounts that each claim can have.
        counters: Counters that several devices of a GPU consume.
    """

    taints: bool = True
    shares: bool = True
    counters: bool = True

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the names of the features that the API server does not support, such as ``taints``."""
        return tuple(name for name in FIELDS if not getattr(self, name))

    def without(self, paths: Collection[str]) -> SliceFeatures:
        """Return the features that remain after the API server dropped some fields from a slice.

        Args:
            paths: The paths of the dropped fields.
        """
        gone = {
            name: False
            for name, fields in FIELDS.items()
            if any(f".{field}" in f".{path}" for path in paths for field in fields)
        }
        return msgspec.structs.replace(self, **gone)


ALL: Final = SliceFeatures()


def probes(node: str, node_uid: str) -> list[dict[str, Any]]:
    """Return slices for a dry run that shows which fields the API server drops.

    The slices have all fields that the server may drop. Counters and devices are in different slices: from Kubernetes
    1.35 on no slice may have both.
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
