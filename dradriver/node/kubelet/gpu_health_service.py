"""The health of the node's GPUs for the kubelet, which shows it in the status of pods.

The agent serves two versions of one gRPC service, ``v1`` (kubelets from 1.37) and ``v1alpha1``. They differ only in
names (KEP-4680).
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
from dradriver.node.repairs import located
from dradriver.reason import capitalized
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # newest first
AGAIN_S: Final = 10.0  # a device that is not told of for 30 s counts as unknown
MOST_TEXT: Final = 1024


class HealthStream:
    """Sends the health of GPUs to every kubelet that watches it: after each change, and at an interval."""

    def __init__(
        self,
        *,
        node: str,
        machine: Callable[[], Machine | None],
        standing: Callable[[], Mapping[str, Sequence[Standing]]],
        prepared: Callable[[], Awaitable[Mapping[str, Collection[str]]]] | None = None,
        again_s: float = AGAIN_S,
    ) -> None:
        """Store the arguments; send nothing yet.

        Args:
            node: This node's name, which is also the name of its pool.
            machine: Returns the machine as it is now; None until it was read. Until then no health is sent.
            standing: Returns the faults in force by uuid.
            prepared: Returns the names of the devices that claims have now, by their GPUs' uuids.
            again_s: Seconds after which the health is sent again without a change.
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
        """Send the GPUs' health to all kubelets that watch now, because a GPU came or went, or its faults changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End the health streams of all kubelets.

        Otherwise the gRPC server would wait for them when it stops.
        """
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
        """Yield the health of all GPUs at each change and at an interval, until ``end``.

        Args:
            words: The module with the message types of one version of the service, ``v1`` or ``v1alpha1``.
        """
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
        """Return uuid and name of each device: of all GPUs, and of the fractions that claims have.

        A fraction has the health of its GPU.
        """
        uuids = self._uuids()
        try:
            parts = await self._prepared() if self._prepared is not None else {}
        except (DriverError, OSError) as error:
            parts = {}
            if str(error) != self._said:
                self._said = str(error)
                logger.warning(
                    "The kubelet does not get the health of shares and MIG slices, because the checkpoint "
                    "cannot be read: %s",
                    error,
                )
        return [
            (uuid, name)
            for uuid in uuids
            for name in dict.fromkeys((resource_slices.device_name(uuid), *parts.get(uuid, ())))
        ]

    def _device(self, uuid: str, name: str, words: Any) -> Any:
        faults = [one.fault for one in self._standing().get(uuid, ())]
        said = [located(capitalized(fault.described), node=self._node, uuid=uuid) for fault in faults]
        well = all(fault.effect == "None" for fault in faults)
        return words.DeviceHealth(
            device=words.DeviceIdentifier(pool_name=self._node, device_name=name),
            health=words.HEALTHY if well else words.UNHEALTHY,
            last_updated_time=int(time.time()),
            message=" ".join(said)[:MOST_TEXT],
        )


class _Servicer:
    """One version of the health service, as the gRPC server calls it."""

    def __init__(self, stream: HealthStream, words: Any) -> None:
        self._stream = stream
        self._words = words

    async def NodeWatchResources(self, _request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Send the health of all devices to the kubelet until it disconnects."""
        async for state in self._stream.watch(self._words):
            yield state
