"""docs/reference/policies.md: what its commands make of the policies of an installed release, by Helm itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import needs
from tests.paths import REPO

pytestmark = [pytest.mark.helm, pytest.mark.slow]

PAGE = (REPO / "docs" / "reference" / "policies.md").read_text("utf-8")
CHECKS = re.findall(r"(?m)^ +(helm template gpu-topology (?:.*\\\n)*.*)\n +(sed .* \| gputopo policies check -)$", PAGE)
MERGES, REPLACES = re.findall(r"(?m)^ +(helm upgrade gpu-topology .*--values values\.yaml)$", PAGE)
SIMULATED = {"discovery": "simulated", "simulated": {"default": "dgx-h100"}}
VISION = {"namespaces": ["vision"], "weight": 2, "highestPriority": 1000}
LANGUAGE = {"namespaces": ["language"], "cap": [{"gpus": 4}]}


# All that Helm asks of an API server if nothing is applied: its version, and which kinds it has.
ANSWERS = {
    "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.2"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
}


class Versions(BaseHTTPRequestHandler):
    """An API server that gives these answers."""

    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path.partition("?")[0])
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer or {}).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Versions) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def upgrade(
    command: str, server: str, folder: Path, installed: dict[str, Any], values: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Run a command of the page on a release with some tenants, which Helm reads from a file; nothing is written."""
    release = {
        "name": "gpu-topology",
        "namespace": "gpu-topology",
        "version": 1,
        "info": {"status": "deployed"},
        "chart": {"metadata": {"apiVersion": "v2", "name": "gpu-topology-dra", "version": "0.1.0"}},
        "config": {**SIMULATED, "policies": {"tenants": installed}},
    }
    (folder / "releases.yaml").write_text(json.dumps([release]))
    (folder / "values.yaml").write_text(json.dumps(values))
    words = [str(needs.helm()), *shlex.split(command)[1:], "--dry-run=client", "--kube-apiserver", server]
    words = [str(REPO / word) if word.startswith("helm/") else word for word in words]
    memory = {"HELM_DRIVER": "memory", "HELM_MEMORY_DRIVER_DATA": str(folder / "releases.yaml")}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **memory}, timeout=60
    )


def tenants(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the tenants of the ConfigMap that Helm would write."""
    assert not done.returncode, done.stderr
    manifest = done.stdout.partition("\nMANIFEST:\n")[2].partition("\nNOTES:\n")[0]
    made = {document["metadata"]["name"]: document for document in yaml.safe_load_all(manifest) if document}
    return yaml.safe_load(made["gpu-topology-policies"]["data"]["policies.yaml"])["tenants"]


def test_a_key_that_the_file_leaves_out_stays_and_null_removes_it(server: str, tmp_path: Path) -> None:
    both = {"vision": VISION, "language": LANGUAGE}
    left_out = {"policies": {"tenants": {"vision": {"weight": 3}}}}
    assert tenants(upgrade(MERGES, server, tmp_path, both, left_out)) == {**both, "vision": {**VISION, "weight": 3}}
    null = {"policies": {"tenants": {"language": None}}}
    assert tenants(upgrade(MERGES, server, tmp_path, both, null)) == {"vision": VISION}
    assert tenants(upgrade(MERGES, server, tmp_path, {"vision": VISION}, null)) == {"vision": VISION}


def test_a_file_of_all_values_replaces_the_policies(server: str, tmp_path: Path) -> None:
    values = {**SIMULATED, "policies": {"tenants": {"vision": VISION}}}
    both = {"vision": VISION, "language": LANGUAGE}
    assert tenants(upgrade(REPLACES, server, tmp_path, both, values)) == {"vision": VISION}


def test_what_the_chart_makes_of_all_values_can_be_checked(tmp_path: Path) -> None:
    ((render, check),) = CHECKS
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({**SIMULATED, "policies": {"tenants": {"vision": VISION, "language": VISION}}}))
    folder = str(tmp_path)
    programs = {"helm": f"{needs.helm()}", "gputopo": f"{sys.executable} -c 'import dradriver.cli.main as c; c.main()'"}
    for name, command in programs.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(REPO)}
    render = render.replace("helm/gpu-topology-dra", str(REPO / "helm" / "gpu-topology-dra"))
    subprocess.run(["sh", "-c", render], check=True, cwd=folder, env=environment, timeout=60)
    done = subprocess.run(
        ["sh", "-c", check], capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=60
    )
    assert done.returncode == 1
    assert "tenants.vision.namespaces[0]: the namespace vision also belongs to tenant language" in done.stdout
