"""Real reviews of every path of the webhook: what damaged ones are made from."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dradriver import __version__
from dradriver.api.base import names
from tests.fakes import admission
from tests.fakes.admission import Object, defaulted, pod
from tests.paths import REPO, SHARED_DATA
from webhook.admission import POLICIES_PATH
from webhook.workloads import TEMPLATES

PODS = ("/mutate-pods", "/translate-pods")
CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")
KINDS = ("Pod", *TEMPLATES, *CLAIMS)
_BOTH = {names.REQUIRED: "same-numa", names.PREFERRED: "nvlink,same-pcie-root", names.MIN_BANDWIDTH: "100GB/s"}
_WORDS: tuple[tuple[dict[str, str], object], ...] = (
    (admission.NVLINK, 4),
    (_BOTH, 2),
    ({names.SHARE_CORES: "25", names.SHARE_MEMORY: "10Gi"}, 1),
    ({names.MIG_PROFILE: "1g.10gb"}, 1),
    ({names.GANG: "g", names.GANG_SIZE: "4"}, 8),
)


class Review(msgspec.Struct, frozen=True):
    """A question to the webhook.

    Attributes:
        path: Where it is posted.
        kind: The object's kind.
        new: The object.
        old: What it was before an update; None on creation.
        user: Who asks.
    """

    path: str
    kind: str
    new: Any
    old: Any = None
    user: str = "alice"

    def body(self, uid: str) -> Object:
        """Return the AdmissionReview."""
        made = admission.body(self.new, old=self.old, kind=self.kind, user=self.user)
        made["request"]["uid"] = uid
        return made

    def noted(self, words: dict[str, str]) -> Review:
        """Return it with annotations written over those of the object."""
        metadata = self.new["metadata"]
        metadata = metadata | {"annotations": (metadata.get("annotations") or {}) | words}
        return msgspec.structs.replace(self, new=self.new | {"metadata": metadata})


def subjects() -> list[Review]:
    """Return reviews of pods and of what makes them, to write annotations on."""
    bare = [
        defaulted(pod(*gpus, spec=spec))
        for gpus, spec in (
            ((2,), {}),
            ((None,), {}),
            ((1, 4), {"initContainers": [admission.sidecar(1), admission.sidecar(2, restart=None) | {"name": "i2"}]}),
            (("1",), {"nodeName": "n1"}),
            ((2,), admission.affine([{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}])),
        )
    ]
    bare.append(defaulted(pod(2, resource="amd.com/gpu")))
    live = admission.stored(admission.create(2))
    lives = [live, admission.lifted(live), admission.running(admission.lifted(live)), admission.stored(bare[0])]
    lives.append(admission.stored(admission.admit(bare[-1], path="/translate-pods").admitted))
    made = [Review(path, "Pod", one) for one in bare for path in PODS]
    made += [Review("/mutate-pods", "Pod", one, one) for one in lives]
    made.append(Review("/mutate-pods", "Pod", admission.lifted(live), live, admission.CONTROLLER))
    return made + [Review("/mutate-workloads", kind, workload(kind)) for kind in TEMPLATES]


def corpus() -> list[Review]:
    """Return reviews that reach every reader, our examples among them."""
    made = subjects()
    for words, gpus in _WORDS:
        new = defaulted(pod(gpus, annotations=words))
        live = admission.stored(admission.admit(new).admitted)
        made += [Review("/mutate-pods", "Pod", new), Review("/mutate-pods", "Pod", new, live)]
        made.append(Review("/mutate-pods", "Pod", live | {"metadata": live["metadata"] | {"annotations": words}}, live))
        made.append(Review("/mutate-pods", "Pod", admission.lifted(live)))  # a copy
        for kind in TEMPLATES:
            above = workload(kind) | {"metadata": {"name": "w", "annotations": words}}
            below = admission.admit(above, path="/mutate-workloads", kind=kind).admitted
            made += [Review("/mutate-workloads", kind, above), Review("/mutate-workloads", kind, above, below)]
    config = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND}
    configs: tuple[Object, ...] = ({}, {"order": []}, {"nccl": "auto"}, {"x": 1})
    for more in configs:
        opaque = {"opaque": {"driver": names.DRIVER, "parameters": config | more}, "requests": ["a"]}
        spec = {"devices": {"requests": [{"name": "a"}], "config": [opaque]}}
        for kind, whole in zip(CLAIMS, (spec, {"spec": spec}), strict=True):
            made.append(Review("/validate-claims", kind, {"kind": kind, "metadata": {"name": "c"}, "spec": whole}))
    for text in ("weights: {nvlink: 1}", "weights: {nvlnk: 1}\ngpus: [{mig: x}]", "[", None):
        labels = {names.VERSION_LABEL: __version__}
        stored = {"metadata": {"name": "policies", "labels": labels}, "data": {names.POLICIES_KEY: text}}
        made += [Review(POLICIES_PATH, "ConfigMap", stored), Review(POLICIES_PATH, "ConfigMap", stored, stored)]
    return made + _written(REPO / "examples")


def manifests() -> list[Review]:
    """Return reviews of the field's manifests; none where they are not at hand."""
    return _written(SHARED_DATA / "manifests")


def workload(kind: str) -> Object:
    """Return an object with pod templates where its kind has them."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": defaulted(pod(2))["spec"]}
    spec: Any = {"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}  # else its pods are no gang
    for path in TEMPLATES[kind]:
        at = spec
        for step, following in zip(path[1:], (*path[2:], None), strict=True):
            if step == "*":
                at["Worker"] = at.get("Worker", {})
                at = at["Worker"]
            elif following is None:
                at[step] = copy.deepcopy(template)
            else:
                at = at.setdefault(step, {})
        if "*" in path:
            spec = {"replicatedJobs": [spec["replicatedJobs"]["Worker"]]} if "replicatedJobs" in spec else spec
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}, "spec": spec}


def _written(folder: Path) -> list[Review]:
    made = []
    for file in sorted(folder.glob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text("utf-8")):
            if isinstance(one, dict) and (kind := one.get("kind")) in KINDS:
                paths = PODS if kind == "Pod" else ("/validate-claims" if kind in CLAIMS else "/mutate-workloads",)
                made += [Review(path, kind, one) for path in paths]
    return made
