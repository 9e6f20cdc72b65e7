"""Metric series that name the pod and container of each prepared GPU, for monitoring tools that know only uuids.

The pods are those in the claim's ``reservedFor``. The containers are known only for claims that the controller created:
the controller names each request after its container. It also stores in the claim how many fractions (MIG slices or
shares) each container has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dradriver.allocator.request import PartChoice
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.errors import WordError
from dradriver.api.claims import claim_builder
from dradriver.node.claims.checkpoint import PreparedClaim

MOST_PODS: Final = 8  # of a claim that several use
_NUMBERED: Final = re.compile(r"(.+)-[0-9]+")


def rows(claim: ResourceClaim, prepared: PreparedClaim, *, node: str) -> Iterator[tuple[str, ...]]:
    """Yield the labels of a metric series for each prepared device and each pod of a claim.

    At most eight pods are named (``MOST_PODS``). Without a pod, the label ``pod`` is empty. The labels are uuid, node,
    namespace, pod, container and claim. Devices with admin access are left out. If a container has two MIG slices of
    one GPU, the same labels occur twice.
    """
    users = sorted(user.name for user in claim.status.reserved_for if user.resource in ("pods", ""))
    container = _containers(claim)
    for device in prepared.devices:
        if device.admin:
            continue
        for pod in users[:MOST_PODS] or [""]:
            yield device.uuid, node, prepared.namespace, pod, container.get(device.request, ""), prepared.name


def _containers(claim: ResourceClaim) -> dict[str, str]:
    """Return the name of the container that each request of a claim is for, by the request's name.

    The result is empty if the controller did not create the claim. If a container has several fractions, its requests
    are numbered, and only the first 58 characters of the container's name are known.
    """
    try:
        choice = claim_builder.read_choice(claim)
    except WordError:
        return {}
    if choice is None:
        return {}

    # A claim for whole GPUs has one request for each container, with the container's name. Each fraction has a request
    # of its own. If a container has several, each name ends in a number.
    results = claim.results
    requests = list(dict.fromkeys(result.request.partition("/")[0] for result in results))
    if not isinstance(choice, PartChoice):
        return {request: request for request in requests}
    by_request, remaining = {}, iter(requests)
    for parts in choice.containers:
        for _ in parts:
            request = next(remaining, "")
            numbered = _NUMBERED.fullmatch(request) if len(parts) > 1 else None
            by_request[request] = numbered[1] if numbered is not None else request
    return by_request
