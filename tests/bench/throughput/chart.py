"""A checkout's chart without its pods: rights, policies, class and webhook configurations on the bare control plane."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.errors import ClusterError
from tests.cluster.settings import NODE_A
from tests.deploy import NAMESPACE, RELEASE

_PODS = {"Deployment": "controller webhook", "DaemonSet": "node"}
_LEFT_OUT = {*_PODS, "Pod", "PodDisruptionBudget", "NetworkPolicy"}
Tools = Mapping[str, Path]


class Chart:
    """What one checkout's chart says.

    Attributes:
        objects: All that is installed.
        arguments: What `python -m` is given for each part, by the part's name.
    """

    def __init__(self, rendered: str) -> None:
        found = [each for each in yaml.safe_load_all(rendered) if each]
        self.objects = [each for each in found if each["kind"] not in _LEFT_OUT]
        self.arguments: dict[str, list[str]] = {}
        for each in found:
            if each["kind"] in _PODS:
                part = each["metadata"]["labels"]["app.kubernetes.io/component"]
                self.arguments[part] = _filled(each["spec"]["template"]["spec"]["containers"][0]["args"], part)
        services = [each for each in self.objects if each["kind"] == "Service"]
        for service in services:
            # Without a selector the endpoints are ours to say.
            del service["spec"]["selector"]
            self.objects.append(_endpoints(service, port=self.port("webhook", "--port")))
        self.objects.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def use_policies(self, text: str, file: Path) -> None:
        """Have all parts follow these policies: in the chart's ConfigMap, and in the file that is mounted from it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for each in self.objects:
            if each["kind"] == "ConfigMap" and file.name in (each.get("data") or {}):
                each["data"][file.name] = text
        for part, words in self.arguments.items():
            self.arguments[part] = [f"--policies={file}" if word.startswith("--policies=") else word for word in words]

    def port(self, part: str, option: str) -> int:
        """Return the number that a part's option has."""
        return next(int(word.partition("=")[2]) for word in self.arguments[part] if word.startswith(f"{option}="))


async def render(helm: Path, tree: Path, home: Path, *settings: str) -> Chart:
    """Return the chart of a checkout with its own defaults but these settings.

    Raises:
        ClusterError: Helm refuses it.
    """
    command = [helm, "template", RELEASE, tree / "helm/gpu-topology-dra", "--namespace", NAMESPACE]
    # Nothing of the nodes' part is installed but its policies; a machine must be named.
    command += ["--set", "discovery=simulated", "--set", "simulated.default=dgx-h100", "--kube-version", "1.36.0"]
    command += [word for setting in settings for word in ("--set", setting)]
    homes = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    return Chart(await _run(*map(str, command), environment=homes))


class Kubectl:
    """kubectl as the admin."""

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self._words = [str(binary), f"--kubeconfig={kubeconfig}"]

    async def apply(self, chart: Chart) -> None:
        """Create or change all objects of a chart."""
        await self("apply", "--server-side", "--force-conflicts", "-f", "-", text=_listed(chart.objects))

    async def remove(self, chart: Chart) -> None:
        """Delete them and wait until they are gone; the namespace stays, which the next chart needs."""
        objects = [each for each in chart.objects if each["kind"] != "Namespace"]
        await self("delete", "--ignore-not-found", "--timeout=60s", "-f", "-", text=_listed(objects))

    async def token(self, part: str) -> str:
        """Return a token of a part's service account, good for a day."""
        return await self("create", "token", f"{RELEASE}-{part}", "-n", NAMESPACE, "--duration=24h")

    async def __call__(self, *arguments: str, text: str = "") -> str:
        """Return the output.

        Raises:
            ClusterError: It failed.
        """
        return await _run(*self._words, *arguments, text=text)


async def _run(*command: str, text: str = "", environment: Mapping[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    out, problems = await process.communicate(text.encode())
    if process.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {problems.decode().strip()}")
    return out.decode()


def _filled(words: list[str], part: str) -> list[str]:
    values = {"$(NAMESPACE)": NAMESPACE, "$(POD_NAME)": f"{part}-0", "$(NODE_NAME)": NODE_A.name}
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def _endpoints(service: Mapping[str, Any], *, port: int) -> dict[str, Any]:
    metadata = service["metadata"]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {"kubernetes.io/service-name": metadata["name"]},
        },
        "addressType": "IPv4",
        "ports": [{"name": service["spec"]["ports"][0]["name"], "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [NODE_A.address], "conditions": {"ready": True}}],
    }


def _listed(objects: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
