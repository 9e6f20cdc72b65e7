"""The few questions that starting a cluster asks its API server."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


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

    def get(self, path: str) -> str | None:
        """Returns the answer's body, None if there is no server or it does not answer 200."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=10)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if answer.status == 200 else None

    def ready(self) -> bool:
        """Whether the API server says so."""
        return self.get("/readyz") is not None

    def ready_nodes(self) -> set[str]:
        """Returns the nodes that are Ready and keep no pod away."""
        body = self.get("/api/v1/nodes")
        nodes: list[dict[str, Any]] = json.loads(body)["items"] if body else []
        return {node["metadata"]["name"] for node in nodes if _usable(node)}


def _usable(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not node["spec"].get("taints")
