"""The programs in the cluster: an image of each, and the manifests of its own source with that image."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import Cluster, build, oci
from tests.cluster.settings import (
    JOBSET,
    KUEUE,
    LEADER_WORKER_SET,
    MPI_OPERATOR,
    TRAINER,
    TRAINING_OPERATOR,
    Program,
    cache_folder,
)
from tests.e2e.kubectl import eventually

Object = dict[str, Any]

_LEFT_OUT: Final = ("Namespace", "APIService")  # the test cluster's API server hands nothing on to others
_USER: Final = "65532:65532"  # as in their own images, which are distroless


@dataclass(frozen=True)
class Installation:
    """How a program is brought into the cluster.

    Attributes:
        program: Which one.
        namespace: Where it runs.
        render: Returns its manifests as YAML, from the folder of its source.
        kinds: A kind of its own that it has an admission webhook for: it is ready when that answers. Empty without one.
        spec: Of an object of that kind that its webhook lets in.
        files: More files of its image, by their paths below the root.
    """

    program: Program
    namespace: str
    render: Callable[[Cluster, Path], str]
    api_version: str = ""
    kind: str = ""
    spec: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def _chart(folder: str, name: str, namespace: str) -> Callable[[Cluster, Path], str]:
    def render(cluster: Cluster, source: Path) -> str:
        words = ("template", name, str(source / folder), "--namespace", namespace, "--include-crds")
        return cluster.helm(*words, "--kube-version", cluster.version).stdout

    return render


def _kustomization(folder: str) -> Callable[[Cluster, Path], str]:
    return lambda cluster, source: cluster.kubectl("kustomize", str(source / folder)).stdout


def _trainer(cluster: Cluster, source: Path) -> str:
    """Its overlay without the line that fetches JobSet, which it says is to go where JobSet is installed."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "manifests"
        shutil.copytree(source / "manifests", copied, copy_function=shutil.copyfile)
        for path in (copied, *copied.rglob("*")):
            path.chmod(0o755)
        overlay = copied / "overlays" / "manager" / "kustomization.yaml"
        lines = overlay.read_text().splitlines(keepends=True)
        overlay.write_text("".join(line for line in lines if "third-party/jobset" not in line))
        return cluster.kubectl("kustomize", str(overlay.parent)).stdout


_POD: Final = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}}
_NO_JOBS: Final = {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": _POD}}}]}

JOB_SET: Final = Installation(
    JOBSET,
    "jobset-system",
    _chart("charts/jobset", "jobset", "jobset-system"),
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    _NO_JOBS,
)
LWS: Final = Installation(
    LEADER_WORKER_SET,
    "lws-system",
    _chart("charts/lws", "lws", "lws-system"),
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    {"leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": _POD["spec"]["containers"]}}}},
)
QUEUES: Final = Installation(
    KUEUE,
    "kueue-system",
    _chart("charts/kueue", "kueue", "kueue-system"),
    "kueue.x-k8s.io/v1beta2",
    "ResourceFlavor",
    {},
)
MPI: Final = Installation(MPI_OPERATOR, "mpi-operator", _kustomization("manifests/overlays/standalone"))
# Its own asks the cluster's DNS for the master again and again, and nothing answers there.
_NO_DNS: Final = "- {name: init-pytorch, image: busybox, imagePullPolicy: IfNotPresent, command: ['true']}"
TRAINING: Final = Installation(
    TRAINING_OPERATOR,
    "kubeflow",
    _kustomization("manifests/overlays/standalone"),
    "kubeflow.org/v1",
    "PyTorchJob",
    {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}}},
    {"etc/config/initContainer.yaml": _NO_DNS},
)
TRAIN: Final = Installation(
    TRAINER,
    "kubeflow-system",
    _trainer,
    "trainer.kubeflow.org/v1alpha1",
    "TrainingRuntime",
    {"template": {"spec": {"replicatedJobs": _NO_JOBS["replicatedJobs"]}}},
)


@contextmanager
def installed(cluster: Cluster, *wanted: Installation) -> Iterator[None]:
    """Have these programs in the cluster for the length of the block; afterwards nothing of them is left.

    Raises:
        ClusterError: One cannot be built, or is refused by the cluster.
        AssertionError: One is not ready in time.
    """
    with ExitStack() as stack:
        for one in wanted:
            stack.enter_context(_installed(cluster, one))
        yield


@contextmanager
def _installed(cluster: Cluster, one: Installation) -> Iterator[None]:
    image = _load(cluster, one.program, one.files)
    objects = _objects(cluster, one, image)
    text = yaml.dump_all(objects, Dumper=yaml.CSafeDumper)
    try:
        # A kind and what is of it come in one file, and some are longer than what a client's apply would note.
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
        for made in objects:
            if made["kind"] == "Deployment":
                rollout = ("rollout", "status", f"deployment/{made['metadata']['name']}", "--timeout=180s")
                cluster.kubectl("-n", one.namespace, *rollout)
        if one.kind:
            _answers(cluster, one)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", input=text)


def _objects(cluster: Cluster, one: Installation, image: str) -> list[Object]:
    """Return what a program's manifests say, its namespace first, with the image that the nodes have."""
    rendered = [
        made for made in yaml.load_all(one.render(cluster, build.source(one.program)), yaml.CSafeLoader) if made
    ]
    for made in rendered:
        if made["kind"] == "Deployment":
            (container,) = made["spec"]["template"]["spec"]["containers"]
            container |= {"image": image, "imagePullPolicy": "Never"}
            container.pop("resources", None)  # they ask for a whole CPU, of which a small machine's nodes have two
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.namespace}}
    return [namespace, *(made for made in rendered if made["kind"] not in _LEFT_OUT)]


def _answers(cluster: Cluster, one: Installation) -> None:
    """Wait until its webhooks let an object in: their certificates are made and told to the server by and by."""
    made = {
        "apiVersion": one.api_version,
        "kind": one.kind,
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": dict(one.spec or {}),
    }
    text, said = json.dumps(made), [""]

    def answers() -> bool:
        done = cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text, check=False)
        said[0] = done.stderr
        return done.returncode == 0

    try:
        eventually(f"{one.program.name} answers", answers, timeout_s=120)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[0]}") from None


def _load(cluster: Cluster, program: Program, files: Mapping[str, str]) -> str:
    """Give the nodes an image of a program, built unless it is. Returns its name."""
    manager = build.program(program).ensure() / "manager"
    reference = f"{program.name}:{program.version}"
    made_by = (program.pinned, Path(oci.__file__).read_text(), _USER, repr(files))
    mark = hashlib.sha256("\n".join(made_by).encode()).hexdigest()[:12]
    tar = cache_folder() / "images" / f"{program.name}-{mark}.tar"
    if not tar.exists():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tmp").mkdir()
            (Path(folder) / "tmp").chmod(0o1777)
            shutil.copy(manager, folder)
            for path, text in files.items():
                (Path(folder) / path).parent.mkdir(parents=True)
                (Path(folder) / path).write_text(text)
            oci.write_oci_tar(tar, reference=reference, rootfs=Path(folder), entrypoint=["/manager"], user=_USER)
    cluster.load_image(tar)
    return reference
