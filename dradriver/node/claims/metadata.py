"""Device metadata: a file in which a container reads which devices it has (KEP-5304).

There is one file for each request, at the path and in the format of the protocol
(kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation, "Device metadata"). Readers find the
version in ``apiVersion``. The file has the attributes of each device as in the node's slice. It also says how well the
chosen GPUs are linked: the level (the weakest kind of link between them), bandwidths and a score (0 to 100, compared
with the best GPUs of the machine if all were free).
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
    """A device of a request and its attributes, as in its ResourceSlice.

    Some attributes of a MIG instance or share are known only after it was made.
    """

    result: AllocationResult
    attributes: Mapping[str, Any]


def path(claim: ResourceClaim, request: str) -> str:
    """Return the path of a request's device metadata file in the container."""
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
        described: The request's devices with their attributes. All devices belong to the same subrequest.
        choice: The controller's choice of GPUs; None if the scheduler chose alone.
        ring: Names of the claim's devices in the order in which NCCL passes data best from each to the next; empty if
            unknown.
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
    """Return how well the chosen GPUs are linked, as attributes for the metadata file.

    The attributes are the level (the weakest kind of link), bandwidths and a score. Bandwidths are in whole GB/s,
    because attributes have no fractions. An unknown bandwidth is left out. The result is empty without a choice.
    """
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
    """Return the name by which a pod knows a claim that was made from a template, from the claim's annotation.

    A tenant can write this annotation. So the result is None if the text could be a file path.
    """
    name = claim.metadata.annotations.get(POD_CLAIM)
    return name if name is not None and _LABEL.fullmatch(name) else None
