"""Writes the files anew: ``python -m tests.captured [VERSION...]``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from dradriver.api.base import names
from tests.captured import FOLDER
from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import KUBERNETES_VERSIONS, minor_of
from tests.cluster.waiting import wait_for

Object = dict[str, Any]

CONTAINER: Final = {"name": "main", "image": "busybox", "resources": {"limits": {names.GPU_RESOURCE: "4"}}}
_KEPT: Final = ("name", "namespace", "uid", "labels", "annotations", "ownerReferences")
# Its gates are off by default: the server drops the field of a pod, and does not know PodGroups.
_GROUPS: Final = {"1.36": "scheduling.k8s.io/v1alpha2", "1.37": "scheduling.k8s.io/v1beta1"}


def _template(**labels: str) -> Object:
    return {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}


def _job(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": spec | {"template": _template()},
    }


def _stateful_set(name: str, policy: str) -> Object:
    template = _template(app=name)
    template["spec"] = template["spec"] | {"restartPolicy": "Always"}
    spec = {
        "replicas": 2,
        "serviceName": name,
        "podManagementPolicy": policy,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def _groups(version: str) -> list[Object]:
    spec = {"restartPolicy": "Never", "containers": [CONTAINER], "schedulingGroup": {"podGroupName": "train"}}
    group = {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0"}, "spec": spec}
    return [group, pod]


_OWNERS: Final = (
    _job("indexed", parallelism=2, completions=2, completionMode="Indexed"),
    _job("waves", parallelism=2, completions=5, completionMode="Indexed"),
    _job("plain", parallelism=2, completions=2),
    _job("one"),
    _stateful_set("parallel", "Parallel"),
    _stateful_set("ordered", "OrderedReady"),
)
_PODS: Final = 2 + 2 + 2 + 1 + 2 + 1


def main() -> None:
    for version in sys.argv[1:] or KUBERNETES_VERSIONS:
        groups = _GROUPS.get(minor_of(version))
        more = {"feature-gates": "GenericWorkload=true", "runtime-config": f"{groups}=true"} if groups else None
        plane = Nodeless(f"cap-{version}", version, api_server=more)
        with plane.running():
            found = _made(plane, [*_OWNERS, *(_groups(groups) if groups else [])])
        (FOLDER / f"kubernetes-{version}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _made(plane: Nodeless, objects: list[Object]) -> dict[str, list[Object]]:
    def kubectl(*words: str, sent: object = None) -> Any:
        command = [*plane.enter(), str(plane.binaries / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words]
        said = None if sent is None else json.dumps(sent)
        return subprocess.run(command, check=True, capture_output=True, text=True, input=said, timeout=60).stdout

    def pods() -> list[Object]:
        return list(json.loads(kubectl("get", "pods", "-o", "json"))["items"])

    kubectl("create", "-f", "-", sent={"apiVersion": "v1", "kind": "List", "items": objects})
    expected = _PODS + sum(one["kind"] == "Pod" for one in objects)
    wait_for("their pods", lambda: len(pods()) == expected, seconds=60)
    owners = ",".join(sorted({f"{one['kind'].lower()}s" for one in objects} - {"pods"}))
    made = list(json.loads(kubectl("get", owners, "-o", "json"))["items"])
    return {"pods": [bare(pod) for pod in pods()], "owners": [bare(owner) for owner in made]}


def bare(made: Object) -> Object:
    """Return an object without its status, and of its metadata what says who it is and whose."""
    metadata = {key: value for key, value in made["metadata"].items() if key in _KEPT}
    spec = {key: value for key, value in made["spec"].items() if key not in ("tolerations", "volumes")}
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": metadata, "spec": spec}


if __name__ == "__main__":
    main()
