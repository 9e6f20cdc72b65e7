"""Lists of a cluster's objects, with messages about unreadable ones. ``listed_cluster`` calls this module."""

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
    """The lists of one reading of a cluster. A list that the user may not read is empty.

    Attributes:
        unread: Messages about lists that could not be read.
        sees_agents: Whether slices, claims and nodes could be read. If not, a missing agent cannot be recognized.
    """

    def __init__(self, client: Client, server: ServerConfig) -> None:
        """Prepare the lists without reading any; ``server`` is for messages."""
        self.unread: list[str] = []
        self.sees_agents = True
        self._client, self._server = client, server

    async def of(self, resource: Resource, kind: codec.Reading[Any], **selectors: str) -> list[Any]:
        """Return all objects of a kind; empty, with a message in ``unread``, if the user may not read them.

        Args:
            resource: The kind of objects.
            kind: The type to read each object as, or a function that reads it.
            selectors: Field and label selectors, as ``cluster_reading.listed`` takes them.
        """
        try:
            return await cluster_reading.listed(self._client, self._server, resource, kind, **selectors)
        except ClusterError as error:
            if resource in _NEEDED:
                self.sees_agents = False
            if (text := str(error)) not in self.unread:
                self.unread.append(text)
            return []

    async def slices(self, ledger: Ledger) -> list[SliceRecord]:
        """Return the ResourceSlices of one driver, which ``ledger`` names."""
        with bound(ledger):
            return await self.of(
                RESOURCE_SLICES, slice_records.read_slice, field_selector=cluster_reading.of_driver(ledger)
            )

    async def optional(self, versions: Collection[Resource], kind: codec.Reading[Any]) -> list[Any]:
        """Return all objects of a kind, or an empty list if the server lacks it.

        ``versions`` are the kind's API versions, of which the first one that the server has is read. If the user may
        not read the objects, the list is empty, too, and ``unread`` gets a message.
        """
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
        """Return the driver that allocates the GPUs, and its slices if it is another driver.

        Another driver allocates the GPUs if agents of this driver publish machines without devices. The result is then
        the driver that publishes devices on the most of these machines. (The controller has an option with this
        driver's name.) An agent of this driver also publishes no device if all GPUs of its node are unhealthy. But then
        no other driver has slices of that node. If this driver allocates the GPUs, the list of slices is empty.

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
        """Add the cluster cache's warnings about unusable machines to ``unread`` while the body of ``with`` runs."""
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
