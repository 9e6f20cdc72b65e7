"""Pods as the API server has them, and admission reviews as it sends and applies them."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import dataclass
from typing import Any

import jsonpatch
import msgspec

from dradriver.api.base import affinity, names
from dradriver.api.base.allocating_driver import OURS, Ledger, bound
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import Pod
from dradriver.process.policies_file import PoliciesFile
from webhook import pod_view, review
from webhook.admission import Admission

Object = dict[str, Any]
NVLINK = {names.POLICY: "nvlink"}
CONTROLLER = "system:serviceaccount:gpu:controller"


def pod(
    *gpus: object,
    annotations: dict[str, str] | None = None,
    spec: Object | None = None,
    resource: str = names.GPU_RESOURCE,
    **metadata: object,
) -> Object:
    """Return a pod's manifest with a container c0, c1, ... for each count of GPUs (None: no limit)."""
    containers = [
        {"name": f"c{i}", "image": "busybox"} | ({} if count is None else {"resources": {"limits": {resource: count}}})
        for i, count in enumerate(gpus)
    ]
    noted = {"annotations": annotations} if annotations is not None else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"} | noted | metadata,
        "spec": {"containers": containers} | (spec or {}),
    }


def defaulted(manifest: Object, *, namespace: str = "team") -> Object:
    """Return a pod with the defaults that the API server fills in before admission."""
    made = copy.deepcopy(manifest)
    made["metadata"] = {"namespace": namespace, "creationTimestamp": None} | made["metadata"]
    noted: Object = {f"f:{key}": {} for key in made["metadata"].get("annotations") or {}}
    sent: Object = {"f:annotations": noted, "f:name": {}}
    fields = {"f:metadata": sent, "f:spec": {}}
    made["metadata"]["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": fields}]
    spec = made["spec"]
    for key, value in {
        "volumes": [],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }.items():
        spec.setdefault(key, value)
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        resources = container.setdefault("resources", {})
        for where in ("limits", "requests"):
            if where in resources:
                resources[where] = {key: str(value) for key, value in resources[where].items()}
        if resources.get("limits"):
            resources["requests"] = resources["limits"] | resources.get("requests", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("volumeMounts", []).append(
            {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        )
    spec["volumes"].append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    made.setdefault("status", {})
    return made


@dataclass(frozen=True)
class Verdict:
    """What came back: ``pod`` is the pod with the patch applied, None where it was refused."""

    allowed: bool
    pod: Object | None
    patch: list[Object]
    warnings: list[str]
    message: str

    @property
    def admitted(self) -> Object:
        assert self.pod is not None, self.message
        return self.pod


def body(
    new: object, *, old: object = None, kind: str = "Pod", user: str = "alice", operation: str = "", **more: object
) -> Object:
    """Return an AdmissionReview."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": kind.lower() + "s"},
        "operation": operation or ("CREATE" if old is None else "UPDATE"),
        "namespace": "team",
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | more}


def admit(
    new: Object,
    *,
    old: Object | None = None,
    user: str = "alice",
    policies: PoliciesFile | None = None,
    path: str = "/mutate-pods",
    ledger: Ledger = OURS,
    keeps_nvsentinel: bool = False,
    **more: Any,
) -> Verdict:
    """Return what the webhook says to an object, a pod's unless the path says otherwise, its patch applied as the API
    server does.
    """
    sent = json.dumps(body(new, old=old, user=user, **more)).encode()
    admission = Admission(controller_user=CONTROLLER, policies=policies, keeps_nvsentinel=keeps_nvsentinel)
    with bound(ledger):
        response = json.loads(admission.answer(path, sent))["response"]
    assert response["uid"] == review.decode(sent).uid
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    warnings = response.get("warnings", [])
    assert all(len(warning) <= 256 and not warning.endswith("…") for warning in warnings), "none is cut off"
    return Verdict(
        allowed=response["allowed"],
        pod=jsonpatch.apply_patch(new, patch) if response["allowed"] else None,
        patch=patch,
        warnings=warnings,
        message=response.get("status", {}).get("message", ""),
    )


def viewed(manifest: Object) -> pod_view.Pod:
    """Return a pod as the webhook reads it."""
    return pod_view.read(json.dumps(manifest).encode())


def stored(admitted: Object, *, uid: str = "5b1c") -> Object:
    """Return a pod as it lies in the API server after its creation."""
    made = copy.deepcopy(admitted)
    made["metadata"] |= {"uid": uid, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    return made


def lifted(live: Object, *, nodes: tuple[str, ...] = ("n1", "n2")) -> Object:
    """Return a waiting pod as the controller leaves it: narrowed, its results written, the gate gone."""
    view = msgspec.convert(live, Pod)
    own = affinity.note(view)
    notes = {names.ALLOCATED: "GPU-0,GPU-1"} | ({} if own is None else {names.AFFINITY: own})
    narrowing = Patch()
    affinity.narrow(view, {node: node for node in nodes}, narrowing)
    made: Object = jsonpatch.apply_patch(live, narrowing.ops)
    made["metadata"]["annotations"] |= notes
    made["spec"]["schedulingGates"] = [g for g in made["spec"]["schedulingGates"] if g["name"] != names.GATE]
    if not made["spec"]["schedulingGates"]:
        del made["spec"]["schedulingGates"]
    return made


def running(placed: Object, *, node: str = "n1") -> Object:
    """Return a placed pod that has been bound."""
    made = copy.deepcopy(placed)
    made["spec"]["nodeName"] = node
    made["status"] = {"phase": "Running", "podIP": "10.0.0.9"}
    return made


def applied(manifest: Object, live: Object) -> Object:
    """Return what the API server makes of ``kubectl apply`` of an unchanged manifest.

    Nothing was deleted from the manifest, so the three-way merge lays the manifest over the live object: lists of named
    things merge by name, others are replaced. Then requests are defaulted from limits.
    """
    made: Object = _overlay(live, manifest)
    for container in (*made["spec"]["containers"], *made["spec"].get("initContainers", [])):
        resources = container["resources"]
        for where in ("limits", "requests"):
            if where in resources:
                resources[where] = {key: str(value) for key, value in resources[where].items()}
        if resources.get("limits"):
            resources["requests"] = resources["limits"] | resources.get("requests", {})
    return made


def _overlay(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {key: _overlay(under[key], value) if key in under else value for key, value in over.items()}
    if isinstance(over, list) and over and all(isinstance(entry, dict) and "name" in entry for entry in over):
        named = {entry["name"]: entry for entry in over}
        merged = [_overlay(entry, named.pop(entry["name"])) if entry["name"] in named else entry for entry in under]
        return merged + list(named.values())
    return copy.deepcopy(over)


def create(*gpus: object, **more: Any) -> Object:
    """What becomes of a new pod whose containers have these limits; by default it asks for NVLink."""
    return admit(defaulted(pod(*gpus, **({"annotations": NVLINK} | more)))).admitted


def refusal(*gpus: object, **more: Any) -> str:
    """Why such a pod is refused."""
    verdict = admit(defaulted(pod(*gpus, **({"annotations": NVLINK} | more))))
    assert not verdict.allowed
    return verdict.message


def sidecar(count: object, *, restart: str | None = "Always") -> Object:
    """An init container with GPUs."""
    made: Object = {"name": "init", "image": "busybox", "resources": {"limits": {names.GPU_RESOURCE: count}}}
    return made | ({"restartPolicy": restart} if restart else {})


def affine(terms: list[Object]) -> Object:
    """A pod's specification that requires one of these terms of its node."""
    required = {"nodeSelectorTerms": copy.deepcopy(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
