"""Reads an allocated claim: the request and configuration of each result, and the controller's choice of GPUs.

The choice includes a ring: the order of the GPUs in which NCCL passes data best from each GPU to the next.

A result is one entry of the claim's allocation: one device that the scheduler allocated for one request. A fraction is
a part of a GPU: a MIG instance or a share.
"""

from __future__ import annotations

import logging

from dradriver.allocator.request import Choice
from dradriver.api.base import names
from dradriver.api.base.dra_objects import AllocationResult, ResourceClaim
from dradriver.api.base.errors import WordError
from dradriver.api.claims import claim_builder, opaque_config
from dradriver.api.claims.opaque_config import ClaimConfig

logger = logging.getLogger(__name__)


def choice_of(claim: ResourceClaim) -> Choice | None:
    """Return the controller's choice of whole GPUs for an allocated claim; None if unknown.

    The result is None in three cases: the scheduler chose without the controller, the claim is for fractions, or the
    stored choice cannot be read.
    """
    try:
        choice = claim_builder.read_choice(claim)
    except WordError as error:
        logger.warning("The choice of GPUs that the controller noted on a claim cannot be read: %s", error)
        return None
    return choice if isinstance(choice, Choice) else None


def request_of(result: AllocationResult) -> str:
    """Return the name of the claim's request for which a device was allocated.

    If the request has alternatives (subrequests), the name of the chosen one is left out.
    """
    return result.request.split("/", 1)[0]


def config_for(claim: ResourceClaim, result: AllocationResult) -> ClaimConfig | None:
    """Return the opaque configuration of an allocated device (``result``); None if there is none.

    The claim's own configuration takes precedence over the configuration of its DeviceClass.

    Raises:
        WordError: The configuration cannot be read.
    """
    assert claim.status.allocation is not None, "it has a result"
    asked = {result.request, request_of(result)}
    entries = [
        (entry.source == "FromClaim", number, entry.opaque.parameters)
        for number, entry in enumerate(claim.status.allocation.devices.config)
        if entry.opaque is not None
        and entry.opaque.driver == names.DRIVER
        and (not entry.requests or asked & set(entry.requests))
    ]
    return opaque_config.read(max(entries, key=lambda entry: entry[:2])[2]) if entries else None


def ring_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the uuids of an allocated claim's GPUs in ring order; empty if unknown.

    In a ring, each GPU passes data to the next one. The controller stored the fastest ring as GPU numbers. A number can
    mean another GPU now, because numbers shift when a GPU is lost. So the function takes the uuids from the claim's
    configuration, which lists each request's GPUs by uuid. The controller's choice lists the same GPUs by number, in
    the same order.
    """
    choice = choice_of(claim)
    settings = config_for(claim, claim.results[0]) if claim.results else None
    if choice is None or settings is None:
        return ()
    requests = dict.fromkeys(map(request_of, claim.results))
    uuids = [uuid for request in requests for uuid in settings.order.get(request, ())]
    numbers = [number for part in choice.containers for number in part]
    known = dict(zip(numbers, uuids, strict=False))
    if len(uuids) != len(numbers) or any(number not in known for number in choice.ring):
        return ()
    return tuple(known[number] for number in choice.ring)
