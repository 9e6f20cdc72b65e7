"""What the end-to-end tests do to a cluster, in the words of kubectl."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.paths import REPO

IMAGE = "busybox"
FOREVER = ["sh", "-c", "while true; do sleep 3600; done"]
T = TypeVar("T")


def pod(
    name: str,
    *,
    gpus: int | Mapping[str, int] = 0,
    words: Mapping[str, str] | None = None,
    node: str | None = None,
    cpu: str = "10m",
    command: Sequence[str] = FOREVER,
) -> dict[str, Any]:
    """Return a pod's manifest as a user writes it; ``gpus`` by container name makes several containers."""
    counts = gpus if isinstance(gpus, Mapping) else {"main": gpus}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({"annotations": dict(words)} if words else {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {
                    "name": container,
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": list(command),
                    "resources": {
                        "requests": {"cpu": cpu},
                        "limits": {names.GPU_RESOURCE: count} if count else {},
                    },
                }
                for container, count in counts.items()
            ],
        },
    }


def claim_template(name: str, device_class: str, amounts: Mapping[str, str] | None, *cel: str) -> dict[str, Any]:
    """Return a template of claims for one device of a class, of which so much is asked, and that CEL selects."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    exactly |= {"selectors": [{"cel": {"expression": text}} for text in cel]} if cel else {}
    exactly |= {"capacity": {"requests": dict(amounts)}} if amounts else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod_of_template(name: str, template: str, *, node: str) -> dict[str, Any]:
    """Return a pod without any word of ours, with a claim made from a template."""
    made = pod(name, node=node)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return made


@dataclass(frozen=True)
class Namespace:
    """One namespace of the cluster, and kubectl inside it."""

    cluster: Cluster
    name: str

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.kubectl("-n", self.name, *args, input=stdin, check=check)

    def apply(self, *objects: Mapping[str, Any], check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects), check=check)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.cluster.api.object(kind, name, namespace=self.name)

    def list(self, kind: str) -> list[dict[str, Any]]:
        return self.cluster.api.objects(kind, namespace=self.name)

    def wait_running(self, *pods: str, timeout_s: int = 90) -> None:
        targets = [f"pod/{name}" for name in pods]
        waited = self.kubectl("wait", "--for=condition=Ready", f"--timeout={timeout_s}s", *targets, check=False)
        if waited.returncode:
            shown = self.kubectl("describe", *targets, check=False).stdout
            raise AssertionError(f"{waited.stderr}\n{shown}")

    def delete(self, *pods: str) -> None:
        self.kubectl("delete", "pod", *pods, "--timeout=90s")

    def annotation(self, name: str, key: str) -> str | None:
        text: str | None = self.get("pod", name)["metadata"].get("annotations", {}).get(key)
        return text

    def node(self, name: str) -> str:
        """Return the node that a pod is bound to; empty for none."""
        node: str = self.get("pod", name)["spec"].get("nodeName", "")
        return node

    def devices(self, name: str, container: str = "main") -> set[str]:
        """Return the GPU device nodes that the container sees."""
        shown = self.kubectl("exec", name, "-c", container, "--", "ls", "/dev").stdout.split()
        return {f"/dev/{entry}" for entry in shown if entry.startswith("nvidia")}


def eventually(
    what: str, probe: Callable[[], T | None], *, timeout_s: float = 60, why: Callable[[], object] = str
) -> T:
    """Return the probe's first true answer; ``why`` says what is in the way.

    Raises:
        AssertionError: None came in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what} {why()}")
        time.sleep(0.2)  # kubectl cannot wait for this kind of thing


def gputopo(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run our command line against a cluster, as its admin would."""
    command = "from dradriver.cli.main import main; main()"
    line = [sys.executable, "-c", command, *arguments, "--kubeconfig", str(kubeconfig)]
    return subprocess.run(line, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)


def controller_log(cluster: Cluster) -> str:
    """Return the end of what each replica of the controller says."""
    chosen = "app.kubernetes.io/component=controller"
    return cluster.kubectl("-n", deploy.NAMESPACE, "logs", "-l", chosen, "--prefix", "--tail=200", check=False).stdout


def told_why(namespace: Namespace, name: str) -> str:
    """Return what a gated pod says of why it waits, once it does."""
    try:
        found = eventually(f"{name} is told why it waits", lambda: namespace.annotation(name, names.REASON))
    except AssertionError as error:
        shown = namespace.kubectl("get", "pods,resourceclaims", "-o", "yaml").stdout
        raise AssertionError(f"{error}\n{shown}\n{controller_log(namespace.cluster)}") from error
    assert namespace.get("pod", name)["spec"]["schedulingGates"]
    return found


def owners(cluster: Cluster) -> dict[str, list[str]]:
    """Return the claims that hold each GPU or part that is allocated: more than one is the worst bug there is."""
    held: dict[str, list[str]] = {}
    for claim in cluster.api.objects("resourceclaims"):
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
            if result["driver"] == names.DRIVER and not names.is_seat(result["driver"], result["pool"]):
                held.setdefault(f"{result['pool']}/{result['device']}", []).append(claim["metadata"]["name"])
    return held


def no_gpu_is_owned_twice(cluster: Cluster) -> bool:
    return all(len(claims) == 1 for claims in owners(cluster).values())
