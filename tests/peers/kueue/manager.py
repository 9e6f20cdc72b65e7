"""Kueue's manager: its own chart installed without its pods, and run as a process with its service account."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import NODE_A
from tests.peers import beside

NAMESPACE: Final = "kueue-system"

_WEBHOOK: Final = 9543
_SERVICE: Final = "kueue-webhook-service"
_NEEDED: Final = (
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
    "ValidatingWebhookConfiguration",
)


class Kueue:
    """One Kueue beside a control plane.

    Args:
        plane: The control plane.
        kubectl: Its admin.
        manager: The path of Kueue's program.
        chart: The folder of its chart, of the same version.
    """

    def __init__(self, plane: Nodeless, kubectl: beside.Kubectl, *, manager: Path, chart: Path) -> None:
        self._manager = manager
        self._chart = chart
        self._plane = plane
        self._kubectl = kubectl
        self._folder = plane.folder / "kueue"
        self._certificates = self._folder / "certificates"

    async def install(self) -> None:
        """Install what its chart has but the pods; its webhooks are asked at a port of this machine."""
        self._certificates.mkdir(parents=True)
        homes = {f"HELM_{kind}_HOME": str(self._folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        words = ["template", "kueue", str(self._chart), "-n", NAMESPACE, "--kube-version", "1.36.0"]
        rendered = beside.output([self._plane.helm, *words], self._folder, **homes)
        objects = [one for one in yaml.load_all(rendered, yaml.CSafeLoader) if one and one["kind"] in _NEEDED]
        for service in (one for one in objects if one["kind"] == "Service"):
            del service["spec"]["selector"]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await self._kubectl.apply(namespace, *objects, _endpoints())
        words = ["create", "token", "kueue-controller-manager", "-n", NAMESPACE, "--duration=24h"]
        content = json.loads(self._plane.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": await self._kubectl.run(*words)}
        (self._folder / "kubeconfig").write_text(json.dumps(content))

    @contextlib.asynccontextmanager
    async def running(self, resources: Mapping[str, Any], **gates: bool) -> AsyncIterator[None]:
        """Run it for the length of the block, with ``resources`` of its configuration and these feature gates.

        Raises:
            ClusterError: It ended or is not ready in time; the message has the end of its log.
        """
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f":{beside.HEALTH}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": _WEBHOOK, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": True},
            "integrations": {"frameworks": ["batch/job", "pod", "deployment", "statefulset"]},
            "resources": dict(resources),
        }
        file = self._folder / "configuration.yaml"
        file.write_text(yaml.safe_dump(configuration))
        every = ",".join(f"{gate}={str(on).lower()}" for gate, on in ({"VisibilityOnDemand": False} | gates).items())
        flags = [f"--config={file}", f"--feature-gates={every}", "--zap-log-level=info"]
        command: list[str | Path] = [self._manager, *flags]
        environment = {"KUBECONFIG": str(self._folder / "kubeconfig")}
        log = self._folder / "kueue.log"
        async with beside.process(command, log, environment, meanwhile=self._mount):
            yield

    async def _mount(self) -> None:
        """Write the certificate that it makes itself where its pod would have it mounted."""
        words = ("get", "secret", "kueue-webhook-server-cert", "-n", NAMESPACE, "-o", "json")
        data: dict[str, str] = {}
        while "tls.key" not in data:
            await asyncio.sleep(0.2)
            data = json.loads(await self._kubectl.run(*words)).get("data", {})
        for name, value in data.items():
            (self._certificates / name).write_bytes(base64.b64decode(value))


def _endpoints() -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": _SERVICE, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": _SERVICE}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": _WEBHOOK, "protocol": "TCP"}],
        "endpoints": [{"addresses": [NODE_A.address], "conditions": {"ready": True}}],
    }
