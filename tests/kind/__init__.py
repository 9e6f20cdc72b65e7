"""A cluster of kind, for machines that have Docker, with the interface of the local one as far as the demo needs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.cluster.settings import cache_folder
from tests.paths import REPO

NAME = "gpu-topology"


class KindCluster:
    """A kind cluster with the interface of the local one, as far as the demo needs it."""

    machines = {f"{NAME}-worker": "dgx1-v100", f"{NAME}-worker2": "dgx-h100"}  # noqa: RUF012  # a constant
    tool_folders: tuple[Path, ...] = ()  # kubectl and helm are those of the PATH

    @property
    def kubeconfig(self) -> Path:
        """The file that kubectl is pointed at."""
        return cache_folder() / "kind" / "kubeconfig"

    def why_not(self) -> str | None:
        """Return why this machine cannot run kind, or None."""
        missing = [tool for tool in ("docker", "kind", "kubectl", "helm") if shutil.which(tool) is None]
        if missing:
            return f"CLUSTER=kind needs {', '.join(missing)}"
        if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            return "CLUSTER=kind needs a running Docker engine"
        return None

    def up(self) -> None:
        """Create the cluster unless it is there."""
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        there = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True).stdout.split()
        if NAME in there:
            self._run("kind", "export", "kubeconfig", "--name", NAME)
        else:
            config = str(Path(__file__).with_name("kind.yaml"))
            self._run("kind", "create", "cluster", "--name", NAME, "--config", config, "--wait", "120s")

    def down(self) -> None:
        """Delete the cluster."""
        self._run("kind", "delete", "cluster", "--name", NAME)

    def load_driver(self) -> None:
        """Build the image with Docker and give it to the nodes."""
        self._run("docker", "build", "--tag", "gpu-topology-dra:test", "--file", "image/Dockerfile", ".")
        self._run("kind", "load", "docker-image", "--name", NAME, "gpu-topology-dra:test")

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:  # noqa: A002  # subprocess's own word
        """Run kubectl on the cluster."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *args]
        return subprocess.run(command, input=input, capture_output=True, text=True, check=check)

    def helm(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run helm on the cluster."""
        command = ["helm", "--kubeconfig", str(self.kubeconfig), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    def _run(self, *command: str) -> None:
        writes_config = command[:2] in (("kind", "create"), ("kind", "export"))
        kubeconfig = ["--kubeconfig", str(self.kubeconfig)] if writes_config else []
        subprocess.run([*command, *kubeconfig], cwd=REPO, check=True)
