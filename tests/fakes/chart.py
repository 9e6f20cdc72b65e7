"""What Helm makes of the chart, for tests."""

from __future__ import annotations

import functools
import itertools
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests import needs
from tests.paths import REPO

CHART = REPO / "helm" / "gpu-topology-dra"
KUBERNETES = ("1.34.4", "1.35.4", "1.36.3", "1.37.2")
SIMULATED = ("discovery=simulated", "simulated.default=dgx-h100")
PREFERRED = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "simulated": (*SIMULATED, "simulated.machines.node-a=dgx1-v100", "simulated.machines.b=dgx-h100"),
    "mounted": (
        "webhook.certificates.mode=mounted",
        "webhook.certificates.secretName=tls",
        "webhook.certificates.caBundle=YWI=",
        "webhook.configurationAnnotations.a/b=c",
        "networkPolicy.enabled=false",
    ),
    "certManager": ("webhook.certificates.mode=certManager", "webhook.configurationAnnotations.a/b=c"),
    "issuer": (
        "webhook.certificates.mode=certManager",
        "webhook.certificates.secretName=tls",
        "webhook.certificates.certManager.issuerRef.name=house",
        "webhook.certificates.certManager.issuerRef.kind=ClusterIssuer",
    ),
    "pods": (
        "mps.enabled=true",
        "priorityQuota=true",
        "viewer.subjects[0].kind=Group",
        "viewer.subjects[0].name=ml-team",
        "viewer.subjects[1].kind=ServiceAccount",
        "viewer.subjects[1].name=dashboard",
        *(
            f"{part}.{word}"
            for part in ("node", "mps", "controller", "webhook")
            for word in (
                "podLabels.team=gpus",
                "podAnnotations.a=b",
                f"{PREFERRED}.weight=1",
                f"{PREFERRED}.preference.matchExpressions[0].key=zone",
                f"{PREFERRED}.preference.matchExpressions[0].operator=Exists",
            )
        ),
    ),
    "addon": ("allocatingDriver=gpu.nvidia.com",),
    "gangs": tuple(
        f"controller.gangOwners.{kind}.suspend=true"
        for kind in (
            *("Job", "StatefulSet", "JobSet", "LeaderWorkerSet", "TrainJob"),
            *("PyTorchJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob", "MPIJob"),
        )
    ),
    "evictions": ("controller.idleEviction=true",),
    "preemption": ("controller.preemption=true", "controller.gangOwners.Job.suspend=true"),
    "translate": ("webhook.translate=all",),
    "nvsentinel": ("nvsentinel.annotatePods=true",),
    "partitions": (
        "policies.tenants.vision.namespaces[0]=team-vision",
        "policies.tenants.vision.namespaces[1]=vision",
        "policies.tenants.vision.partition.numbers[0]=1",
        "policies.tenants.open.namespaces[0]=open",
        "policies.tenants.open.partition.numbers[0]=2",
        "policies.tenants.open.schedulerPlaced=allow",
        "policies.tenants.any.namespaces[0]=any",
    ),
    "exclusive": (
        "policies.gpus[0].numbers[0]=1",
        "policies.gpus[0].shared=time-slicing",
        "policies.gpus[0].exclusiveTo=namespace",
        "policies.gpus[1].mig=dynamic",
    ),
    "mps": ("mps.enabled=true", "driverRoot=/run/nvidia/driver", "kubeletRoot=/data/kubelet"),
    "page": ("page.enabled=true",),
    "proxied": (
        "page.enabled=true",
        "page.address=0.0.0.0",
        "page.hosts={gpus.example.com,::1}",
        "networkPolicy.pageFrom[0].namespaceSelector.matchLabels.team=ingress",
        "page.extraContainers[0].name=proxy",
        "page.extraContainers[0].image=example.com/proxy",
    ),
    "ipv6": (
        "page.enabled=true",
        "page.address=::",
        "page.hosts={fd00::,::1}",
        "networkPolicy.pageFrom[0].podSelector.matchLabels.app=proxy",
        "webhook.excludedNamespaces=null",
    ),
    "bare": (
        "node.priorityClassName=",
        "controller.priorityClassName=",
        "node.tolerations=null",
        "node.resources=null",
    ),
    "full": (
        "imagePullSecrets[0].name=pull",
        "logFormat=json",
        "verbose=true",
        "node.allowDevicePlugin=true",
        "node.nodeSelector.gpu=yes",
        "node.podAnnotations.a=b",
        "controller.tolerations[0].operator=Exists",
        "controller.replicas=1",
        "webhook.excludedNamespaces[0]=monitoring",
        "driverRoot=/run/nvidia/driver",
        "kubeletRoot=/data/kubelet",
        "cdiRoot=/etc/cdi",
        "networkPolicy.apiServerCidrs[0]=10.0.0.0/28",
        "networkPolicy.apiServerCidrs[1]=fd00::/64",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    ),
}

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML was built with it


@functools.cache
def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(needs.helm()), *arguments], capture_output=True, text=True, check=False, cwd=REPO)


def template(
    *settings: str, namespace: str = "gpu-topology", kubernetes: str = "1.36.3", values: Path | None = None
) -> str:
    done = run(
        *("template", "gpu-topology", str(CHART), "--namespace", namespace, "--kube-version", kubernetes),
        *(word for setting in settings for word in ("--set", setting)),
        *(() if values is None else ("--values", str(values))),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*settings: str, kubernetes: str = "1.36.3") -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rendered objects by kind and name; two of one name are an error."""
    documents: list[dict[str, Any]] = msgspec.json.decode(_documents(settings, kubernetes))
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


# As JSON, because each caller gets objects of its own, and JSON is read a hundred times as fast as YAML.
@functools.cache
def _documents(settings: tuple[str, ...], kubernetes: str) -> bytes:
    rendered = template(*settings, kubernetes=kubernetes)
    return msgspec.json.encode([document for document in yaml.load_all(rendered, Loader=_LOADER) if document])


def workload(part: str, *settings: str) -> dict[str, Any]:
    kind = "DaemonSet" if part in ("node", "mps") else "Deployment"
    return objects(*settings)[kind, f"gpu-topology-{part}"]


def container(part: str, *settings: str) -> dict[str, Any]:
    (found,) = workload(part, *settings)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def rules(kind: str, part: str, *settings: str) -> list[tuple[str, str, tuple[str, ...], set[str]]]:
    """Each rule as group, resource, names and verbs."""
    return [
        (group, resource, tuple(rule.get("resourceNames", ())), set(rule["verbs"]))
        for rule in objects(*settings)[kind, f"gpu-topology-{part}"]["rules"]
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"])
    ]
