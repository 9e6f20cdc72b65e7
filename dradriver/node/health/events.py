"""Telling the pods that hold a GPU what is wrong with it and what to do, as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from dradriver.api.objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.kube.events import Recorder, Reference
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.health.faults import Fault
from dradriver.node.health.record import Record
from dradriver.node.journal import Entry

logger = logging.getLogger(__name__)

GET_S: Final = 10.0
_MOST_PODS: Final = 64  # of one claim: it may have 256 consumers


class GetClaim(Protocol):
    """Reads a claim from the API server."""

    async def __call__(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim.

        Raises:
            DriverError: It cannot be read.
        """


class PodEvents:
    """Writes an event for every fault that came or went, to every pod that holds the GPU then."""

    def __init__(
        self,
        record: Record,
        events: Recorder,
        *,
        prepared: Callable[[], Awaitable[Mapping[str, Entry[PreparedClaim]]]],
        get_claim: GetClaim,
    ) -> None:
        """Tell nobody yet.

        Args:
            record: Says which faults are in force.
            events: Writes them.
            prepared: Gives the claims that are prepared on this node.
            get_claim: Says which pods use a claim.
        """
        self._record = record
        self._events = events
        self._prepared = prepared
        self._get_claim = get_claim
        self._told: set[tuple[str, Fault]] = set()
        self._changed = asyncio.Event()

    def poke(self) -> None:
        """Look again: a fault came or went."""
        self._changed.set()

    async def run(self) -> None:
        """Tell until cancelled; what cannot be told is logged and left."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            there = {(uuid, one.fault) for uuid, some in self._record.standing().items() for one in some}
            came, went = there - self._told, self._told - there
            self._told = there
            try:
                await self._tell(came, went)
            except (DriverError, OSError) as error:
                logger.warning("pods are not told of their GPUs' health: %s", error)

    async def _tell(self, came: set[tuple[str, Fault]], went: set[tuple[str, Fault]]) -> None:
        for entry in (await self._prepared()).values():
            gpus = {device.uuid for device in entry.value.devices}
            news = [(uuid, fault, True) for uuid, fault in sorted(came) if uuid in gpus]
            news += [(uuid, fault, False) for uuid, fault in sorted(went) if uuid in gpus]
            for pod in await self._pods(entry.value) if news else ():
                for uuid, fault, ill in news:
                    await self._write(pod, uuid, fault, ill=ill)

    async def _pods(self, prepared: PreparedClaim) -> list[Reference]:
        try:
            async with asyncio.timeout(GET_S):
                claim = await self._get_claim(prepared.namespace, prepared.name)
        except (DriverError, TimeoutError) as error:
            logger.warning("claim %s/%s cannot be read: %s", prepared.namespace, prepared.name, error)
            return []
        if claim.metadata.uid != prepared.uid:
            return []
        users = [one for one in claim.status.reserved_for if one.resource == "pods"]
        return [Reference("Pod", prepared.namespace, one.name, one.uid) for one in users[:_MOST_PODS]]

    async def _write(self, pod: Reference, uuid: str, fault: Fault, *, ill: bool) -> None:
        message = f"{fault.said}. {fault.advice}" if ill else f"no more: {fault.said}"
        await self._events.record(
            about=pod,
            type="Warning" if ill else "Normal",
            reason="GPUUnhealthy" if ill else "GPURecovered",
            message=f"GPU {uuid}: {message}",
            action="Watching",
        )
