"""One set of tests for two servers: what the controller relies on holds for the real API server and the fake one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dradriver.api.base.jsonpatch import Patch
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import NAMESPACES, PODS, RESOURCE_CLAIMS, Resource
from tests.contract.planes import Planes
from tests.fakes.apiserver import FakeApiServer

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)

Object = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A server, and a namespace of it that is the test's own."""

    client: Client
    namespace: str

    async def pod(self, name: str = "p", *, metadata: Object | None = None, **spec: Any) -> Object:
        """Create a pod that no scheduler looks at."""
        containers = [{"name": "main", "image": "example.com/image"}]
        return await self.client.create(
            PODS,
            {
                "metadata": {"name": name} | (metadata or {}),
                "spec": {"containers": containers} | OF_NO_SCHEDULER | spec,
            },
            namespace=self.namespace,
        )

    async def claim(self, name: str = "c", **metadata: Any) -> Object:
        """Create a claim of one device."""
        request = {"name": "main", "exactly": {"deviceClassName": "example.com"}}
        spec = {"devices": {"requests": [request]}}
        body = {"metadata": {"name": name} | metadata, "spec": spec}
        return await self.client.create(RESOURCE_CLAIMS, body, namespace=self.namespace)

    async def get(self, resource: Resource, name: str) -> Object:
        return await self.client.get(resource, name, namespace=self.namespace)

    async def patch(self, resource: Resource, name: str, body: Patch | Object) -> Object:
        """Change an object by a JSON patch or a merge patch."""
        kind = PatchKind.JSON if isinstance(body, Patch) else PatchKind.MERGE
        return await self.client.patch(resource, name, body, kind=kind, namespace=self.namespace)

    async def patch_status(self, resource: Resource, name: str, body: Object) -> None:
        """Change an object's status, which the client has no word for: others write it."""
        path = resource.path(self.namespace, name) + "/status"
        await self.client.connection.request("PATCH", path, body=body, content_type=PatchKind.MERGE.value)

    async def delete(self, resource: Resource, name: str, **conditions: str) -> bool:
        return await self.client.delete(resource, name, namespace=self.namespace, **conditions)


OF_NO_SCHEDULER = {"schedulerName": "nobody"}


@pytest.fixture(scope="package")
def planes(worker_id: str) -> Iterator[Planes]:
    """The control planes that contract tests share; they end before this process goes on to other tests."""
    with Planes("" if worker_id == "master" else f"-{worker_id}") as planes:
        yield planes


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "fake":
        async with FakeApiServer() as api, Client(api.config, user_agent="contract", timeout_s=10) as client:
            yield Server(client, "a")
        return
    planes: Planes = request.getfixturevalue("planes")
    config = from_kubeconfig(planes.get("contract").folder / "kubeconfig")
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    async with Client(config, user_agent="contract", timeout_s=10) as client:
        await ensure_namespace(client, namespace)
        yield Server(client, namespace)
        await client.delete(NAMESPACES, namespace)


async def ensure_namespace(client: Client, namespace: str) -> None:
    """Create a namespace unless it is there, and return once pods can be made in it: it has its service account."""
    try:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    except ApiError as error:
        if not error.already_exists:
            raise
    async with asyncio.timeout(30):
        while True:
            try:
                await client.get(ACCOUNTS, "default", namespace=namespace)
                return
            except ApiError as error:
                assert error.not_found
                await asyncio.sleep(0.05)


async def refused(answer: Any) -> ApiError:
    """Return the refusal that an awaitable ends with."""
    with pytest.raises(ApiError) as raised:
        await answer
    return raised.value
