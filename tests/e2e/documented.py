"""Runs the sessions that a document shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import consoles
from tests.cluster import Cluster, build
from tests.paths import REPO


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
    tools = (Path(cluster.kubectl_command).parent, build.helm().folder, Path(sys.executable).parent)
    own = {"KUBECONFIG": str(kubeconfig), "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]])}
    own |= {f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
    for command in consoles.commands(page):
        line = ["bash", "-c", command.text]
        done = subprocess.run(
            line, cwd=REPO, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **own}
        )
        at = f"{page.name}:{command.line}: {command.text}"
        assert not done.returncode, f"{at}: {done.stdout}{done.stderr}"
        different = consoles.differs(command, done.stdout)
        assert not different, f"{at}\nnot as shown: {different}\n{done.stdout}"
