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

_MADE_S: Final = 60.0


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
        done = _run(command.text, {**os.environ, **own})
        at = f"{page.name}:{command.line}: {command.text}"
        assert not done.returncode, f"{at}: {done.stdout}{done.stderr}"
        different = consoles.differs(command, done.stdout)
        assert not different, f"{at}\nnot as shown: {different}\n{done.stdout}"


def _run(text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command; one that waits for pods again, if a controller has not made them yet: a reader types slowly."""
    deadline = time.monotonic() + _MADE_S
    while True:
        done = subprocess.run(
            ["bash", "-c", text], cwd=REPO, capture_output=True, text=True, check=False, timeout=120, env=environment
        )
        if "error: no matching resources found" not in done.stderr or time.monotonic() > deadline:
            return done
        time.sleep(1)
