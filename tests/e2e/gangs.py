"""Gangs as the end-to-end tests make them, and what the API says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dradriver.api.base import gang_barrier_device, names
from tests.e2e.kubectl import Namespace, controller_log, eventually, pod

Object = dict[str, Any]

INDEX: Final = "batch.kubernetes.io/job-completion-index"
AUTO: Final = {names.GANG: "auto"}
AVOIDED: Final = {"app": "shunned"}


def template(gpus: int, words: Mapping[str, str] | None = None) -> Object:
    """Return the pods of something that makes them, each with so many GPUs."""
    made = pod("main", gpus=gpus, words=words)
    return {"metadata": {"annotations": dict(words or {})}, "spec": made["spec"]}


def job(name: str, *, pods: int, gpus: int, words: Mapping[str, str] = AUTO) -> Object:
    """Return an indexed Job all of whose pods are made at once; it bears the loss of some."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(words)},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 6,
            "template": template(gpus),
        },
    }


def members(name: str, *, pods: int, gpus: int, is_avoided: bool = False) -> list[Object]:
    """Return plain pods that say that they are a gang; ``is_avoided``: whom ``shunning`` pods keep from their nodes."""
    words = {names.GANG: name, names.GANG_SIZE: str(pods)}
    made = [pod(f"{name}-{number}", gpus=gpus, words=words) for number in range(pods)]
    return [avoided(one) for one in made] if is_avoided else made


def avoided(made: Object) -> Object:
    """Return a pod that ``shunning`` pods keep from their nodes."""
    made["metadata"]["labels"] = made["metadata"].get("labels", {}) | AVOIDED
    return made


def shunning(made: Object) -> Object:
    """Return a pod that keeps others from its node by its anti-affinity, which only the scheduler knows."""
    terms = [{"labelSelector": {"matchLabels": AVOIDED}, "topologyKey": "kubernetes.io/hostname"}]
    made["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return made


def pods_of(namespace: Namespace, job_name: str, count: int) -> dict[int, Object]:
    """Return the living pods of an indexed Job by their index, once there are so many."""

    def found() -> dict[int, Object] | None:
        pods = {
            int(one["metadata"]["annotations"][INDEX]): one
            for one in namespace.list("pods")
            if one["metadata"].get("labels", {}).get("job-name") == job_name
            and "deletionTimestamp" not in one["metadata"]
            and one["status"]["phase"] in ("Pending", "Running")
        }  # fmt: skip
        return pods if len(pods) == count else None

    return dict(sorted(eventually(f"{count} pods of {job_name}", found).items()))


def run_whole(
    namespace: Namespace, pods: Sequence[str], *, container: str = "main", barrier: bool = True
) -> dict[str, Object]:
    """Wait until pods run, and see that none of them was bound before all had their GPUs. Returns their claims.

    Without a ``barrier`` the scheduler binds each for itself.
    """
    try:
        namespace.wait_running(*pods)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{controller_log(namespace.cluster)}") from error
    claims = claims_of(namespace, pods)
    if barrier:
        seated = max(claim["status"]["allocation"]["allocationTimestamp"] for claim in claims.values())
        assert seated <= min(bound_at(namespace.get("pod", name)) for name in pods)
        assert all(told(claim) == {gang_barrier_device.GO} for claim in claims.values())
    seen = [device for name in pods for device in sorted_devices(namespace, name, container)]
    assert len(seen) == len(set(seen)), "a GPU was given twice"
    return claims


def sorted_devices(namespace: Namespace, name: str, container: str) -> list[tuple[str, str]]:
    """Return the node and number of each GPU that a container sees."""
    node = namespace.get("pod", name)["spec"]["nodeName"]
    return [(node, device) for device in sorted(namespace.devices(name, container))]


def bound_at(one: Object) -> str:
    """Return when a pod was bound."""
    met = {condition["type"]: condition for condition in one["status"]["conditions"]}["PodScheduled"]
    assert met["status"] == "True"
    at: str = met["lastTransitionTime"]
    return at


def claims_of(namespace: Namespace, pods: Iterable[str]) -> dict[str, Object]:
    """Return the claims of some pods that exist, by the pods' names."""
    owned = {claim["metadata"]["ownerReferences"][0]["name"]: claim for claim in namespace.list("resourceclaims")}
    return {name: owned[name] for name in pods if name in owned}


def told(claim: Object) -> set[str]:
    """Return what a claim says of its seat; empty where it has none."""
    status = claim.get("status", {}).get("devices", ())
    return {met["type"] for one in status if names.is_seat(one["driver"], one["pool"]) for met in one["conditions"]}


def seated(claim: Object) -> bool:
    """Return whether a claim is allocated and its pod's."""
    status = claim.get("status", {})
    return bool(status.get("allocation") and status.get("reservedFor"))


def planned(claim: Object) -> Object:
    """Return what a claim says of its gang's plan."""
    found: Object = json.loads(claim["metadata"]["annotations"][names.PLAN])
    return found


def uids(objects: Mapping[Any, Object]) -> dict[Any, str]:
    """Return the uids of objects."""
    return {key: one["metadata"]["uid"] for key, one in objects.items()}
