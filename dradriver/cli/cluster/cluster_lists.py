"""Lists of a cluster's objects, and what could not be read of them, in words. ``listed_cluster`` calls this module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Any, Final

from dradriver.api.base.allocating_driver import OTHERS, OURS, Ledger, bound
from dradriver.cli.cluster import cluster_reading
from dradriver.cli.cluster.cluster_reading import ClusterError, whose
from dradriver.cluster.records import slice_records
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.view.terminal_text import plain

_NEEDED: Final = (RESOURCE_SLICES, RESOURCE_CLAIMS, NODES)


class Lists:
    """The lists of one reading of a cluster. A list that may not be read is empty.

    Attributes:
        unread: What could not be read, in words.
        sees_agents: Whether slices, claims and nodes could be read. Else nobody can tell whether an agent is missing.
    """

    def __init__(self, client: Client, server: ServerConfig) -> None:
        """Read nothing yet; ``server`` is for messages."""
        self.unread: list[str] = []
        self.sees_agents = True
        self._client, self._server = client, server

    async def of(self, resource: Resource, kind: codec.Reading[Any], **selectors: str) -> list[Any]:
        """Return all objects of a kind."""
        try:
            return await cluster_reading.listed(self._client, self._server, resource, kind, **selectors)
        except ClusterError as error:
            if resource in _NEEDED:
                self.sees_agents = False
            if (text := str(error)) not in self.unread:
                self.unread.append(text)
            return []

    async def slices(self, ledger: Ledger) -> list[SliceRecord]:
        """Return the slices of one driver."""
        with bound(ledger):
            return await self.of(
                RESOURCE_SLICES, slice_records.read_slice, field_selector=cluster_reading.of_driver(ledger)
            )

    async def optional(self, versions: Collection[Resource], kind: codec.Reading[Any]) -> list[Any]:
        """Return all objects of a kind, none where the server has it in none of these versions."""
        for version in versions:
            try:
                if not await self._client.serves(version):
                    continue
            except (ApiError, Unreachable) as error:
                self.unread.append(str(cluster_reading.refused(error, self._server, version)))
                return []
            return await self.of(version, kind)
        return []

    async def of_other_driver(self, ours: Collection[SliceRecord]) -> tuple[Ledger, list[SliceRecord]]:
        """Return the driver that allocates the GPUs, and its slices if it is not this driver.

        If agents of this driver publish machines alone, another driver allocates the GPUs. The controller knows which
        one from its option. An agent also publishes no device if all its GPUs are unhealthy: then no other driver has
        slices of that node.

        Args:
            ours: The slices of this driver.
        """
        pools = {piece.pool for piece in ours}
        alone = {piece.pool for piece in ours if piece.alone}
        if not alone:
            return OURS, []
        found = dict(zip(OTHERS, await asyncio.gather(*map(self.slices, OTHERS)), strict=True))
        ledger = whose(alone, {one: [piece.pool for piece in theirs] for one, theirs in found.items()})
        if alone < pools and alone.isdisjoint(piece.pool for piece in found[ledger]):
            return OURS, []
        return ledger, found[ledger]

    @contextlib.contextmanager
    def warnings(self) -> Iterator[None]:
        """Add to ``unread`` what the cluster cache logs of machines that it cannot use."""
        unread = self.unread

        class Collecting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                unread.append(plain(record.getMessage()))

        handler, logger = Collecting(logging.WARNING), logging.getLogger("dradriver.cluster")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
