"""Pods of gangs, and the objects that make them, written after the source of the programs that make them.

Reading an original is not running it: what running programs made is in ``tests/captured``, and is used as it stands
where there is some. Each other function names the source that its labels, annotations and variables are from.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dradriver.api.base import names
from tests.captured import captured

Object = dict[str, Any]
UID: Final = "11111111-2222-3333-4444-555555555555"
JOB_UID: Final = "66666666-7777-8888-9999-000000000000"


class Story(NamedTuple):
    """What an owner made.

    Attributes:
        pods: The pods of one gang that have GPUs, in the order of their ranks.
        others: Pods of its own that are in no gang, or in another.
        owner: The object that tells the size; None where none does.
        size: How many pods with GPUs it has.
    """

    pods: list[Object]
    others: list[Object]
    owner: Object | None
    size: tuple[int, int]


def container(gpus: int = 4, **env: str) -> Object:
    limits = {"limits": {names.GPU_RESOURCE: str(gpus)}} if gpus else {}
    return {"name": "main", "image": "i", "resources": limits} | (
        {"env": [{"name": name, "value": value} for name, value in env.items()]} if env else {}
    )


def owned(api_version: str, kind: str, name: str, uid: str = UID) -> list[Object]:
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}]


def pod(
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owners: list[Object] | None = None,
    gpus: int = 4,
    **env: str,
) -> Object:
    metadata: Object = {"name": name, "namespace": "team", "labels": dict(labels or {})}
    metadata |= {"annotations": dict(annotations or {}), "ownerReferences": owners or []}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container(gpus, **env)]}}


def made_by(api_version: str, kind: str, name: str, spec: Object, uid: str = UID) -> Object:
    metadata = {"name": name, "namespace": "team", "uid": uid}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def template(gpus: int = 4) -> Object:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container(gpus)]}}


def _completion(index: int, job: str) -> tuple[dict[str, str], dict[str, str]]:
    """Kubernetes 1.37.2, pkg/controller/job/indexed_job_utils.go and job_controller.go (captured, too)."""
    at = {"batch.kubernetes.io/job-completion-index": str(index)}
    labels = {"batch.kubernetes.io/controller-uid": JOB_UID, "batch.kubernetes.io/job-name": job}
    return labels | at, at


JOB_GROUP: Final = "train-2x8k4-train-pgt-0-9zq4c"
"""As the Job controller calls the PodGroup of a Job ``train``; each ``-`` but those of names is before a hash."""


def job_pod(index: int, *, group: str = JOB_GROUP, stored: bool = False, namespace: str = "team") -> Object:
    """Return a pod of the indexed Job ``train`` to which the Job controller gave a PodGroup (manageJob, 1.37.2).

    If not ``stored``, the webhook took it out of the group, and noted its name.
    """
    made = pod(f"train-{index}", *_completion(index, "train"), owned("batch/v1", "Job", "train"), gpus=8)
    made["metadata"]["namespace"] = namespace
    if stored:
        made["spec"]["schedulingGroup"] = {"podGroupName": group}
    elif group:
        made["metadata"]["annotations"][names.POD_GROUP] = group
    return made


def _jobset_pod(
    role: str, job: int, index: int, *, replicas: int, attempt: int = 0, gpus: int = 4, **env: str
) -> Object:
    """Written after JobSet 08dfbdf, pkg/controllers/jobset_controller.go, labelAndAnnotateObject."""
    key, name = "jobset.sigs.k8s.io/", f"train-{role}-{job}"
    both = {
        key + "jobset-name": "train",
        key + "jobset-uid": UID,
        key + "replicatedjob-name": role,
        key + "restart-attempt": str(attempt),
        key + "replicatedjob-replicas": str(replicas),
        key + "global-replicas": str(replicas + 1),
        key + "job-index": str(job),
        key + "job-key": hashlib.sha1(f"team/{name}".encode()).hexdigest(),
        key + "job-global-index": str(job),
        key + "group-name": "default",
        key + "group-replicas": str(replicas + 1),
        key + "job-group-index": str(job),
    }
    labels, annotations = _completion(index, name)
    owners = owned("batch/v1", "Job", name, f"{JOB_UID}-{role}-{job}")
    return pod(f"{name}-{index}-x", both | labels, both | annotations, owners, gpus, **env)


def jobset(attempt: int = 0) -> Story:
    """Two replicatedJobs, of which the workers are two Jobs of two pods."""

    def job(name: str, replicas: int, pods: int) -> Object:
        spec = {"parallelism": pods, "completions": pods, "template": template()}
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    owner = made_by(
        "jobset.x-k8s.io/v1alpha2", "JobSet", "train", {"replicatedJobs": [job("driver", 1, 1), job("worker", 2, 2)]}
    )
    workers = [_jobset_pod("worker", j, i, replicas=2, attempt=attempt) for j in range(2) for i in range(2)]
    return Story(workers, [_jobset_pod("driver", 0, 0, replicas=1, attempt=attempt)], owner, (4, 4))


def train_job() -> Story:
    """Written after trainer 2.0.0, pkg/runtime/framework/plugins/torch/torch.go: a JobSet, and PET_NNODES."""
    spec = {"replicas": 1, "template": {"spec": {"parallelism": 3, "completions": 3, "template": template()}}}
    first = {"name": "dataset-initializer", "replicas": 1, "template": {"spec": {"parallelism": 1, "completions": 1}}}
    owner = made_by("jobset.x-k8s.io/v1alpha2", "JobSet", "train", {"replicatedJobs": [first, {"name": "node"} | spec]})
    pods = [_jobset_pod("node", 0, i, replicas=1, PET_NNODES="3", PET_NPROC_PER_NODE="4") for i in range(3)]
    before = _jobset_pod("dataset-initializer", 0, 0, replicas=1)
    return Story(pods, [before], owner, (3, 3))


def leader_worker_set(*, leader_gpus: int = 4, group: int = 0, revision: str = "5d8f") -> Story:
    """Written after LeaderWorkerSet 060ab4d, pkg/webhooks/pod_webhook.go and pkg/controllers/pod_controller.go."""
    key = "leaderworkerset.sigs.k8s.io/"
    name = f"serve-{group}"
    common = {
        key + "name": "serve",
        key + "group-index": str(group),
        key + "group-key": hashlib.sha1(f"team/{name}".encode()).hexdigest(),
        key + "template-revision-hash": revision,
    }
    size = {key + "size": "3"}
    env = {"LWS_GROUP_SIZE": "3"}
    sets = owned("apps/v1", "StatefulSet", "serve")
    leader = pod(name, common | {key + "worker-index": "0"}, size, sets, leader_gpus, LWS_WORKER_INDEX="0", **env)
    workers = [
        pod(
            f"{name}-{i}",
            common | {key + "worker-index": str(i), "apps.kubernetes.io/pod-index": str(i)},
            size | {key + "leader-name": name},
            owned("apps/v1", "StatefulSet", name, JOB_UID),
            4,
            LWS_WORKER_INDEX=str(i),
            **env,
        )
        for i in (1, 2)
    ]
    spec = {
        "replicas": 2,
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": {"size": 3, "leaderTemplate": template(leader_gpus), "workerTemplate": template()},
    }
    owner = made_by("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", spec)
    return Story([leader, *workers] if leader_gpus else workers, [], owner, (3, 3) if leader_gpus else (2, 2))


def kubeflow(name: str, size: tuple[int, int], *, without: str = "") -> Story:
    """What training-operator 1.9.0 made, as it was captured.

    Args:
        name: The job's.
        size: How many pods with GPUs it has.
        without: A role that has no GPUs, which it had when it was captured.
    """
    found = copy.deepcopy(captured()["training-operator-1.9.0"])
    owner = next(one for one in found["owners"] if one["metadata"]["name"] == name)
    (replicas,) = (value for field, value in owner["spec"].items() if field.endswith("ReplicaSpecs"))
    if without:
        replicas[without]["template"] = template(0)
    bare = {
        role.lower() for role, one in replicas.items() if not one["template"]["spec"]["containers"][0].get("resources")
    }
    pods = [
        pod
        for pod in found["pods"]
        if pod["metadata"]["labels"]["training.kubeflow.org/job-name"] == name
        and pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] not in bare
    ]
    return Story(pods, [], owner, size)


def mpi_job() -> Story:
    """Written after mpi-operator caa3c47, pkg/controller/mpi_job_controller.go: newWorker, newLauncherPodTemplate."""
    key = "training.kubeflow.org/"
    common = {key + "operator-name": "mpi-operator", key + "job-name": "train"}
    owners = owned("kubeflow.org/v2beta1", "MPIJob", "train")
    workers = [
        pod(f"train-worker-{i}", common | {key + "job-role": "worker", key + "replica-index": str(i)}, {}, owners)
        for i in range(2)
    ]
    job = owned("batch/v1", "Job", "train-launcher", JOB_UID)
    launcher = pod("train-launcher-x", common | {key + "job-role": "launcher"}, {}, job, 4)
    replicas = {"Launcher": {"replicas": 1, "template": template(0)}, "Worker": {"replicas": 2, "template": template()}}
    owner = made_by("kubeflow.org/v2beta1", "MPIJob", "train", {"mpiReplicaSpecs": replicas})
    return Story(workers, [launcher], owner, (2, 2))


def mpi_job_with_working_launcher(*, created: str = "AtStartup") -> Story:
    """Written after the same functions, for ``runLauncherAsWorker``: workerReplicaIndexLabel."""
    story, key = mpi_job(), "training.kubeflow.org/"
    workers, (launcher,) = story.pods, story.others
    for number, worker in enumerate((launcher, *workers)):
        worker["metadata"]["labels"][key + "replica-index"] = str(number)
    assert story.owner is not None
    replicas = story.owner["spec"]["mpiReplicaSpecs"]
    replicas["Launcher"]["template"] = template()
    story.owner["spec"] |= {"runLauncherAsWorker": True, "launcherCreationPolicy": created}
    count = 3 if created == "AtStartup" else 2
    return Story([launcher, *workers], [], story.owner, (count, count))


def kueue_group() -> Story:
    """Written after Kueue ff69552, pkg/controller/jobs/pod/constants and apis/kueue/v1beta2/topology_types.go."""
    key = "kueue.x-k8s.io/"
    count = {key + "pod-group-total-count": "2"}
    pods = [
        pod(f"train-{i}", {key + "pod-group-name": "train", key + "pod-group-pod-index": str(i)}, count)
        for i in range(2)
    ]
    other = pod("other-0", {key + "pod-group-name": "other"}, count)
    return Story(pods, [other], None, (2, 2))


STORIES: Final[Mapping[str, Callable[[], Story]]] = {
    "JobSet": jobset,
    "TrainJob": train_job,
    "LeaderWorkerSet": leader_worker_set,
    "LeaderWorkerSet whose leader has no GPUs": lambda: leader_worker_set(leader_gpus=0),
    "PyTorchJob": lambda: kubeflow("pytorchjob", (3, 3)),
    "PyTorchJob whose master has no GPUs": lambda: kubeflow("pytorchjob", (2, 2), without="Master"),
    "PyTorchJob that may shrink": lambda: kubeflow("elastic", (2, 3)),
    "TFJob": lambda: kubeflow("tfjob", (3, 3)),
    "XGBoostJob": lambda: kubeflow("xgboostjob", (2, 2)),
    "JAXJob": lambda: kubeflow("jaxjob", (2, 2)),
    "PaddleJob": lambda: kubeflow("paddlejob", (2, 2)),
    "MPIJob": mpi_job,
    "MPIJob whose launcher is a worker": mpi_job_with_working_launcher,
    "MPIJob whose working launcher comes later": lambda: mpi_job_with_working_launcher(created="WaitForWorkersReady"),
    "pod group": kueue_group,
}
