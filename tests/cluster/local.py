"""The cluster: starting it, stopping it, and the tools to talk to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import build, network, requirements
from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.images import test_images
from tests.cluster.node import Node
from tests.cluster.settings import ETCD_URL, NODE_A, NODE_B, NODES, cache_folder, kubernetes_version
from tests.cluster.waiting import wait_for

_API_SECONDS = 90
_NODES_SECONDS = 120
_BEAT_SECONDS = 20


class Cluster:
    """Two nodes with a real kubelet each, and a real control plane.

    Several clusters with different names can run side by side. The object holds
    nothing: all state is on disk, so that any process can use or end a cluster.

    Attributes:
        name: The cluster's name, its folder in the cache.
        version: The Kubernetes version that `up` starts.
        folder: Everything the cluster writes.
        kubeconfig: The admin's, valid on the machine while the cluster runs.
        logs: One log for each process.
        nodes: The nodes by name.
    """

    def __init__(self, name: str = "cluster", version: str | None = None) -> None:
        self.name = name
        self.version = version or kubernetes_version()
        self.folder = cache_folder() / name
        self.kubeconfig = self.folder / "kubeconfig"
        self.logs = self.folder / "logs"
        self._binaries = build.kubernetes(self.version).folder
        containerd = build.containerd().folder
        self.nodes = {
            node.name: Node(node, self.folder / node.name, self.logs, self._binaries, containerd) for node in NODES
        }
        self._first, self._second = self.nodes[NODE_A.name], self.nodes[NODE_B.name]
        self._control_plane = ControlPlane(self.folder / "control-plane", self._first.sandbox, self.kubeconfig)

    # ---- starting and stopping

    def up(self) -> None:
        """Starts the cluster and returns once both nodes are Ready; does nothing if it runs well.

        Builds what is not built and removes what an earlier, broken run has left.

        Raises:
            Unavailable: This machine cannot run it.
            ClusterError: A part failed; the message names the part and its log.
        """
        with self._lock():
            if self._processes_run() and self._soon_ready():
                return
            requirements.prepare(self.version)
            self._remove()
            start = time.monotonic()
            try:
                self._start()
            except BaseException:
                self._end()  # the folder with the logs stays
                raise
            seconds = time.monotonic() - start
            print(f"Kubernetes {self.version} with {len(self.nodes)} nodes is up after {seconds:.0f} s", flush=True)

    def down(self) -> None:
        """Ends the cluster and removes all of it; binaries stay. Does nothing if there is none.

        Raises:
            ClusterError: Something does not go away.
        """
        if not self.folder.exists():
            return
        with self._lock():
            self._remove()

    def is_up(self) -> bool:
        """Whether the cluster runs, with all its processes and both nodes Ready."""
        return self._processes_run() and self._nodes_ready()

    def status(self) -> str:
        """Returns a few lines on what runs and what does not."""
        version = self.folder / "version"
        lines = [f"Kubernetes {version.read_text()}"] if version.exists() else []
        for node in self.nodes.values():
            if not node.sandbox.alive():
                lines.append(f"{node.name}: not there")
                continue
            stopped = node.sandbox.stopped_parts()
            lines.append(f"{node.name}: " + (f"ended: {', '.join(stopped)}" if stopped else "all processes run"))
        if self.kubeconfig.exists():
            ready = sorted(Api(self.kubeconfig).ready_nodes())
            lines += [f"ready: {', '.join(ready) or 'no node'}", f"kubeconfig: {self.kubeconfig}"]
        return "\n".join(lines)

    # ---- using it

    @property
    def api(self) -> Api:
        """Reads objects, as the cluster's admin."""
        return Api.of(self.kubeconfig)

    @property
    def kubectl_command(self) -> str:
        """The path of kubectl."""
        return str(self._binaries / "kubectl")

    @property
    def tool_folders(self) -> tuple[Path, ...]:
        """The folders of kubectl and Helm."""
        return self._binaries, build.helm().folder

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002  # subprocess's own word
        check: bool = True,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Returns what kubectl did, as the cluster's admin.

        Raises:
            ClusterError: It failed and `check` is set.
            TimeoutExpired: It did not end in time.
        """
        return self._tool([self.kubectl_command, *arguments], input, check, timeout)

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002  # subprocess's own word
        check: bool = True,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Returns what Helm did, as the cluster's admin and without the user's own Helm settings.

        Raises:
            ClusterError: It failed and `check` is set.
            TimeoutExpired: It did not end in time.
        """
        return self._tool([str(build.helm().folder / "helm"), *arguments], input, check, timeout)

    def load_image(self, tar: Path) -> None:
        """Gives all nodes an image from an OCI or Docker tar.

        Raises:
            ClusterError: A node does not take it.
        """
        _together(*(lambda node=node: node.load_image(tar) for node in self.nodes.values()))

    def _tool(
        self, command: list[str], text: str | None, check: bool, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        helm_home = {f"HELM_{kind}_HOME": str(self.folder / "helm" / kind.lower()) for kind in _HELM_HOMES}
        environment = {**os.environ, **helm_home, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout, env=environment, check=False
        )
        if check and done.returncode != 0:
            words = " ".join([Path(command[0]).name, *command[1:]])
            raise ClusterError(f"{words}: {(done.stderr or done.stdout).strip()}")
        return done

    # ---- the steps

    def _start(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "version").write_text(self.version)
        authority = self._control_plane.write_files()
        for node in self.nodes.values():
            node.write_files(authority)
        _together(*(node.sandbox.start for node in self.nodes.values()))
        network.connect(self._first.sandbox, self._second.sandbox)
        self._control_plane.open_from_outside(authority)
        images = test_images(cache_folder() / "images")
        _together(
            self._start_control_plane,
            *(lambda node=node: node.start_containerd(images) for node in self.nodes.values()),
        )
        for node in self.nodes.values():
            node.start_kubelet()
        self._wait_for_nodes()

    def _start_control_plane(self) -> None:
        plane, sandbox, api = self._control_plane, self._first.sandbox, Api(self.kubeconfig)
        plane.start_etcd(self._binaries)
        plane.start_api_server(self._binaries)

        def ready() -> bool:
            sandbox.check("etcd")
            sandbox.check("kube-apiserver")
            return api.ready()

        def why() -> str:
            return str(sandbox.failure("kube-apiserver", f"is not ready, store at {ETCD_URL}"))

        wait_for("API server", ready, seconds=_API_SECONDS, why=why)
        plane.start_controllers(self._binaries)

    def _wait_for_nodes(self) -> None:
        api = Api(self.kubeconfig)

        def ready() -> bool:
            for node in self.nodes.values():
                for part in node.sandbox.stopped_parts():
                    node.sandbox.check(part)
            # Pods can be made only once their namespace has its service account.
            account = api.get("/api/v1/namespaces/default/serviceaccounts/default")
            return account is not None and api.ready_nodes() >= self.nodes.keys()

        def why() -> str:
            ready_ones = api.ready_nodes()
            missing = [node.sandbox for name, node in self.nodes.items() if name not in ready_ones]
            return "\n".join(str(sandbox.failure("kubelet", "is not ready")) for sandbox in missing)

        wait_for("nodes Ready", ready, seconds=_NODES_SECONDS, why=why)

    def _processes_run(self) -> bool:
        sandboxes = [node.sandbox for node in self.nodes.values()]
        if not all(sandbox.alive() and not sandbox.stopped_parts() for sandbox in sandboxes):
            return False
        version = self.folder / "version"
        return version.exists() and version.read_text() == self.version and self.kubeconfig.exists()

    def _nodes_ready(self) -> bool:
        return Api(self.kubeconfig).ready_nodes() >= self.nodes.keys()

    def _soon_ready(self) -> bool:
        """Whether its nodes are Ready, if not at once: a busy machine lets one miss a beat."""
        try:
            wait_for("nodes Ready", self._nodes_ready, seconds=_BEAT_SECONDS)
        except ClusterError:
            return False
        return True

    def _end(self) -> None:
        _together(*(node.remove for node in self.nodes.values()))

    def _remove(self) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():  # say which file it is
            shutil.rmtree(self.folder)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with (cache_folder() / f"{self.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_HELM_HOMES = ("CACHE", "CONFIG", "DATA")


def _together(*steps: Callable[[], None]) -> None:
    """Runs steps at the same time; raises the first one's error once all have ended."""
    with ThreadPoolExecutor(len(steps)) as pool:
        for future in [pool.submit(step) for step in steps]:
            future.result()
