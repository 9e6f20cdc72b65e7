"""A plugin of the kubelet's in dranet's place: a pod that has NICs of ``dra.net`` starts, and gets nothing of them.

dranet itself moves interfaces into pods by NRI, and a node of the local cluster has none to give.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from dradriver.node.protos.dra.v1 import dra_pb2, dra_pb2_grpc
from dradriver.node.protos.pluginregistration import pluginregistration_pb2 as registration_pb2
from dradriver.node.protos.pluginregistration import pluginregistration_pb2_grpc as registration_pb2_grpc
from tests.cluster import Node

_KUBELETS: Final = Path("/var/lib/kubelet")  # as the kubelet sees its folder


class NicDriver:
    """Answers the kubelet.

    Attributes:
        prepared: The names of the claims that it was asked to prepare.
    """

    def __init__(self, name: str) -> None:
        """Be asked nothing yet; ``name`` is the driver's."""
        self.name = name
        self.prepared: list[str] = []

    def GetInfo(self, _request: Any, _context: Any) -> registration_pb2.PluginInfo:  # noqa: N802
        """Return who the plugin is."""
        endpoint = str(_KUBELETS / "plugins" / self.name / "dra.sock")
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=endpoint, supported_versions=["v1.DRAPlugin"]
        )

    def NotifyRegistrationStatus(self, request: Any, _: Any) -> registration_pb2.RegistrationStatusResponse:  # noqa: N802
        """Take note of nothing but a refusal."""
        assert request.plugin_registered, request.error
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, _: Any) -> dra_pb2.NodePrepareResourcesResponse:  # noqa: N802
        """Give the containers nothing, which is right for a driver that works by NRI."""
        self.prepared += [claim.name for claim in request.claims]
        answers = {claim.uid: dra_pb2.NodePrepareResourceResponse() for claim in request.claims}
        return dra_pb2.NodePrepareResourcesResponse(claims=answers)

    def NodeUnprepareResources(self, request: Any, _: Any) -> dra_pb2.NodeUnprepareResourcesResponse:  # noqa: N802
        """Take nothing back."""
        answers = {claim.uid: dra_pb2.NodeUnprepareResourceResponse() for claim in request.claims}
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)


@contextlib.contextmanager
def serving(node: Node, name: str) -> Iterator[NicDriver]:
    """Serve the kubelet of a node of the local cluster while the context lasts."""
    driver = NicDriver(name)
    folders = (node.kubelet_root / "plugins" / name, node.kubelet_root / "plugins_registry")
    folders[0].mkdir(parents=True, exist_ok=True)
    servers = []
    with tempfile.TemporaryDirectory() as short:  # a unix socket's path has 107 bytes at most
        try:
            for number, (folder, socket) in enumerate(zip(folders, ("dra.sock", f"{name}-reg.sock"), strict=True)):
                link = Path(short) / str(number)
                link.symlink_to(folder)
                server = grpc.server(ThreadPoolExecutor(max_workers=4))
                if number == 0:
                    dra_pb2_grpc.add_DRAPluginServicer_to_server(driver, server)  # type: ignore[no-untyped-call]
                else:
                    registration_pb2_grpc.add_RegistrationServicer_to_server(driver, server)  # type: ignore[no-untyped-call]
                server.add_insecure_port(f"unix:{link / socket}")
                server.start()
                servers.append(server)
            yield driver
        finally:
            for server in reversed(servers):
                server.stop(1).wait()
            (folders[1] / f"{name}-reg.sock").unlink(missing_ok=True)
            (folders[0] / "dra.sock").unlink(missing_ok=True)
            folders[0].rmdir()
