"""Which devices of this node claims have, as the API server knows it: also those that no kubelet has asked for yet."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.kube import codec
from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.kube.resources import RESOURCE_CLAIMS

logger = logging.getLogger(__name__)


async def devices(client: Client, *, pool: str) -> AbstractSet[str] | None:
    """Return the names of the node's devices that are allocated to claims; None if the server does not say.

    No selector finds claims by node, so all are read, a page at a time, and of most of them nothing is kept. Of one
    that cannot be read whole what can be read counts: else any tenant could keep this from being known.
    """

    def own(claim: ResourceClaim) -> list[str] | None:
        return [result.device for result in claim.results if result.pool == pool and not result.admin_access] or None

    def read(data: msgspec.Raw) -> list[str] | None:
        return codec.decode_part(data, ResourceClaim, own)

    try:
        by_claim, _ = await client.list(RESOURCE_CLAIMS, type=read)
    except (ApiError, Unreachable) as error:
        logger.warning("which of this node's %s devices are allocated is not known: %s", names.DRIVER, error)
        return None
    return {name for some in by_claim for name in some}
