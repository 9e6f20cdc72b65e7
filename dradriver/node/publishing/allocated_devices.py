"""Asks the API server which of the node's devices are allocated, also to claims that are not prepared yet."""

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
    """Return the names of the node's devices that are allocated to claims.

    The API server cannot select claims by node. So this function reads all claims, page by page, and keeps only the
    names. If a claim cannot be decoded, its readable part counts. Otherwise one claim of a tenant could make the answer
    unknown. Devices with admin access are left out. ``pool`` is the node's pool of devices. The result is None if the
    server does not answer.
    """

    def own(claim: ResourceClaim) -> list[str] | None:
        return [result.device for result in claim.results if result.pool == pool and not result.admin_access] or None

    def read(data: msgspec.Raw) -> list[str] | None:
        return codec.decode_part(data, ResourceClaim, own)

    try:
        by_claim, _ = await client.list(RESOURCE_CLAIMS, type=read)
    except (ApiError, Unreachable) as error:
        logger.warning(
            "The node agent cannot find out which %s devices of this node are allocated: %s", names.DRIVER, error
        )
        return None
    return {name for some in by_claim for name in some}
