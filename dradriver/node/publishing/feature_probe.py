"""Asks the API server which fields of slices it keeps, before the publisher writes a slice."""

from __future__ import annotations

import logging

from dradriver.api.slices.slice_features import ALL, FIELDS, SliceFeatures, probes
from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.publishing import pool

logger = logging.getLogger(__name__)


async def ask(client: Client, *, node: str, node_uid: str) -> SliceFeatures:
    """Return which optional fields of slices the API server keeps, by dry-run writes.

    An API server without a feature drops the feature's fields without an error. The server stores nothing. If the
    server calls the slices invalid, the result says that it keeps none of the fields. This is the safe assumption, and
    it is logged.

    Raises:
        ApiError: The server refuses this node's slices for another reason.
        Unreachable: The server does not answer.
    """
    able = ALL
    for probe in probes(node, node_uid):
        try:
            stored = await client.create(RESOURCE_SLICES, probe, dry_run=True)
        except ApiError as error:
            if not error.invalid:
                raise
            logger.warning(
                "The API server refuses slices with the optional fields, so none of these fields is used: %s",
                error,
            )
            return SliceFeatures(**dict.fromkeys(FIELDS, False))
        able = able.without(pool.differences(probe, stored))
    return able
