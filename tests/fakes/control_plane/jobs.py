"""The Job controller of kube-controller-manager, and JobSet's, as far as suspending, resuming and failures go.

Source: Kubernetes 1.36, pkg/controller/job/job_controller.go (``syncJob``, ``suspendJob``, ``isPodFailed``); JobSet
08dfbdf, pkg/controllers/jobset_controller.go (``suspendJobs``, ``resumeJobsIfNecessary``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dradriver.kube.resources import PODS, Resource
from tests.fakes.apistore import Key, Object, Store, key_of

JOBS: Final = Resource("batch", "v1", "jobs", "Job", namespaced=True)
JOBSETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", namespaced=True)
BACKOFF_LIMIT: Final = 6


class Jobs:
    """Makes the pods of Jobs. A pod that goes while its Job is not suspended counts as failed, whoever took it.

    So does one that has failed, or is on its way out; one that has succeeded is not made anew.
    """

    def __init__(
        self,
        store: Store,
        make: Callable[[Object, str, int], Object],
        *,
        delete: Callable[[Key], object] | None = None,
        has: Callable[[Key], bool] = lambda _: True,
    ) -> None:
        """Make one of no Jobs.

        Args:
            store: The API server's objects.
            make: Returns a pod for a Job, a name and an index; whom it belongs to is added here.
            delete: How a pod goes, if not at once.
            has: Returns whether a Job is one of these; another controller makes the pods of the others.
        """
        self._store, self._make, self._has = store, make, has
        self._delete = delete if delete is not None else lambda key: store.remove(PODS, key)
        self._known: dict[str, set[str]] = {}  # by a Job's uid the uids of its pods
        self._made = 0

    def act(self) -> None:
        """Do once for each Job what its controller would, JobSets first."""
        for jobset in self._store.all(JOBSETS):
            self._jobset(jobset)
        for job in self._store.all(JOBS):
            if self._has(key_of(job)):
                self._job(job)

    def _job(self, job: Object) -> None:
        uid, status = job["metadata"]["uid"], job.get("status", {})
        own = [pod for pod in self._store.all(PODS) if _owner(pod) == uid]
        well = [pod for pod in own if _phase(pod) == "Succeeded"]
        pods = [pod for pod in own if "deletionTimestamp" not in pod["metadata"] and _phase(pod) != "Failed"]
        if any(one["type"] == "Failed" for one in status.get("conditions", ())):
            return
        lost = self._known.get(uid, set()) - {pod["metadata"]["uid"] for pod in pods}
        suspended = job["spec"].get("suspend", False)
        if suspended:
            for pod in pods:
                if pod not in well:
                    self._delete(key_of(pod))
            self._known[uid] = set()
            self._say(JOBS, job, "Suspended", "True")
            return
        failed = status.get("failed", 0) + len(lost)
        if failed != status.get("failed", 0):
            self._store.edit(JOBS, key_of(job), lambda job: job.setdefault("status", {}).update(failed=failed))
        if len(well) != status.get("succeeded", 0):
            self._store.edit(JOBS, key_of(job), lambda job: job.setdefault("status", {}).update(succeeded=len(well)))
        if failed > job["spec"].get("backoffLimit", BACKOFF_LIMIT):
            self._say(JOBS, job, "Failed", "True")
            return
        if status.get("conditions"):
            self._say(JOBS, job, "Suspended", "False")
        there = {pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index") for pod in pods}
        lacking = [index for index in range(job["spec"].get("parallelism", 1)) if str(index) not in there]
        pods += [self._new(job, index) for index in lacking]
        self._known[uid] = {pod["metadata"]["uid"] for pod in pods}

    def _new(self, job: Object, index: int) -> Object:
        self._made += 1
        name = job["metadata"]["name"]
        pod = self._make(job, f"{name}-{index}-{self._made:05x}", index)
        metadata = pod["metadata"]
        at = {"batch.kubernetes.io/job-completion-index": str(index), "batch.kubernetes.io/job-name": name}
        metadata["labels"] = metadata.get("labels", {}) | job["spec"].get("labels", {}) | at
        metadata["annotations"] = metadata.get("annotations", {}) | at
        metadata["ownerReferences"] = [_reference(job)]
        metadata["namespace"] = job["metadata"]["namespace"]
        return self._store.put(PODS, pod)

    def _jobset(self, jobset: Object) -> None:
        metadata, suspended = jobset["metadata"], jobset["spec"].get("suspend", False)
        for role in jobset["spec"]["replicatedJobs"]:
            for number in range(role.get("replicas", 1)):
                name = f"{metadata['name']}-{role['name']}-{number}"
                key = "jobset.sigs.k8s.io/"
                labels = {
                    key + "jobset-name": metadata["name"],
                    key + "jobset-uid": metadata["uid"],
                    key + "replicatedjob-name": role["name"],
                    key + "restart-attempt": "0",
                    key + "job-index": str(number),
                }
                spec = role["template"]["spec"] | {"suspend": suspended, "labels": labels}
                there = self._store.find(JOBS, name, metadata["namespace"])
                if there is None:
                    owned = {"ownerReferences": [_reference(jobset)]}
                    named = {"name": name, "namespace": metadata["namespace"]} | owned
                    self._store.put(JOBS, {"metadata": named, "spec": spec})
                elif there["spec"].get("suspend", False) != suspended:
                    self._store.edit(JOBS, key_of(there), lambda job: job["spec"].update(suspend=suspended))
        if suspended or jobset.get("status"):
            self._say(JOBSETS, jobset, "Suspended", str(suspended))

    def _say(self, resource: Resource, obj: Object, kind: str, status: str) -> None:
        said = [{"type": kind, "status": status}]
        self._store.edit(resource, key_of(obj), lambda obj: obj.setdefault("status", {}).update(conditions=said))


def _reference(obj: Object) -> Object:
    metadata = obj["metadata"]
    named = {"name": metadata["name"], "uid": metadata["uid"]}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "controller": True} | named


def _phase(pod: Object) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase


def _owner(pod: Object) -> str | None:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)
