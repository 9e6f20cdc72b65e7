"""Writes the pods of Kubeflow's training operator anew, with a program of it that you have.

    python -m tests.captured.kubeflow PROGRAM SOURCE VERSION

PROGRAM is ``go build ./cmd/training-operator.v1`` of SOURCE, the module github.com/kubeflow/training-operator.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.captured import FOLDER
from tests.captured.__main__ import CONTAINER, Object, bare
from tests.cluster.nodeless import Nodeless
from tests.cluster.waiting import wait_for

_SPECS: Final = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 2}),
    "TFJob": ("tfReplicaSpecs", "tensorflow", {"Chief": 1, "Worker": 2, "PS": 1}),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 1}),
    "JAXJob": ("jaxReplicaSpecs", "jax", {"Worker": 2}),
    "PaddleJob": ("paddleReplicaSpecs", "paddle", {"Worker": 2}),
}
_WITHOUT: Final = ("PS",)  # roles without GPUs
_CERTIFICATES: Final = Path("/tmp/k8s-webhook-server/serving-certs")  # where it looks for them: no kubelet mounts any
_HOOK: Final = "validator.training-operator.kubeflow.org"
_SETTING_UP: Final[tuple[Object, ...]] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubeflow"}},
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "training-operator-webhook-cert", "namespace": "kubeflow"},
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": _HOOK},
    },
)


def main(program: str, source: str, version: str) -> None:
    plane = Nodeless("cap-kubeflow")
    jobs = [_job(kind) for kind in _SPECS] + [_elastic()]
    expected = sum(sum(roles.values()) for _, _, roles in _SPECS.values()) + 3
    with plane.running(), tempfile.TemporaryDirectory() as folder:
        kubectl = _kubectl(plane)
        kubectl("create", "-f", "-", sent=_list([*_SETTING_UP]))
        # Its descriptions are longer than what kubectl apply would note.
        for crd in sorted(Path(source, "manifests/base/crds").glob("kubeflow.org_*.yaml")):
            kubectl("create", "-f", str(crd))
        wait_for("its kinds", lambda: "xgboostjobs" in kubectl("api-resources"), seconds=30)
        command = [*plane.enter(), "env", f"KUBECONFIG={plane.kubeconfig}", program]
        with Path(folder, "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as operator:
            try:
                _mount(kubectl, plane)
                wait_for("it", lambda: b"registering controllers" in Path(folder, "log").read_bytes(), seconds=180)
                time.sleep(3)
                kubectl("create", "-f", "-", sent=_list(jobs))
                wait_for("its pods", lambda: len(_pods(kubectl)) >= expected, seconds=60)
            except BaseException:
                sys.stderr.write(Path(folder, "log").read_text()[-4000:])
                raise
            finally:
                operator.terminate()
        made = json.loads(kubectl("get", ",".join(f"{kind.lower()}s" for kind in _SPECS), "-o", "json"))["items"]
        found = {"pods": [bare(pod) for pod in _pods(kubectl)], "owners": [bare(owner) for owner in made]}
    (FOLDER / f"training-operator-{version}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _job(kind: str) -> Object:
    field, container, roles = _SPECS[kind]

    def replica(role: str, count: int) -> Object:
        mine = {"name": container, "image": "busybox"} if role in _WITHOUT else CONTAINER | {"name": container}
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [mine]}}}

    spec = {field: {role: replica(role, count) for role, count in roles.items()}}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}


def _elastic() -> Object:
    job = _job("PyTorchJob")
    del job["spec"]["pytorchReplicaSpecs"]["Master"]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    job["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
    return job | {"metadata": {"name": "elastic"}}


def _list(objects: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def _pods(kubectl: Callable[..., Any]) -> list[Object]:
    return list(json.loads(kubectl("get", "pods", "-o", "json"))["items"])


def _kubectl(plane: Nodeless) -> Callable[..., Any]:
    def run(*words: str, sent: object = None) -> Any:
        command = [*plane.enter(), str(plane.binaries / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words]
        said = None if sent is None else json.dumps(sent)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, input=said, timeout=60).stdout

    return run


def _mount(kubectl: Callable[..., Any], plane: Nodeless) -> None:
    """Write its certificates, once it has made them, to where a kubelet would mount them in its sandbox."""

    def data() -> dict[str, str]:
        secret = kubectl("get", "secret", "-n", "kubeflow", "training-operator-webhook-cert", "-o", "json")
        return dict(json.loads(secret).get("data") or {})

    wait_for("its certificates", lambda: "tls.crt" in data(), seconds=60)
    inside = [*plane.enter(), "sh", "-c"]
    for name, text in data().items():
        write = f"mkdir -p {_CERTIFICATES} && cat > {_CERTIFICATES}/{name}"
        subprocess.run([*inside, write], check=True, input=base64.b64decode(text), timeout=30)


if __name__ == "__main__":
    main(*sys.argv[1:])
