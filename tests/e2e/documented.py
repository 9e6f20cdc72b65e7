"""Runs the sessions that a document shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests import consoles
from tests.cluster import Cluster
from tests.paths import REPO

_SOON_S: Final = 60.0
_READS: Final = ("kubectl describe ", "kubectl get ", "kubectl wait ", "gputopo ")  # these can run again


def run(cluster: Cluster, page: Path, folder: Path, *, namespace: str = "default") -> None:
    """Run a page's commands in order, as its reader would, and compare what they print with what the page shows.

    Args:
        cluster: The cluster that the commands speak to.
        page: The document.
        folder: An empty folder for files that the commands need.
        namespace: The namespace of commands that name none.

    Raises:
        AssertionError: A command fails, or prints something else.
    """
    kubeconfig = folder / "kubeconfig"
    content = json.loads(cluster.kubeconfig.read_text())
    for context in content["contexts"]:
        context["context"]["namespace"] = namespace
    kubeconfig.write_text(json.dumps(content))
    tools = (*cluster.tool_folders, Path(sys.executable).parent)
    own = {"KUBECONFIG": str(kubeconfig), "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]])}
    own |= {f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
    for command in consoles.commands(page):
        wrong = _run(command, {**os.environ, **own})
        assert not wrong, f"{page.name}:{command.line}: {command.text}\n{wrong}"


def _run(command: consoles.Command, environment: Mapping[str, str]) -> str:
    """Run a command and return what is wrong with it.

    A command that only reads runs again for a while: a reader types more slowly than controllers work.
    """
    deadline = time.monotonic() + _SOON_S
    while True:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=REPO,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
            env=environment,
        )
        different = consoles.differs(command, done.stdout)
        if not done.returncode and not different:
            return ""
        if not command.text.startswith(_READS) or time.monotonic() > deadline:
            return f"exit status {done.returncode}, not as shown: {different}\n{done.stdout}{done.stderr}"
        time.sleep(1)
