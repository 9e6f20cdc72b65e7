"""A kubelet as plugins see it: it finds registration sockets, registers, and calls the newest instance's DRA service.

Like the real one (1.36) it falls back to an older instance when the newest is gone, dials an endpoint as it is, and
hangs up when a registration socket is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, Self

import grpc.aio

from dradriver.node.protos.dra.v1 import dra_pb2, dra_pb2_grpc
from dradriver.node.protos.pluginregistration import pluginregistration_pb2 as registration_pb2
from dradriver.node.protos.pluginregistration import pluginregistration_pb2_grpc as registration_pb2_grpc

Claim = tuple[str, str, str]  # namespace, name, uid
HANGS_UP_S: Final = 0.1  # a real one within a second
TIMEOUT_S = 45.0


class FakeKubelet:
    """Registers what it finds in ``<root>/plugins_registry`` while the context lasts.

    ``accept``: what it answers plugins; ``seen``: what every plugin said of itself, oldest first, by socket;
    ``registrations``: how many it has made or refused.
    """

    def __init__(self, root: Path, *, accept: bool = True) -> None:
        self.root = root
        self.accept = accept
        self.seen: dict[Path, registration_pb2.PluginInfo] = {}
        self.registrations = 0
        self._calls: dict[str, list[Any]] = {}

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _look(self) -> None:
        known: dict[Path, tuple[int, int]] = {}
        while True:
            found: dict[Path, tuple[int, int]] = {}
            for path in sorted((self.root / "plugins_registry").glob("*.sock")):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = (path.stat().st_ino, path.stat().st_ctime_ns)  # inodes are used again
            for path in self.seen.keys() - found.keys():
                # The real kubelet hangs up, even if calls are not answered yet. Answers that were sent still arrive.
                for call in self._calls.pop(self.seen.pop(path).endpoint, ()):
                    asyncio.get_running_loop().call_later(HANGS_UP_S, call.cancel)
            for path, identity in found.items():
                if known.get(path) != identity:
                    with contextlib.suppress(grpc.aio.AioRpcError):  # a dead one: it is dialled again
                        await self.register(path)
                        known[path] = identity
            known = {path: identity for path, identity in known.items() if path in found}
            await asyncio.sleep(0.01)

    async def register(self, path: Path) -> registration_pb2.PluginInfo:
        """Do what the kubelet does with one registration socket."""
        async with dial(path) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info: registration_pb2.PluginInfo = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=TIMEOUT_S)
            self.seen.pop(path, None)
            self.seen[path] = info
            await stub.NotifyRegistrationStatus(
                registration_pb2.RegistrationStatus(
                    plugin_registered=self.accept, error="" if self.accept else "no version in common"
                ),
                timeout=TIMEOUT_S,
            )
        self.registrations += 1
        return info

    async def prepare(
        self, *claims: Claim, give_up_s: float = TIMEOUT_S
    ) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        """Prepare claims with the newest instance; the answers by uid."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=_claims(claims))
        endpoint = self._newest()
        async with dial(Path(endpoint)) as channel:
            stub = dra_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            call = stub.NodePrepareResources(request, timeout=give_up_s)
            self._calls.setdefault(endpoint, []).append(call)
            return dict((await call).claims)

    async def unprepare(self, *claims: Claim) -> dict[str, dra_pb2.NodeUnprepareResourceResponse]:
        """Unprepare claims with the newest instance; the answers by uid."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=_claims(claims))
        async with dial(Path(self._newest())) as channel:
            stub = dra_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            return dict((await stub.NodeUnprepareResources(request, timeout=TIMEOUT_S)).claims)

    def _newest(self) -> str:
        return list(self.seen.values())[-1].endpoint


@contextlib.asynccontextmanager
async def dial(path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a unix socket, with the authority that the kubelet sends."""
    async with grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        yield channel


def _claims(claims: Iterable[Claim]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
