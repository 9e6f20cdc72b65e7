"""Asking the API server what it keeps of a slice, before anything is published."""

from __future__ import annotations

import logging

from dradriver.api.slices.slice_features import ALL, FIELDS, SliceFeatures, probes
from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.publishing import pool

logger = logging.getLogger(__name__)


async def ask(client: Client, *, node: str, node_uid: str) -> SliceFeatures:
    """Return which slice features the server keeps, by dry runs of this node's slices; nothing is stored.

    A server that calls such slices invalid can do none of it: that is never dangerous, and says so in the log.

    Raises:
        ApiError: The server refuses the node's slices as such.
        Unreachable: It does not answer.
    """
    able = ALL
    for probe in probes(node, node_uid):
        try:
            stored = await client.create(RESOURCE_SLICES, probe, dry_run=True)
        except ApiError as error:
            if not error.invalid:
                raise
            logger.warning("the API server does not take slices with all fields, so none of them is used: %s", error)
            return SliceFeatures(**dict.fromkeys(FIELDS, False))
        able = able.without(pool.differences(probe, stored))
    return able
