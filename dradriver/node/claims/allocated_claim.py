"""What an allocated claim says of its devices: each result's request and configuration, the choice, and its ring."""

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
    """Return the controller's choice of whole GPUs that an allocated claim was made from; None if it is unknown."""
    try:
        choice = claim_builder.read_choice(claim)
    except WordError as error:
        logger.warning("%s", error)
        return None
    return choice if isinstance(choice, Choice) else None


def request_of(result: AllocationResult) -> str:
    """Return the request of an allocated claim that a result is for, without its subrequest."""
    return result.request.split("/", 1)[0]


def config_for(claim: ResourceClaim, result: AllocationResult) -> ClaimConfig | None:
    """Return an allocated claim's opaque configuration for a result; the claim's own wins over its class's.

    Raises:
        WordError: It cannot be read.
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
    """Return the uuids of an allocated claim's GPUs in the order of their best ring; empty if that is unknown.

    A choice has the machine's numbers of that time, which shift when a GPU is lost. The configuration has the uuids of
    each request in the order of the choice's containers, as results have the requests in the order of the claim's.
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
