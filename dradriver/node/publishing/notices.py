"""Reports what a node does not publish, and why.

Each report is made once: in the log, as an Event on the Node, and in metrics.
"""

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

_TWICE: Final = " Otherwise two programs would allocate the same GPU."


class Notices:
    """Reports why GPUs are not published, or are published in another way than the policies file says."""

    def __init__(self, events: Recorder | None) -> None:
        """Store the arguments; report nothing yet.

        Args:
            events: Writes Events; None for log and metrics only.
        """
        self._events = events
        # What was said last: only news is said again.
        self._lacking: frozenset[str] = frozenset()  # names of slice features that the API server lacks
        self._mig_off: frozenset[str] = frozenset()  # uuids of GPUs whose MIG mode must be turned on
        self._no_parts = False  # whether the policies file divides GPUs that cannot be divided

    async def withheld(self, node: Node, why: str | None, *, twice: bool) -> None:
        """Report the reason why the node publishes nothing, or that there is no reason any more.

        Args:
            node: The node.
            why: The reason, in words; None if the node publishes.
            twice: Whether the reason is that another driver or plugin hands out the same GPUs. Then the Event says so,
                too.
        """
        metrics.WITHHELD.set(why is not None)
        if why is None:
            logger.info("nothing keeps this node's GPUs from being published any more")
        else:
            said = f"The node agent publishes no GPU of node {node.metadata.name}, because {why}."
            await self._say(node, "GPUsUnpublished", said + (_TWICE if twice else ""))

    async def lacking(self, node: Node | None, fields: Collection[str]) -> None:
        """Report the slice fields that the API server drops, each only once.

        ``fields`` are names of ``slice_features.FIELDS``. A field that the last call had, too, is not reported again.
        """
        for name in fields:
            if name not in self._lacking and node is not None:
                said = f"The API server drops the {name} of devices in ResourceSlices: {slice_features.WITHOUT[name]}."
                await self._say(node, "ServerLacks", said)
        self._lacking = frozenset(fields)
        for name in slice_features.FIELDS:
            metrics.SERVER_LACKS.labels(name).set(name in fields)

    async def mig_off(self, node: Node, uuids: Collection[str]) -> None:
        """Report each GPU whose MIG mode an administrator must turn on.

        A GPU that the last call had, too, is not reported again.
        """
        metrics.MIG_OFF.set(len(uuids))
        for uuid in sorted({*uuids} - self._mig_off):
            said = (
                f"GPU {uuid} stays whole. The policies file requests MIG slices of it, but its MIG mode is off "
                f"and starts only at a reset. End the pods on it, then run: nvidia-smi -i {uuid} -mig 1 && "
                f"nvidia-smi -i {uuid} --gpu-reset"
            )
            await self._say(node, "MigModeOff", said)
        self._mig_off = frozenset(uuids)

    async def no_parts(self, node: Node, uuids: Collection[str], vendor: Vendor) -> None:
        """Report that the policies file divides GPUs that cannot be divided.

        ``uuids`` are these GPUs; their ``vendor`` has no MIG slices or shares. The report is not repeated as long as
        there are GPUs of this kind.
        """
        before, self._no_parts = self._no_parts, bool(uuids)
        if uuids and not before:
            said = (
                f"{len(uuids)} GPUs of node {node.metadata.name} stay whole. The policies file requests shares or MIG "
                f"slices of them, which GPUs of {vendor.word} do not have. Exclude them from the section gpus by "
                "products or nodes."
            )
            await self._say(node, "GPUFractionsUnsupported", said)

    async def _say(self, node: Node, reason: str, said: str) -> None:
        logger.warning("%s", said)
        if self._events is not None:
            about = Reference("Node", "", node.metadata.name, node.metadata.uid)
            await self._events.record(about=about, type="Warning", reason=reason, message=said, action="Publishing")
