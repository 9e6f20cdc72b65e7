"""Control planes without nodes that tests share: one is started on first use, and what a test made there is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import ServerConfig, from_kubeconfig
from dradriver.kube.resources import Resource
from tests import needs
from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import kubernetes_version, minor_of

GONE_S: Final = 60
# A deleted namespace stays for some five seconds, so namespaces are kept for the next test. Events end by themselves.
_KEPT: Final = ("namespaces", "events")
# The controller manager makes these in each namespace, and again if they are deleted.
_OF_NAMESPACES: Final = ("default", "kube-root-ca.crt")


class Planes:
    """The control planes that run until this object's block ends.

    Args:
        suffix: What follows their names, so that several processes can have their own.
    """

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._running: dict[tuple[str, str], Nodeless] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Planes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, purpose: str, version: str = "") -> Nodeless:
        """Return the control plane for a purpose and a Kubernetes version, started if it does not run yet.

        The test is skipped where none can run; in CI it fails.
        """
        version = version or kubernetes_version()
        if (purpose, version) not in self._running:
            needs.real_cluster(version)
            plane = Nodeless(f"{purpose}-{minor_of(version)}{self._suffix}", version)
            self._stack.enter_context(plane.running())
            self._running[purpose, version] = plane
        return self._running[purpose, version]

    @contextlib.contextmanager
    def restored(self, purpose: str, version: str = "") -> Iterator[Nodeless]:
        """Give the same for a block, and delete afterwards what was made in it."""
        plane = self.get(purpose, version)
        config = from_kubeconfig(plane.folder / "kubeconfig")
        before = asyncio.run(_stored(config))
        try:
            yield plane
        finally:
            asyncio.run(_delete_new(config, before))


class _Stored(NamedTuple):
    """An object that the API server has."""

    resource: Resource
    namespace: str
    name: str
    uid: str


async def _stored(config: ServerConfig) -> set[_Stored]:
    async with Client(config, user_agent="planes", timeout_s=30) as client:
        return await _list(client, await _deletable(client))


async def _delete_new(config: ServerConfig, before: set[_Stored]) -> None:
    """Delete every object that is not in ``before``, and return once all are gone.

    Raises:
        TimeoutError: Some object stays.
    """
    async with Client(config, user_agent="planes", timeout_s=30) as client, asyncio.timeout(GONE_S):
        resources = await _deletable(client)
        while new := await _list(client, resources) - before:
            for found in new:
                path = found.resource.path(found.namespace or None, found.name)
                with contextlib.suppress(ApiError):  # it ended by itself
                    await client.connection.request("DELETE", path, body={"gracePeriodSeconds": 0})
            await asyncio.sleep(0.1)


async def _list(client: Client, resources: list[Resource]) -> set[_Stored]:
    stored = set()
    for resource in resources:
        for item in (await _get(client, resource.path()))["items"]:
            metadata = item["metadata"]
            namespace = metadata.get("namespace", "")
            made_by_server = namespace.startswith("kube-") or (namespace and metadata["name"] in _OF_NAMESPACES)
            if not made_by_server:
                stored.add(_Stored(resource, namespace, metadata["name"], metadata["uid"]))
    return stored


async def _deletable(client: Client) -> list[Resource]:
    """Return every resource whose objects can be listed and deleted, each in the version that the server prefers."""
    groups = [group["preferredVersion"]["groupVersion"] for group in (await _get(client, "/apis"))["groups"]]
    resources = []
    for path, group_version in (("/api/v1", "v1"), *((f"/apis/{name}", name) for name in groups)):
        group, _, version = group_version.rpartition("/")
        for served in (await _get(client, path))["resources"]:
            if {"list", "delete"} <= set(served["verbs"]) and served["name"] not in _KEPT:
                kind = Resource(group, version, served["name"], served["kind"], namespaced=served["namespaced"])
                resources.append(kind)
    return resources


async def _get(client: Client, path: str) -> dict[str, Any]:
    # Tests of odd objects store half letters, which msgspec refuses.
    found: dict[str, Any] = json.loads(await client.connection.request("GET", path))
    return found
