"""A real API server ends and another takes its place, which knows no version from before."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.controller.controller import Controller
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests import needs
from tests.cluster.nodeless import Nodeless

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]
NAME = "restart"
AWAY_S = 15.0
CURRENT_S = 5.0  # after the server is ready
SPEC = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "example.com"}}]}}
RESULT = {"request": "main", "driver": "gpu.topology", "pool": "n", "device": "gpu-1"}


async def test_all_that_is_new_is_known_soon_after() -> None:
    needs.real_cluster()
    plane = Nodeless(NAME)
    with plane.running():
        async with Client(from_kubeconfig(plane.folder / "kubeconfig"), user_agent="restart") as client:
            controller = Controller(client)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(controller.watch())
                await controller.synced()
                await _write(client, "before")
                await asyncio.to_thread(plane.restart_api_server, away_s=AWAY_S)
                await _write(client, "after")
                async with asyncio.timeout(CURRENT_S):
                    while not _knows(controller, "after"):
                        await asyncio.sleep(0.05)
                assert _knows(controller, "before")
                assert await controller.audit.look() == 0
                watching.cancel()
        await asyncio.sleep(0.5)  # aiohttp lets a session go before the TLS connections of its streams are closed


async def _write(client: Client, name: str) -> None:
    """Make something of each kind."""
    await client.create(NODES, {"metadata": {"name": name}})
    await client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": SPEC}, namespace="default")
    path = RESOURCE_CLAIMS.path("default", name) + "/status"
    body = {"status": {"allocation": {"devices": {"results": [RESULT | {"device": name}]}}}}
    await client.connection.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    template = {"metadata": {"name": name}, "spec": {"spec": SPEC}}
    await client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    device_class = {"metadata": {"name": name}, "spec": {"extendedResourceName": f"example.com/{name}"}}
    await client.create(DEVICE_CLASSES, device_class)


def _knows(controller: Controller, name: str) -> bool:
    picture = controller.worker.picture
    return (
        picture.nodes.find(name) is not None
        and bool(picture.inventory.holders(("n", name)))
        and ("default", name) in picture.templates.known
        and f"example.com/{name}" in picture.nodes.claimable
    )
