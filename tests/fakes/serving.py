"""``gputopo serve`` in this process, on the API server of a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

import msgspec

from dradriver.api.slices import resource_slices
from dradriver.cli.page import login_session
from dradriver.cli.page.guard import Guard
from dradriver.cli.page.page_server import Page
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology import profiles
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.apistore import Store
from tests.fakes.control_plane.devices import result
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import install


@dataclass
class Served:
    """A page that is served.

    Attributes:
        api: The API server.
        page: The page.
        url: Where it is.
    """

    api: FakeApiServer
    page: Page
    url: str


@contextlib.asynccontextmanager
async def served(store: Store, *, key: bool = False, read: bool = True) -> AsyncIterator[Served]:
    """Serve a store's page, once it was read where that is wanted."""
    async with FakeApiServer(store=store, token="secret") as api, serving(api, key=key, read=read) as made:
        yield made


@contextlib.asynccontextmanager
async def serving(api: FakeApiServer, *, key: bool = False, read: bool = True, port: int = 0) -> AsyncIterator[Served]:
    """The same of an API server that runs already."""
    install(api.store)
    page = Page(Guard((), with_key=key))
    async with page.serve(host="127.0.0.1", port=port) as bound:
        keeping = asyncio.create_task(login_session.keep(page, lambda: api.config, None, None))
        try:
            if read:
                async with asyncio.timeout(50):
                    while page.details is None:
                        await page.feed.news(page.feed.version)
                        await asyncio.sleep(0)
            yield Served(api, page, f"http://127.0.0.1:{bound}/")
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


def fleet(nodes: int, *, profile: str = "dgx-h100", zones: int = 4) -> GpuCluster:
    """Return a cluster of so many nodes of which some hold claims, made as fast as that goes."""
    cluster = GpuCluster()
    machine = profiles.load(profile, seed="")
    for number in range(nodes):
        name = f"node-{number:05d}"
        gpus = tuple(
            msgspec.structs.replace(gpu, uuid=f"GPU-{uuid5(NAMESPACE_OID, f'{name}/{gpu.index}')}")
            for gpu in machine.gpus
        )
        own = msgspec.structs.replace(machine, gpus=gpus)
        cluster.machines[name] = own
        cluster.put(
            NODES,
            {
                "metadata": {
                    "name": name,
                    "labels": {"topology.kubernetes.io/zone": f"zone-{number * zones // nodes}"},
                },
                "spec": {},
                "status": {
                    "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        for piece in resource_slices.build(own, node=name, node_uid="n"):
            cluster.put(RESOURCE_SLICES, piece)
        held = [gpu.uuid for gpu in own.gpus[: number % (len(machine.gpus) + 1)]]
        if held:
            allocation = {"devices": {"results": [result(name, uuid) for uuid in held]}}
            claim = {"metadata": {"name": f"claim-{number}", "namespace": f"team-{number % 20}"}}
            cluster.put(RESOURCE_CLAIMS, claim | {"status": {"allocation": allocation}})
    return cluster
