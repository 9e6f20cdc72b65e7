"""Device metadata: which devices a container has, as a file that it can read (KEP-5304).

One file for each request, at the path and in the form that the protocol gives
(kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation, "Device metadata"); a reader tells its
version by ``apiVersion``. Beside the attributes that the device's slice has, it says what the set was chosen for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api.base import names
from dradriver.api.base.dra_objects import AllocationResult, ResourceClaim

API_VERSION: Final = "metadata.resource.k8s.io/v1alpha1"
FOLDER: Final = "/var/run/kubernetes.io/dra-device-attributes"
POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"  # on claims that were made from a template
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class Described(NamedTuple):
    """A device of a request, and its attributes: as its slice has them, and of a part what is known once it is made."""

    result: AllocationResult
    attributes: Mapping[str, Any]


def path(claim: ResourceClaim, request: str) -> str:
    """Return where a container finds the device metadata file of a request."""
    pod_claim = _pod_claim(claim)
    where = f"resourceclaims/{claim.metadata.name}" if pod_claim is None else f"resourceclaimtemplates/{pod_claim}"
    return f"{FOLDER}/{where}/{request}/{names.DRIVER}-metadata.json"


def build(
    claim: ResourceClaim,
    described: Sequence[Described],
    choice: Choice | None,
    ring: Sequence[str],
) -> bytes:
    """Return the content of a request's device metadata file.

    Args:
        claim: The claim.
        described: The request's devices with their attributes, all of one subrequest.
        choice: The controller's choice of GPUs; None if the scheduler chose alone.
        ring: Names of the claim's devices in the order of the best ring through them; empty if unknown.
    """
    # The form of KEP-5304: one entry for each device, with typed attributes as in ResourceSlices.
    devices = []
    for result, attributes in described:
        all_attributes = dict(attributes) | _of_choice(choice)
        if result.device in ring:
            all_attributes["ringPosition"] = {"int": list(ring).index(result.device)}
        devices.append(
            {"driver": result.driver, "pool": result.pool, "name": result.device, "attributes": all_attributes}
        )
    file: dict[str, Any] = {
        "kind": "DeviceMetadata",
        "apiVersion": API_VERSION,
        "metadata": {
            "name": claim.metadata.name,
            "namespace": claim.metadata.namespace,
            "uid": claim.metadata.uid,
            "generation": 1,  # of the file, which is written once
        },
    }
    # The name that the pod has for a claim of a template; a claim with a name of its own has none.
    if (pod_claim := _pod_claim(claim)) is not None:
        file["podClaimName"] = pod_claim
    file["requests"] = [{"name": described[0].result.request, "devices": devices}]
    return msgspec.json.encode(file)


def _of_choice(choice: Choice | None) -> dict[str, Any]:
    """Return what the set was chosen for, in whole GB/s, as attributes have no fractions."""
    if choice is None:
        return {}
    figures = {"bandwidthGBps": choice.bandwidth_gbps, "busbwGBps": choice.busbw_gbps}
    alone = len(choice.gpus) == 1  # of several GPUs none is 0: such a figure is not known
    return {
        "level": {"string": choice.level.value},
        **{key: {"int": int(gbps)} for key, gbps in figures.items() if gbps or alone},
        "score": {"int": choice.score},
    }


def _pod_claim(claim: ResourceClaim) -> str | None:
    """Return the name by which a template's claim stands in its pod; a tenant's text that could be a path is none."""
    name = claim.metadata.annotations.get(POD_CLAIM)
    return name if name is not None and _LABEL.fullmatch(name) else None
