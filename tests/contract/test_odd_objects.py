"""Objects of a tenant's that the API server admits and a strict reader would stumble over: nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from dradriver.controller.controller import Controller
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dradriver.node.publishing import allocated_devices
from tests.contract.conftest import Object, Server

POOL = "no-such-node"
LONGEST_S = 20.0
HALF = {"a": "\ud800"}
REQUEST = {"name": "main", "exactly": {"deviceClassName": "example.com"}}
OTHERS: Object = {
    "devices": {"requests": [REQUEST], "config": [{"opaque": {"driver": "other.example.com", "parameters": HALF}}]}
}


async def send(server: Server, method: str, path: str, body: Object, kind: str = "application/json") -> None:
    """Send JSON with escapes that are half a letter, as any tenant's program can."""
    await server.client.connection.request(method, path, body=msgspec.Raw(json.dumps(body).encode()), content_type=kind)


async def make(server: Server, resource: Resource, name: str, spec: Object) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
    await send(server, "POST", resource.path(server.namespace), body)


async def allocate(server: Server, claim: str, device: str) -> None:
    """Do what kube-scheduler does."""
    result = {"request": "main", "driver": "gpu.topology", "pool": POOL, "device": device}
    await server.patch_status(RESOURCE_CLAIMS, claim, {"status": {"allocation": {"devices": {"results": [result]}}}})


@contextlib.asynccontextmanager
async def watching(server: Server) -> AsyncIterator[Controller]:
    """Run a controller's reflectors; they are synced soon."""
    controller = Controller(server.client)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.watch())
        async with asyncio.timeout(LONGEST_S):
            await controller.synced()
        yield controller
        running.cancel()


def holders(controller: Controller, device: str) -> set[str]:
    return {name for _, name in controller.worker.picture.inventory.holds.holders((POOL, device))}


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not holds():
            await asyncio.sleep(0.05)


async def test_odd_claims_and_templates_of_one_tenant_stop_no_other(server: Server) -> None:
    await server.claim("good")
    await allocate(server, "good", "gpu-good")
    async with watching(server) as controller:
        assert holders(controller, "gpu-good") == {"good"}

        await make(server, RESOURCE_CLAIMS, "empty", {})
        await make(server, RESOURCE_CLAIMS, "half", OTHERS)
        await make(server, RESOURCE_CLAIM_TEMPLATES, "half", {"spec": OTHERS})
        await allocate(server, "half", "gpu-half")
        await server.claim("told")
        await allocate(server, "told", "gpu-told")
        told = {"driver": "gpu.topology", "pool": POOL, "device": "gpu-told", "data": HALF}
        path = RESOURCE_CLAIMS.path(server.namespace, "told") + "/status"
        await send(server, "PATCH", path, {"status": {"devices": [told]}}, "application/merge-patch+json")
        await server.patch_status(RESOURCE_CLAIMS, "good", {"status": {"allocation": None}})

        await until(lambda: not holders(controller, "gpu-good"))
        await until(lambda: holders(controller, "gpu-half") == {"half"})
        await until(lambda: holders(controller, "gpu-told") == {"told"})
        assert await controller.audit.look() == 0
        known = controller.worker.picture.templates.known
        await until(lambda: (server.namespace, "half") in known)
    async with watching(server) as controller:  # after a restart
        assert not holders(controller, "gpu-good")
        assert holders(controller, "gpu-half") == {"half"}
        assert holders(controller, "gpu-told") == {"told"}
    found = await allocated_devices.devices(server.client, pool=POOL)
    assert found is not None
    assert {"gpu-half", "gpu-told"} <= found
    for name in ("empty", "half", "told"):
        assert (await server.get(RESOURCE_CLAIMS, name))["metadata"]["name"] == name
