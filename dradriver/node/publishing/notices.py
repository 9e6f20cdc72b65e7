"""What people are told of what a node does not publish: once, in the log, as an Event of the node, and as metrics."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from dradriver.api.base.objects import Node
from dradriver.api.slices import slice_features
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node import metrics
from dradriver.topology.vendors import Vendor

logger = logging.getLogger(__name__)

_TWICE: Final = ": one GPU would get two owners"


class Notices:
    """Tells what keeps GPUs from being published, or from being published as the policies file has them."""

    def __init__(self, events: Recorder | None) -> None:
        """Nothing was told yet; without ``events`` all is for the log and the metrics alone."""
        self._events = events
        # What was said last: only news is said again.
        self._lacking: frozenset[str] = frozenset()  # names of slice features that the API server lacks
        self._mig_off: frozenset[str] = frozenset()  # uuids of GPUs whose MIG mode must be turned on
        self._no_parts = False  # whether the policies file divides GPUs that cannot be divided

    async def withheld(self, node: Node, why: str | None, *, twice: bool) -> None:
        """Give notice of the reason why the node publishes nothing, or that nothing prevents it any more.

        Args:
            node: The node.
            why: Why, in words; None where nothing keeps it.
            twice: Whether that is because something else hands out the same GPUs.
        """
        metrics.WITHHELD.set(why is not None)
        if why is None:
            logger.info("nothing keeps this node's GPUs from being published any more")
        else:
            await self._say(node, "GPUsWithheld", f"nothing is published, because {why}{_TWICE if twice else ''}")

    async def lacking(self, node: Node | None, fields: Collection[str]) -> None:
        """Give notice of slice features that the API server newly lacks, by the names of ``slice_features.FIELDS``."""
        for name in fields:
            if name not in self._lacking and node is not None:
                said = f"the API server keeps no {name} in slices: {slice_features.WITHOUT[name]}"
                await self._say(node, "ServerLacks", said)
        self._lacking = frozenset(fields)
        for name in slice_features.FIELDS:
            metrics.SERVER_LACKS.labels(name).set(name in fields)

    async def mig_off(self, node: Node, uuids: Collection[str]) -> None:
        """Give notice of each GPU that is newly in the list: its MIG mode must be turned on."""
        metrics.MIG_OFF.set(len(uuids))
        for uuid in sorted({*uuids} - self._mig_off):
            said = (
                f"GPU {uuid} stays whole: the policies file has it cut into slices, but MIG mode is off, and comes on "
                f"at a reset only; nvidia-smi -i {uuid} -mig 1, then reset it: nvidia-smi -i {uuid} --gpu-reset"
            )
            await self._say(node, "MigModeOff", said)
        self._mig_off = frozenset(uuids)

    async def no_parts(self, node: Node, uuids: Collection[str], vendor: Vendor) -> None:
        """Give notice that the policies file divides these GPUs, whose vendor's GPUs cannot be divided."""
        before, self._no_parts = self._no_parts, bool(uuids)
        if uuids and not before:
            said = (
                f"{len(uuids)} GPUs stay whole: the policies file has them shared or cut into slices, and of "
                f"{vendor.word}'s there are no parts; leave them out of the section gpus by products or nodes"
            )
            await self._say(node, "NoParts", said)

    async def _say(self, node: Node, reason: str, said: str) -> None:
        logger.warning("%s", said)
        if self._events is not None:
            about = Reference("Node", "", node.metadata.name, node.metadata.uid)
            await self._events.record(about=about, type="Warning", reason=reason, message=said, action="Publishing")
