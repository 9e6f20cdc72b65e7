"""etcd, API server, controller manager and scheduler, all in node-a's namespaces."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import configs, kubeconfig
from tests.cluster.certificates import Authority
from tests.cluster.sandbox import Sandbox
from tests.cluster.settings import API_PORT, API_SERVICE, API_URL, ETCD_URL, NODE_A, NODES, SERVICE_RANGE

_FORWARDER = Path(__file__).with_name("forwarder.py")
_CLIENTS = {"controller-manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler"}


class ControlPlane:
    """The four parts, their certificates, and the way to them from outside."""

    def __init__(
        self,
        folder: Path,
        sandbox: Sandbox,
        admin_kubeconfig: Path,
        *,
        devices: Mapping[str, str] | None = None,
        feature_gates: str = "",
    ) -> None:
        """``devices`` are arguments of the scheduler's plugin for devices; ``feature_gates`` are those of all parts."""
        self.folder = folder
        self._gates = {"feature-gates": feature_gates} if feature_gates else {}
        self._devices = dict(devices or {})
        self._sandbox = sandbox
        self._admin_kubeconfig = admin_kubeconfig

    def write_files(self) -> Authority:
        """Writes certificates and configurations; returns the authority for the nodes' own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(self.folder / "certificates")
        names = ["localhost", "127.0.0.1", API_SERVICE, NODE_A.address, "kubernetes", "kubernetes.default"]
        names += ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        authority.issue("apiserver", "kube-apiserver", hosts=names)
        authority.issue("apiserver-to-kubelet", "kube-apiserver", group="system:masters")
        authority.issue_key_pair("service-accounts")
        for file, user in _CLIENTS.items():
            authority.issue(file, user)
            path = self.folder / f"{file}.kubeconfig"
            kubeconfig.write_with_certificate(path, server=API_URL, authority=authority, user=user, file=file)
        for node in NODES:
            hosts = (node.name, node.address)
            authority.issue(node.name, f"system:node:{node.name}", group="system:nodes", hosts=hosts)
        scheduler = configs.scheduler(kubeconfig=self.folder / "scheduler.kubeconfig", devices=self._devices)
        (self.folder / "scheduler.json").write_text(scheduler)
        return authority

    def open_from_outside(self, authority: Authority) -> None:
        """Makes the API server reachable from the machine, and writes the admin's kubeconfig.

        Raises:
            ClusterError: The forwarder could not be started.
        """
        token = secrets.token_urlsafe(24)
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{token},admin,admin,"system:masters"\n')
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            command: list[str | Path] = [
                sys.executable,
                "-I",
                _FORWARDER,
                str(listener.fileno()),
                NODE_A.address,
                str(API_PORT),
            ]
            self._sandbox.spawn("forwarder", command, fds=[listener.fileno()])
            server = f"https://127.0.0.1:{listener.getsockname()[1]}"
        kubeconfig.write_with_token(
            self._admin_kubeconfig, server=server, authority=authority, user="admin", token=token
        )

    def start_etcd(self, binaries: Path) -> None:
        """Starts the store."""
        self._sandbox.spawn("etcd", [binaries / "kube", "etcd", self.folder / "etcd", ETCD_URL])

    def start_api_server(self, binaries: Path, **more: object) -> None:
        """Starts the API server, with more flags where given."""
        files = self.folder / "certificates"
        flags = {
            "etcd-servers": ETCD_URL,
            "bind-address": "0.0.0.0",
            "advertise-address": NODE_A.address,
            "secure-port": API_PORT,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "client-ca-file": files / "ca.crt",
            "token-auth-file": self.folder / "tokens.csv",
            "tls-cert-file": files / "apiserver.crt",
            "tls-private-key-file": files / "apiserver.key",
            "kubelet-certificate-authority": files / "ca.crt",
            "kubelet-client-certificate": files / "apiserver-to-kubelet.crt",
            "kubelet-client-key": files / "apiserver-to-kubelet.key",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": files / "service-accounts.pub",
            "service-account-signing-key-file": files / "service-accounts.key",
            # What other API servers would know it by; without it the controllers' logs are full of its absence.
            "requestheader-client-ca-file": files / "ca.crt",
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            # Lets it call a webhook by its pods' addresses: there is no service proxy.
            "enable-aggregator-routing": "true",
            "allow-privileged": "true",
            "endpoint-reconciler-type": "lease",
            "shutdown-delay-duration": "0s",
        }
        self._start(binaries, "kube-apiserver", flags | more)

    def start_controllers(self, binaries: Path, **more: object) -> None:
        """Starts controller manager, with more flags where given, and scheduler."""
        files = self.folder / "certificates"
        own = self.folder / "controller-manager.kubeconfig"
        flags = {
            "kubeconfig": own,
            "authentication-kubeconfig": own,
            "authorization-kubeconfig": own,
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": files / "service-accounts.key",
            "root-ca-file": files / "ca.crt",
            "cluster-signing-cert-file": files / "ca.crt",
            "cluster-signing-key-file": files / "ca.key",
            "kube-api-qps": 5000,
            "kube-api-burst": 5000,
        }
        self._start(binaries, "kube-controller-manager", flags | more)
        own = self.folder / "scheduler.kubeconfig"
        flags = {
            "config": self.folder / "scheduler.json",
            "authentication-kubeconfig": own,
            "authorization-kubeconfig": own,
        }
        self._start(binaries, "kube-scheduler", flags)

    def _start(self, binaries: Path, part: str, flags: dict[str, object]) -> None:
        words = [f"--{flag}={value}" for flag, value in (flags | self._gates).items()]
        self._sandbox.spawn(part, [binaries / "kube", part, *words])
