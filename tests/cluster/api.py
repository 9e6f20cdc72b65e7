"""Requests to a cluster's API server.

A test asks many times whether something has come about. Each kubectl takes a tenth of a second of CPU, a request here a
few milliseconds.
"""

from __future__ import annotations

import base64
import functools
import http
import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from dradriver.kube.resources import Resource
from tests.cluster.errors import ClusterError

TIMEOUT_S: Final = 60  # of one request: three clusters on two cores can keep a server busy for long


class Served(NamedTuple):
    """A kind of object that the API server has, with the names that kubectl takes for it."""

    resource: Resource
    names: frozenset[str]
    verbs: frozenset[str]


class Api:
    """Asks the API server as a kubeconfig's user with a token."""

    def __init__(self, kubeconfig: Path) -> None:
        content = json.loads(kubeconfig.read_text())
        cluster = content["clusters"][0]["cluster"]
        address = urlsplit(cluster["server"])
        self._host, self._port = str(address.hostname), address.port
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._headers = {"Authorization": f"Bearer {content['users'][0]['user']['token']}"}

        self._resources: dict[str, Resource] = {}  # by the names that kubectl takes
        self._kinds: dict[tuple[str, str], Resource] = {}  # by apiVersion and kind

    @classmethod
    def of(cls, kubeconfig: Path) -> Api:
        """Returns the reader for a kubeconfig; what it learns of the server is kept as long as the file is the same."""
        return _of(kubeconfig, kubeconfig.stat().st_mtime_ns)

    def object(self, kind: str, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Returns one object.

        Args:
            kind: As kubectl takes it: `pod`, `pods`, `po` or `pods.example.com`.
            name: The object's name.
            namespace: Its namespace, if its kind has namespaces.

        Raises:
            ClusterError: There is no such kind or object, or no answer.
        """
        return self._read(f"{self._path(kind, namespace)}/{name}")

    def objects(self, kind: str | Resource, *, namespace: str = "") -> list[dict[str, Any]]:
        """Returns all objects of a kind, those of one namespace or of all.

        Raises:
            ClusterError: There is no such kind, or no answer.
        """
        answer = self._read(kind.path() if isinstance(kind, Resource) else self._path(kind, namespace))
        items: list[dict[str, Any]] = answer["items"]
        item_kind = answer["kind"].removesuffix("List")
        return [{"kind": item_kind, "apiVersion": answer["apiVersion"]} | item for item in items]

    def delete(self, resource: Resource, name: str, *, namespace: str = "") -> None:
        """Asks the server to delete an object at once; an object that is gone, or may not be deleted, is left."""
        self._request(resource.path(namespace or None, name), method="DELETE", body='{"gracePeriodSeconds": 0}')

    def served(self) -> list[Served]:
        """Returns every kind that the server has, each in the version that the server prefers.

        Raises:
            ClusterError: No answer.
        """
        groups = [group["preferredVersion"]["groupVersion"] for group in self._read("/apis")["groups"]]
        return [served for group_version in ("v1", *groups) for served in self._served_in(group_version)]

    def resource(self, manifest: Mapping[str, Any]) -> Resource:
        """Returns the kind of an object by its `apiVersion` and `kind`.

        Raises:
            ClusterError: There is no such kind, or no answer.
        """
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        if (api_version, kind) not in self._kinds:
            for served in self._served_in(api_version):
                self._kinds[api_version, served.resource.kind] = served.resource
        if (api_version, kind) not in self._kinds:
            raise ClusterError(f"the API server has no kind {kind} in {api_version}")
        return self._kinds[api_version, kind]

    def _served_in(self, group_version: str) -> list[Served]:
        group, _, version = group_version.rpartition("/")
        found = []
        for item in self._read(f"/apis/{group_version}" if group else f"/api/{version}")["resources"]:
            if "/" not in (plural := item["name"]):
                names = {plural, item["singularName"], *item.get("shortNames", ()), f"{plural}.{group}"}
                kind = Resource(group, version, plural, item["kind"], namespaced=item["namespaced"])
                found.append(Served(kind, frozenset(names), frozenset(item["verbs"])))
        return found

    def _path(self, kind: str, namespace: str) -> str:
        if kind not in self._resources:  # a kind may have come since
            self._resources = {name: served.resource for served in reversed(self.served()) for name in served.names}
        if kind not in self._resources:
            raise ClusterError(f"the API server has no kind {kind}")
        resource = self._resources[kind]
        return resource.path(namespace if namespace and resource.namespaced else None)

    def _read(self, path: str) -> dict[str, Any]:
        status, body = self._request(path)
        if status != http.HTTPStatus.OK:
            raise ClusterError(f"GET {path}: {status} {body}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def get(self, path: str) -> str | None:
        """Returns the answer's body, None if there is no server or it does not answer 200."""
        status, body = self._request(path)
        return body if status == http.HTTPStatus.OK else None

    def _request(self, path: str, *, method: str = "GET", body: str | None = None) -> tuple[int, str]:
        """Returns the status and the body of an answer; 0 and the error if there is none."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, self._headers | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def ready(self) -> bool:
        """Whether the API server says so."""
        return self.get("/readyz") is not None

    def ready_nodes(self) -> set[str]:
        """Returns the nodes that are Ready and keep no pod away."""
        body = self.get("/api/v1/nodes")
        nodes: list[dict[str, Any]] = json.loads(body)["items"] if body else []
        return {node["metadata"]["name"] for node in nodes if _usable(node)}


@functools.lru_cache(maxsize=16)
def _of(kubeconfig: Path, _: int) -> Api:
    return Api(kubeconfig)


def _usable(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not node["spec"].get("taints")
