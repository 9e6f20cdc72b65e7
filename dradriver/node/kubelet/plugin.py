"""The agent as a plugin of the kubelet: runs two gRPC servers, and tracks whether the plugin is registered.

With the server for registration the kubelet finds the plugin. On the DRA server the kubelet calls prepare and
unprepare, and watches the health of GPUs. Each server has its own socket.

If the kubelet ends the registration, it does not tell the plugin. So the agent watches its socket files. If they
disappear, for example because the kubelet's folders were wiped, the agent creates the sockets again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from dradriver.api.base import names
from dradriver.event import Event
from dradriver.node import metrics
from dradriver.node.errors import SetupError
from dradriver.node.kubelet import sockets
from dradriver.node.kubelet.gpu_health_service import VERSIONS, HealthStream
from dradriver.node.kubelet.service import DraService
from dradriver.node.kubelet.sockets import SocketPaths
from dradriver.node.protos.dra.v1 import dra_pb2_grpc
from dradriver.node.protos.pluginregistration import pluginregistration_pb2 as registration_pb2
from dradriver.node.protos.pluginregistration import pluginregistration_pb2_grpc as registration_pb2_grpc

logger = logging.getLogger(__name__)

SUPPORTED_VERSIONS: Final = ("v1.DRAPlugin", *VERSIONS)  # kubelets from 1.34
CHECK_S: Final = 5.0
DRAIN_S: Final = 20.0  # for calls under way at the end, such as one that waits for a device; a pod has 30 s to end
_GRACE_S: Final = 2.0  # for what comes in between


class Plugin:
    """Serves the kubelet while ``run`` runs.

    Attributes:
        registered: Whether the kubelet has accepted the plugin, as far as the agent can know.
        changed: An ``event.Event`` that occurs when ``registered`` has changed, or a kubelet registered the plugin
            again.
    """

    def __init__(
        self,
        paths: SocketPaths,
        service: DraService,
        health: HealthStream,
        *,
        check_s: float = CHECK_S,
    ) -> None:
        """Store the arguments; serve nothing yet.

        Args:
            paths: The paths of the sockets.
            service: The DRA service, which the kubelet calls once the plugin is registered.
            health: The health service, which the kubelet watches.
            check_s: Seconds between two checks that the sockets exist.
        """
        self._paths = paths
        self._service = service
        self._health = health
        self.changed: Event[[]] = Event()
        self._check_s = check_s
        self.registered = False

    async def run(self) -> None:
        """Serve the kubelet's plugin sockets until cancelled; then remove them.

        Raises:
            SetupError: A socket cannot be served, or a folder cannot be written to.
        """
        while True:
            try:
                await sockets.remove_dead(self._paths)
            except OSError as error:
                raise SetupError(f"no socket can be made for the kubelet: {error}") from error
            try:
                async with self._serving():
                    served = [(path, sockets.identity(path)) for path in (self._paths.dra, self._paths.registration)]
                    while all(sockets.identity(path) == was is not None for path, was in served):  # noqa: ASYNC110  # nothing tells
                        await asyncio.sleep(self._check_s)
                    logger.warning("The sockets of the plugin were removed. The node agent creates them again.")
            finally:
                self._set(False)

    async def GetInfo(self, _request: Any, _context: Any) -> registration_pb2.PluginInfo:  # noqa: N802
        """Return the plugin's name and socket; the kubelet calls this when it finds the registration socket."""
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=names.DRIVER,
            endpoint=str(self._paths.dra),
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802  # the name is the protocol's
        self, request: registration_pb2.RegistrationStatus, _context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        """Store whether the kubelet accepted the plugin.

        The kubelet calls this method after it tried to register the plugin.
        """
        if request.plugin_registered:
            logger.info("the kubelet registered the plugin")
        else:
            logger.error("The kubelet refused to register the plugin: %s", request.error)
        self._set(request.plugin_registered)
        return registration_pb2.RegistrationStatusResponse()

    def _set(self, registered: bool) -> None:
        metrics.REGISTERED.set(registered)
        if registered or self.registered:
            self.registered = registered
            self.changed()

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Serve the kubelet: start the DRA server, then the server for registration; stop in the opposite order.

        The DRA server starts first because the kubelet calls it as soon as the plugin is registered.

        At the end, the agent first waits for running calls. When the registration socket disappears, the kubelet closes
        its connections within a second, even during a call. The pod of an interrupted prepare call then waits for more
        than a minute. In a rolling update no new calls come, because the kubelet calls the instance that registered
        last.
        """
        dra, registration = grpc.aio.server(), grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self._service, dra)  # type: ignore[no-untyped-call]
        self._health.serve(dra)
        registration_pb2_grpc.add_RegistrationServicer_to_server(self, registration)  # type: ignore[no-untyped-call]
        async with contextlib.AsyncExitStack() as stack:
            for server, path in ((dra, self._paths.dra), (registration, self._paths.registration)):
                try:
                    server.add_insecure_port(f"unix:{path}")
                except RuntimeError as error:
                    raise SetupError(f"{path}: cannot be served: {error}") from error
                await server.start()
                # The stack runs backwards at the end: drain calls, then stop each server and remove its socket.
                stack.callback(sockets.remove_own, path, sockets.identity(path))
                stack.push_async_callback(server.stop, _GRACE_S)
            stack.callback(self._health.end)
            stack.push_async_callback(self._drain)
            logger.info("serving the kubelet on %s", self._paths.registration)
            yield

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._service.idle()
        except TimeoutError:
            logger.warning(
                "Calls of the kubelet are not finished %.0f s after the node agent was told to stop. "
                "They are cancelled.",
                DRAIN_S,
            )
