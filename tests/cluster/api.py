"""Reads from a cluster's API server.

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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.errors import ClusterError


class Api:
    """Reads from the API server as a kubeconfig's user with a token."""

    def __init__(self, kubeconfig: Path) -> None:
        content = json.loads(kubeconfig.read_text())
        cluster = content["clusters"][0]["cluster"]
        address = urlsplit(cluster["server"])
        self._host, self._port = str(address.hostname), address.port
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._headers = {"Authorization": f"Bearer {content['users'][0]['user']['token']}"}

        self._paths: dict[str, tuple[str, str, bool]] = {}

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

    def objects(self, kind: str, *, namespace: str = "") -> list[dict[str, Any]]:
        """Returns all objects of a kind, those of one namespace or of all.

        Raises:
            ClusterError: There is no such kind, or no answer.
        """
        answer = self._read(self._path(kind, namespace))
        items: list[dict[str, Any]] = answer["items"]
        item_kind = answer["kind"].removesuffix("List")
        return [{"kind": item_kind, "apiVersion": answer["apiVersion"]} | item for item in items]

    def _read(self, path: str) -> dict[str, Any]:
        status, body = self._request(path)
        if status != http.HTTPStatus.OK:
            raise ClusterError(f"GET {path}: {status} {body}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _path(self, kind: str, namespace: str) -> str:
        if kind not in self._paths:  # a kind may have come since
            self._paths = self._discover()
        if kind not in self._paths:
            raise ClusterError(f"the API server has no kind {kind}")
        prefix, plural, namespaced = self._paths[kind]
        return f"{prefix}/namespaces/{namespace}/{plural}" if namespace and namespaced else f"{prefix}/{plural}"

    def _discover(self) -> dict[str, tuple[str, str, bool]]:
        """Returns the path and plural of each kind, and whether it has namespaces, by all names that kubectl takes."""
        groups = [group["preferredVersion"]["groupVersion"] for group in self._read("/apis")["groups"]]
        found: dict[str, tuple[str, str, bool]] = {}
        for prefix in ("/api/v1", *(f"/apis/{group}" for group in groups)):
            group = prefix.removeprefix("/apis/").partition("/")[0]
            for resource in self._read(prefix)["resources"]:
                plural = resource["name"]
                for name in (plural, resource["singularName"], *resource.get("shortNames", ()), f"{plural}.{group}"):
                    found.setdefault(name, (prefix, plural, resource["namespaced"]))  # the first group counts
        return found

    def get(self, path: str) -> str | None:
        """Returns the answer's body, None if there is no server or it does not answer 200."""
        status, body = self._request(path)
        return body if status == http.HTTPStatus.OK else None

    def _request(self, path: str) -> tuple[int, str]:
        """Returns the status and the body of an answer; 0 and the error if there is none."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=10)
        try:
            connection.request("GET", path, headers=self._headers)
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
