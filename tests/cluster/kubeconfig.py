"""Kubeconfig files. They are JSON, which every reader of YAML understands."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.cluster.certificates import Authority


def write_with_token(path: Path, *, server: str, authority: Authority, user: str, token: str) -> None:
    """Writes a kubeconfig whose user has a token; with one, `kubectl --token` can replace it."""
    _write(path, server, authority, user, {"token": token})


def write_with_certificate(path: Path, *, server: str, authority: Authority, user: str, file: str) -> None:
    """Writes a kubeconfig whose user has the certificate `file` of the authority."""
    credentials = {
        "client-certificate": str(authority.path(f"{file}.crt")),
        "client-key": str(authority.path(f"{file}.key")),
    }
    _write(path, server, authority, user, credentials)


def _write(path: Path, server: str, authority: Authority, user: str, credentials: dict[str, str]) -> None:
    certificate = base64.b64encode(authority.path("ca.crt").read_bytes()).decode()
    name = "gpu-topology"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": certificate}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=2) + "\n")
