"""The health of the node's GPUs as the kubelet watches it, to show it in the status of the pods that hold them.

It is one service in two versions, ``v1`` (kubelets from 1.37) and ``v1alpha1``, alike but for their names (KEP-4680).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import grpc.aio

from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.node.health.faults_in_force import Standing
from dradriver.node.protos.health.v1 import health_pb2 as v1
from dradriver.node.protos.health.v1 import health_pb2_grpc as v1_grpc
from dradriver.node.protos.health.v1alpha1 import health_pb2 as v1alpha1
from dradriver.node.protos.health.v1alpha1 import health_pb2_grpc as v1alpha1_grpc
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # newest first
AGAIN_S: Final = 10.0  # a device that is not told of for 30 s counts as unknown
MOST_TEXT: Final = 1024


class HealthStream:
    """Tells every kubelet that watches how GPUs are, at once when something changed and again after a while."""

    def __init__(
        self,
        *,
        node: str,
        machine: Callable[[], Machine | None],
        standing: Callable[[], Mapping[str, Sequence[Standing]]],
        prepared: Callable[[], Awaitable[Mapping[str, Collection[str]]]] | None = None,
        again_s: float = AGAIN_S,
    ) -> None:
        """Tell nobody yet.

        Args:
            node: This node's name, which is its pool's.
            machine: Gives the machine as it is now; None until it was read, so long nothing is said.
            standing: Gives the faults in force by uuid.
            prepared: Gives the names of the devices that claims have now, by their GPUs' uuids.
            again_s: How often to say the same.
        """
        self._node = node
        self._machine = machine
        self._standing = standing
        self._prepared = prepared
        self._said = ""
        self._again_s = again_s
        self._seen: dict[str, None] = {}  # uuids of all GPUs there ever were, in the order of their coming
        self._changed = asyncio.Event()
        self._ended = False

    def poke(self) -> None:
        """Send the GPUs' health to all kubelets that watch now: a GPU came, went, or has another fault."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End the health streams of all kubelets, so that the server need not wait for them."""
        self._ended = True
        self.poke()

    def serve(self, server: grpc.aio.Server) -> None:
        """Add both versions of the kubelet's health service to a server."""
        self._ended = False
        v1_grpc.add_DRAResourceHealthServicer_to_server(_Servicer(self, v1), server)  # type: ignore[no-untyped-call]
        v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call]
            _Servicer(self, v1alpha1), server
        )

    async def watch(self, words: Any) -> AsyncIterator[Any]:
        """Yield the health of all GPUs again and again until ``end``, in the words of one version."""
        while not self._ended:
            changed = self._changed
            devices = [self._device(uuid, name, words) for uuid, name in await self._names()]
            if devices:
                yield words.NodeWatchResourcesResponse(devices=devices)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._again_s):
                    await changed.wait()

    def _uuids(self) -> list[str]:
        machine = self._machine()
        if machine is not None:
            self._seen |= dict.fromkeys(gpu.uuid for gpu in machine.gpus)
        return list(self._seen)

    async def _names(self) -> list[tuple[str, str]]:
        """Return each device's uuid and name: all GPUs, and claims' parts of GPUs, which are as well as their GPUs."""
        uuids = self._uuids()
        try:
            parts = await self._prepared() if self._prepared is not None else {}
        except (DriverError, OSError) as error:
            parts = {}
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("the health of parts of GPUs is not told: what is prepared cannot be read: %s", error)
        return [
            (uuid, name)
            for uuid in uuids
            for name in dict.fromkeys((resource_slices.device_name(uuid), *parts.get(uuid, ())))
        ]

    def _device(self, uuid: str, name: str, words: Any) -> Any:
        faults = [one.fault for one in self._standing().get(uuid, ())]
        said = [f"{fault.described[:1].upper()}{fault.described[1:]}" for fault in faults]
        well = all(fault.effect == "None" for fault in faults)
        return words.DeviceHealth(
            device=words.DeviceIdentifier(pool_name=self._node, device_name=name),
            health=words.HEALTHY if well else words.UNHEALTHY,
            last_updated_time=int(time.time()),
            message=" ".join(said)[:MOST_TEXT],
        )


class _Servicer:
    """One version of the service."""

    def __init__(self, stream: HealthStream, words: Any) -> None:
        self._stream = stream
        self._words = words

    async def NodeWatchResources(self, _request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Send the health of all devices to the kubelet until it goes."""
        async for state in self._stream.watch(self._words):
            yield state
