"""A control plane alone: its nodes are objects without kubelets, thousands if need be."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.cluster import build, network, requirements
from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.sandbox import Sandbox
from tests.cluster.settings import API_URL, NODE_A, cache_folder, kubernetes_version
from tests.cluster.waiting import wait_for

_API_SECONDS = 90
# No kubelet renews a lease, and a not-ready taint that nobody takes away would keep every pod off.
# Next to a load, a pod of megabytes takes the server longer than its 60 s.
_API_SERVER = {"disable-admission-plugins": "TaintNodesByCondition", "request-timeout": "2m"}
# The TTL controller writes to every node when the cluster grows; only kubelets read that.
_CONTROLLERS = {"controllers": "*,-node-lifecycle-controller,-ttl-controller"}


class Nodeless:
    """etcd, API server, controller manager and scheduler in namespaces of their own, with client limits raised.

    Whatever is started by ``enter`` ends with it.

    Attributes:
        folder: Everything that it writes; gone after the block.
        kubeconfig: The admin's, for processes inside.
        binaries: Where `kubectl` is.
        helm: The path of Helm.
    """

    def __init__(
        self,
        name: str,
        version: str | None = None,
        *,
        api_server: Mapping[str, str] | None = None,
        devices: Mapping[str, str] | None = None,
        feature_gates: str = "",
    ) -> None:
        """Make one that does not run yet.

        Args:
            name: Its folder's name, in the cache.
            version: Kubernetes version; None for the one that tests run on.
            api_server: More flags of the API server's.
            devices: Arguments of the scheduler's plugin for devices.
            feature_gates: The flag ``feature-gates`` of all its parts; empty for those that Kubernetes has by itself.
        """
        self._api_server = _API_SERVER | dict(api_server or {})
        self._devices = devices
        self._feature_gates = feature_gates
        self.version = version or kubernetes_version()
        self.folder = cache_folder() / name
        self.kubeconfig = self.folder / "kubeconfig-inside"
        self.binaries = build.kubernetes(self.version).folder
        self.helm = build.helm().folder / "helm"
        self._lock_file = cache_folder() / f"{name}.lock"
        self._sandbox = Sandbox(NODE_A.name, self.folder / "sandbox", self.folder / "logs")
        self._outside = self.folder / "kubeconfig"
        self._plane: ControlPlane | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs it for the length of the block, then removes every trace, and first what a killed run has left.

        Raises:
            Unavailable: This machine cannot run it.
            ClusterError: A part failed, or another process runs one of that name.
        """
        cache_folder().mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterError(f"{self.folder.name} is running already; give this one another name") from None
            requirements.prepare(self.version)
            self._remove()
            try:
                self._start()
                yield
            finally:
                self._remove()

    @property
    def api(self) -> Api:
        """The API server, for processes outside."""
        return Api.of(self._outside)

    def enter(self) -> Sequence[str]:
        """Returns the start of a command line that runs the rest inside."""
        return self._sandbox.enter()

    def restart_api_server(self, *, away_s: float) -> None:
        """Stops the API server, and starts another after a while; returns when it is ready.

        It knows no version from before.
        """
        assert self._plane is not None, "restart it while the block runs"
        self._sandbox.stop("kube-apiserver")
        time.sleep(away_s)
        self._plane.start_api_server(self.binaries, **_API_SERVER)
        api = Api(self._outside)
        wait_for("API server", api.ready, seconds=_API_SECONDS)

    def _start(self) -> None:
        begun = time.monotonic()
        self.folder.mkdir(parents=True)
        folder = self.folder / "control-plane"
        plane = self._plane = ControlPlane(
            folder, self._sandbox, self._outside, devices=self._devices, feature_gates=self._feature_gates
        )
        authority = plane.write_files()
        self._sandbox.start()
        network.alone(self._sandbox)
        plane.open_from_outside(authority)
        plane.start_etcd(self.binaries)
        plane.start_api_server(self.binaries, **self._api_server)
        api = Api(self._outside)

        def ready() -> bool:
            self._sandbox.check("etcd")
            self._sandbox.check("kube-apiserver")
            return api.ready()

        wait_for("API server", ready, seconds=_API_SECONDS)
        plane.start_controllers(self.binaries, **_CONTROLLERS)
        wait_for(
            "service accounts",
            lambda: api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
            seconds=_API_SECONDS,
        )
        self._write_kubeconfig()
        print(f"Kubernetes {self.version} without nodes is up after {time.monotonic() - begun:.0f} s", flush=True)

    def _write_kubeconfig(self) -> None:
        """The admin's way inside is the direct one: what leads in from outside would be measured too."""
        content = json.loads(self._outside.read_text())
        content["clusters"][0]["cluster"]["server"] = API_URL
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(content))

    def _remove(self) -> None:
        self._sandbox.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():  # say which file it is
            shutil.rmtree(self.folder)
